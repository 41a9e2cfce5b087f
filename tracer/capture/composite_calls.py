"""The composite ops that a forward called, above the ops that PyTorch ran for them: `linear` above `t` and `addmm`.

While the keys of autograd are left out, a dispatch mode meets an op before it is taken apart. The op is then run as it
would have been, with those keys back and the mode inside once more: both levels are of one run, whose ops, results and
gradients are those of a run that nobody looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tracer.capture.op_schema import OpKind, kind, tensors, written_tensors
from tracer.capture.tensors.pytree import named_tensors
from tracer.capture.tensors.pytree import output_tensors as returned_tensors
from tracer.capture.tensors.tensor_store import address
from tracer.capture.tensors.value_versions import Layout, Ref, Values
from tracer.ops import IDENTITIES, LEAVING_OUT, NO_LABEL

_C = torch._C
AUTOGRAD = (
    _C.DispatchKeySet(_C.DispatchKey.AutogradFunctionality)
    | _C.DispatchKeySet(_C.DispatchKey.AutogradOther)
    | _C.DispatchKeySet(_C.DispatchKey.ADInplaceOrView)
)
"""The keys under which PyTorch takes composite ops apart."""
PLAIN = frozenset((int, float, bool, str, type(None), torch.dtype))
"""What most arguments are that are no tensors."""


class Call(NamedTuple):
    """One composite op: its arguments by the names of its schema, with a `Ref` for each tensor, also in lists; the ops
    that it ran are `ops[first]` to `ops[last - 1]`, and `inner` has their calls.

    A write into a part of a tensor's memory is a call of its own, `overwrite`, which gives the tensor's new value from
    `old`, `new` and their places in the memory, `into` and `part`.
    """

    func: Any
    name: str
    arguments: dict[str, Any]
    outputs: tuple[Ref, ...]
    module: str
    call: int
    first: int
    last: int
    inner: tuple[Call, ...] = ()


def refs(value) -> Iterator[Ref]:
    """Yield the tensors in a call's arguments, in order."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from refs(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from refs(item)


@dataclass
class ModuleCall:
    """One call of a module, as the forward hooks saw it: its path and class, the number of earlier calls, the number of
    the module call around it, its inputs, by position and by name, and its outputs; its ops are `first` to `last -
    1`."""

    path: str
    kind: str
    call: int
    around: int
    first: int
    last: int = 0
    inputs: tuple[Ref, ...] = ()
    outputs: tuple[Ref, ...] = ()
    named: tuple[Ref, ...] = ()


@dataclass
class Calls:
    """The calls of one run and the calls of its modules, both in order."""

    made: list[Call] = field(default_factory=list)
    modules: list[ModuleCall] = field(default_factory=list)
    inputs: tuple[Ref, ...] = ()
    outputs: tuple[Ref, ...] = ()
    places: tuple[str, ...] = ()
    """Where each of the outputs stands in what was returned: `logits`, `[1]`, "" for the value itself."""
    weights: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The shapes of all parameters and buffers by their keys, also of those that the run did not take."""

    @cached_property
    def signature(self) -> int:
        """A hash that is equal for runs of the same calls, whatever the values; read it once all is recorded."""
        made = tuple([_outline(call) for call in self.made])
        modules = tuple([tuple(vars(module).values()) for module in self.modules])
        return hash((made, modules, self.inputs, self.outputs, self.places))

    def plan(self) -> int:
        """Return a hash that is equal for runs of the same calls but for sizes: shapes and whole numbers are left
        out."""
        made: list[object] = []
        for call in self.made:
            given = map(_keys, call.arguments.values())
            made.append((call.name, call.module, call.call, call.first, call.last, *call.arguments, *given))
            made.append(_keys(call.outputs))
        return hash((tuple(made), _keys(self.inputs), _keys(self.outputs), self.places))


def _outline(call: Call) -> tuple:
    """Return a call's arguments and outputs."""
    # as text: the hashes of 1 and True, and of -1 and -2, are the same
    given = [one if type(one) is Ref else repr(one) for one in call.arguments.values()]
    return call.name, call.module, call.call, call.first, call.last, call.outputs, *call.arguments, *given


def _left_out(labels: Tensor, ignored: int) -> bool:
    """Return whether one of the labels is the one that a loss ignores; False inside of `torch.func`, where values can't
    be read."""
    with _C.DisableTorchFunction():
        if labels.is_floating_point() or labels.is_meta:
            return False
        return address(labels) is None or bool((labels == ignored).any())


def _keys(value) -> object:
    """Return a value of a call without shapes and whole numbers."""
    if isinstance(value, Ref):
        return value.key
    if isinstance(value, tuple):
        return tuple(map(_keys, value))
    return "number" if type(value) is int and value != NO_LABEL else repr(value)


def _within(output) -> list[Tensor]:
    """Return the tensors in a module's output."""
    return [tensor for _, tensor in named_tensors("", output)]


class CallRecorder:
    """The recorder of calls: builds an observer of ops that also sees calls."""

    def __init__(self, recording, makers_named: dict[str, Tensor], modules):
        self.calls = Calls()
        self._ops, self._kept, self._modules = recording.ops, recording.kept, modules
        with _C.DisableTorchFunction():
            self._values = Values(makers_named, recording.kept, self._record_overwrite)
            self.calls.inputs = tuple(map(self._values.of, recording.inputs.values()))
            self.calls.weights = {key: tuple(tensor.shape) for key, tensor in makers_named.items()}
        self._open: list[int] = []
        self._inner: list[Call] | None = None
        self._alone = False

    def observer(self, observe: Callable) -> Callable:
        """Return `observe`, which records each op, with the calls around it."""

        def both(mode, func, types, args=(), kwargs=None):
            facts, kwargs = kind(func), kwargs or {}
            if facts.higher:
                return self._written_out(observe, mode, func, types, args, kwargs)
            if (inner := self._inner) is not None:
                return self._op(inner, facts, observe, mode, func, types, args, kwargs)
            if facts.whole and not torch.is_grad_enabled():  # with gradients, an op may run others for them
                return self._whole(facts, observe, mode, func, types, args, kwargs)
            return self._call(facts, mode, func, args, kwargs)

        return both

    def _whole(self, facts: OpKind, observe, mode, func, types, args, kwargs):
        """Record a call that is one op."""
        self._inner, self._alone = self.calls.made, True
        try:
            return self._op(self.calls.made, facts, observe, mode, func, types, args, kwargs)
        finally:
            self._inner, self._alone = None, False

    def run(self, func, args, kwargs) -> Any:
        """Run an op; one that is a call by itself has not been through autograd yet."""
        if not self._alone:
            return func(*args, **kwargs) if kwargs else func(*args)
        with with_autograd():
            return func(*args, **kwargs) if kwargs else func(*args)

    def _call(self, facts: OpKind, mode, func, args, kwargs):
        first = len(self._ops)
        arguments, self._inner = self._arguments(facts, args, kwargs), []
        try:
            with with_autograd():
                _C._push_on_torch_dispatch_stack(mode)
                try:
                    result = func(*args, **kwargs)
                finally:
                    _C._pop_torch_dispatch_stack(None)
        finally:
            inner, self._inner = self._inner, None
        outputs = self._outputs(result)
        _, path, call = self._modules.stack[-1]
        if len(inner) == 1 and inner[0].name == facts.name:
            inner = ()
        made = Call(func, facts.name, arguments, outputs, path, call, first, len(self._ops), tuple(inner))
        self.calls.made.append(made)
        return result

    def _outputs(self, result) -> tuple[Ref, ...]:
        if isinstance(result, Tensor):
            return (self._values.of(result),)
        return tuple([self._values.of(tensor) for tensor in tensors((result,))])

    def _written_out(self, observe, mode, func, types, args, kwargs):
        """Record an op that takes functions: the ops that it runs are calls of their own."""
        if self._inner is not None:
            return observe(mode, func, types, args, kwargs)
        self._inner = []
        try:
            return observe(mode, func, types, args, kwargs)
        finally:
            self.calls.made += self._inner
            self._inner = None

    def _op(self, inner: list[Call], facts: OpKind, observe, mode, func, types, args, kwargs):
        first, values = len(self._ops), self._values
        arguments = self._arguments(facts, args, kwargs)
        changed = tuple(written_tensors(facts, args, kwargs)) if facts.written else ()
        result = observe(mode, func, types, args, kwargs)
        index = len(self._ops) - 1
        if changed:
            outputs = self._written_outputs(index, changed, tensors((result,)))
        elif isinstance(result, Tensor):
            outputs = (values.record(result, f"{index}.0"),)
        else:
            made = enumerate(tensors((result,)))
            outputs = tuple([values.record(tensor, f"{index}.{position}") for position, tensor in made])
        _, path, call = self._modules.stack[-1]
        inner.append(Call(func, facts.name, arguments, outputs, path, call, first, len(self._ops)))
        return result

    def _written_outputs(self, index: int, changed: tuple[Tensor, ...], results: list[Tensor]) -> tuple[Ref, ...]:
        """Return the outputs of an op that has written into some tensors."""
        values = self._values
        outputs = tuple(
            values.wrote(tensor, f"{index}.{position}")
            if any(tensor is other for other in changed)
            else values.record(tensor, f"{index}.{position}")
            for position, tensor in enumerate(results)
        )
        for number, tensor in enumerate(changed):  # a write that the op does not return: running means, for instance
            if not any(tensor is other for other in results):
                self._kept.offer(f"{index}.{len(outputs) + number}", tensor)
                values.wrote(tensor, f"{index}.{len(outputs) + number}")
        return outputs

    def _record_overwrite(self, old: Ref, new: Ref, into: Layout, part: Layout, current: Ref) -> None:
        _, path, call = self._modules.stack[-1]
        arguments = {"old": old, "new": new, "into": into, "part": part}
        index = int(new.key.partition(".")[0])
        made = Call(None, "overwrite", arguments, (current,), path, call, index, index)
        (self.calls.made if self._inner is None else self._inner).append(made)

    def _arguments(self, facts: OpKind, args: tuple, kwargs: dict) -> dict[str, Any]:
        """Return all arguments by the names of the schema, tensors as references."""
        refer, names = self._refer, facts.arguments
        found = {
            name: value if type(value) in PLAIN else refer(value) for name, value in zip(names, args, strict=False)
        }
        for name in names[len(args) :]:
            if name in kwargs:
                found[name] = refer(kwargs[name])
            elif name in facts.optional:
                found[name] = facts.optional[name]
        if facts.plain in IDENTITIES and type(found[names[0]]) in (bool, int, float):  # inside of `torch.func`
            found[names[0]] = self._values.of(torch.tensor(found[names[0]]))
        if facts.plain in LEAVING_OUT and not _left_out(args[names.index("target")], found["ignore_index"]):
            found["ignore_index"] = NO_LABEL
        return found

    def _refer(self, value):
        if isinstance(value, Tensor):
            return self._values.of(value)
        if isinstance(value, (list, tuple)):
            return tuple([one if type(one) in PLAIN else self._refer(one) for one in value])
        return value

    def enter(self, kind: str, given) -> None:
        """Record that a module of that class is called."""
        _, path, call = self._modules.stack[-1]
        around = self._open[-1] if self._open else -1
        self._open.append(len(self.calls.modules))
        with _C.DisableTorchFunction():
            inputs = self._refs(tensors(given))
        self.calls.modules.append(ModuleCall(path, kind, call, around, len(self._ops), inputs=inputs))

    def leave(self, named: dict, output) -> None:
        """Record that the module called last is done; its named arguments are known only now."""
        if self._open:
            made = self.calls.modules[self._open.pop()]
            with _C.DisableTorchFunction():
                made.last, made.outputs = len(self._ops), self._refs(_within(output))
                made.named = self._refs(tensors(named.values()))

    def _refs(self, given: list[Tensor]) -> tuple[Ref, ...]:
        """Return references to a module's inputs or outputs; inside of `torch.func`, these differ from those of the
        ops."""
        own = (one for one in given if one.layout is not torch.strided or address(one) is not None)
        return tuple(map(self._values.of, own))

    def over(self) -> None:
        """Release the run's tensors."""
        self._modules.told = self._inner = None
        del self._values

    def record_output(self, output) -> None:
        """Record the output of the run."""
        with _C.DisableTorchFunction():
            found = returned_tensors(output)
            self.calls.outputs = tuple(self._values.of(tensor) for _, tensor in found)
            self.calls.places = tuple(name for name, _ in found)


def with_autograd() -> AbstractContextManager:
    """Return a guard under which PyTorch decomposes composite ops again, and handles derivatives and views."""
    excluded = _C._dispatch_tls_local_exclude_set() - AUTOGRAD
    return _C._ForceDispatchKeyGuard(_C._dispatch_tls_local_include_set(), excluded)


@contextmanager
def above() -> Iterator[None]:
    """Show composite ops to the dispatch mode of this thread."""
    with _C._ExcludeDispatchKeyGuard(AUTOGRAD):
        yield
