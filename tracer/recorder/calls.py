"""The composite ops that PyTorch was asked for, above the ops that it ran for them: `linear` above `t` and `addmm`.

While the keys of autograd are left out, a dispatch mode meets an op before it is taken apart. The op is then run as it
would have been, with those keys back and the mode inside once more: both levels are of one run, whose ops, results and
gradients are those of a run that nobody looks at.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator

from tracer.recorder.kept import Kept
from tracer.recorder.makers import NESTED
from tracer.recorder.modes import seen
from tracer.recorder.nested import named
from tracer.recorder.ops import kind, tensors, written

_C = torch._C
AUTOGRAD = (
    _C.DispatchKeySet(_C.DispatchKey.AutogradFunctionality)
    | _C.DispatchKeySet(_C.DispatchKey.AutogradOther)
    | _C.DispatchKeySet(_C.DispatchKey.ADInplaceOrView)
)
"""The keys under which PyTorch takes composite ops apart."""


class Ref(NamedTuple):
    """A tensor of the run by the key of its value: `"12.0"` is the first output of op 12; `"input x"`, `"parameter w"`,
    `"constant 0"` what nothing of the run made, and `"12.0w3"` another tensor's value after a write."""

    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype


class Layout(NamedTuple):
    """Where a tensor's numbers lie in its storage: shape, strides and offset."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Call(NamedTuple):
    """One composite op: its arguments by the names of its schema, with a `Ref` for each tensor, also in lists; the ops
    that it ran are `ops[first]` to `ops[last - 1]`, and `inner` has what these were called with.

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
    """The tensors in a call's arguments, in order."""
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
    """One call of a module, as the forward hooks saw it: its path and class, how often it was called before, the number
    of the module call around it, what went in, by position and by name, and what came out; its ops are `first` to
    `last - 1`."""

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
    """What one run was asked for: its calls and the calls of its modules, both in order."""

    made: list[Call] = field(default_factory=list)
    modules: list[ModuleCall] = field(default_factory=list)
    inputs: tuple[Ref, ...] = ()
    outputs: tuple[Ref, ...] = ()

    def signature(self) -> int:
        """One number for runs that were asked for the same, whatever the values."""
        made = tuple((c.name, c.module, c.call, c.first, c.last, repr(c.arguments), c.outputs) for c in self.made)
        return hash((made, self.inputs, self.outputs))


class Values:
    """The key of every tensor that the run has made or was given, also of those that something has written into."""

    def __init__(self, named: dict[str, Tensor], kept: Kept, overwritten):
        self._kept, self._overwritten = kept, overwritten
        self._names = {id(tensor): (tensor, key) for key, tensor in named.items()}
        self._places = {_place(tensor): key for key, tensor in named.items()}
        self._refs: dict[int, tuple[ref, Ref]] = {}
        self._writes: dict[int, list[tuple[Ref, Layout, int]]] = {}
        self._seen: dict[int, int] = {}
        self._constants = self._versions = 0

    def made(self, tensor: Tensor, key: str) -> Ref:
        """Says that this tensor is the value of a key from now on."""
        made = Ref(key, tuple(tensor.shape), tensor.dtype)
        self._refs[id(tensor)] = ref(tensor), made
        storage = tensor.untyped_storage()._cdata
        self._seen[id(tensor)] = len(self._writes.get(storage, ()))
        return made

    def wrote(self, tensor: Tensor, key: str) -> Ref:
        """Says that an op wrote into this tensor, whose value that key has from now on."""
        new = self.made(tensor, key)
        writes = self._writes.setdefault(tensor.untyped_storage()._cdata, [])
        writes.append((new, _layout(tensor), id(tensor)))
        self._seen[id(tensor)] = len(writes)
        return new

    def of(self, tensor: Tensor) -> Ref:
        """The tensor's value now."""
        found = self._refs.get(id(tensor))
        current = found[1] if found is not None and found[0]() is tensor else self._first(tensor)
        if not self._writes:
            return current
        writes = self._writes.get(tensor.untyped_storage()._cdata, ())
        for new, part, writer in writes[self._seen.get(id(tensor), 0) :]:
            if writer != id(tensor) and _meet(part, into := _layout(tensor)):
                self._versions += 1
                old, current = current, self.made(tensor, f"{new.key}w{self._versions}")
                self._overwritten(old, new, into, part, current)
                self._kept.offer(current.key, tensor)
        return current

    def _first(self, tensor: Tensor) -> Ref:
        """A tensor that nothing of the run made."""
        held = self._names.get(id(tensor))
        key = held[1] if held is not None else self._places.get(_place(tensor))
        if key is None:
            key = f"constant {self._constants}"
            self._constants += 1
            self._kept.offer(key, tensor)
        made = self.made(tensor, key)
        self._seen[id(tensor)] = 0
        return made


def _within(output) -> list[Tensor]:
    """The tensors in what a module returned."""
    return [tensor for _, tensor in named("", output)]


def _place(tensor: Tensor) -> tuple:
    if tensor.is_nested:
        raise ValueError(NESTED)
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tuple(tensor.shape), tensor.stride()


def _layout(tensor: Tensor) -> Layout:
    return Layout(tuple(tensor.shape), tensor.stride(), tensor.storage_offset())


def _meet(one: Layout, other: Layout) -> bool:
    """Whether two tensors of one storage may share numbers."""

    def ends(layout: Layout) -> tuple[int, int]:
        reach = sum((n - 1) * step for n, step in zip(layout.shape, layout.stride, strict=True))
        return layout.offset, layout.offset + reach

    (first, last), (begin, end) = ends(one), ends(other)
    return 0 not in (*one.shape, *other.shape) and first <= end and begin <= last


class CallRecorder:
    """Makes the observer of ops that also sees calls."""

    def __init__(self, recording, makers_named: dict[str, Tensor], modules):
        self.calls = Calls()
        self._ops, self._kept, self._modules = recording.ops, recording.kept, modules
        with _C.DisableTorchFunction():
            self._values = Values(makers_named, recording.kept, self._overwritten)
            self.calls.inputs = tuple(map(self._values.of, recording.inputs.values()))
        self._open: list[int] = []
        self._inner: list[Call] | None = None

    def observer(self, observe):
        """`observe`, which records each op, with the calls around it."""

        def both(mode, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            if isinstance(func, HigherOrderOperator):
                return self._written_out(observe, mode, func, types, args, kwargs)
            if self._inner is not None:
                return self._op(observe, mode, func, types, args, kwargs)
            return self._call(observe, mode, func, types, args, kwargs)

        return both

    def _call(self, observe, mode, func, types, args, kwargs):
        first, arguments, self._inner = len(self._ops), self._arguments(func, args, kwargs), []
        before = _C._dispatch_tls_local_exclude_set()
        try:
            with _C._ForceDispatchKeyGuard(_C._dispatch_tls_local_include_set(), before - AUTOGRAD), seen(mode):
                result = func(*args, **kwargs)
        finally:
            inner, self._inner = self._inner, None
        outputs = tuple(self._values.of(tensor) for tensor in tensors((result,)))
        _, path, call = self._modules.stack[-1]
        if len(inner) == 1 and inner[0].name == kind(func).name:
            inner = []
        self.calls.made.append(
            Call(
                func,
                kind(func).name,
                arguments,
                outputs,
                path,
                call,
                first,
                len(self._ops),
                tuple(inner),
            )
        )
        return result

    def _written_out(self, observe, mode, func, types, args, kwargs):
        """An op that takes functions: what it runs are calls of their own."""
        if self._inner is not None:
            return observe(mode, func, types, args, kwargs)
        self._inner = []
        try:
            return observe(mode, func, types, args, kwargs)
        finally:
            self.calls.made += self._inner
            self._inner = None

    def _op(self, observe, mode, func, types, args, kwargs):
        facts, first, arguments = kind(func), len(self._ops), self._arguments(func, args, kwargs)
        changed = tuple(written(facts, args, kwargs)) if facts.written else ()
        result = observe(mode, func, types, args, kwargs)
        index = len(self._ops) - 1
        outputs = tuple(
            self._values.wrote(tensor, f"{index}.{position}")
            if any(tensor is other for other in changed)
            else self._values.made(tensor, f"{index}.{position}")
            for position, tensor in enumerate(tensors((result,)))
        )
        for number, tensor in enumerate(changed):  # a write that the op does not return: running means, for instance
            if not any(tensor is other for other in tensors((result,))):
                self._kept.offer(f"{index}.{len(outputs) + number}", tensor)
                self._values.wrote(tensor, f"{index}.{len(outputs) + number}")
        _, path, call = self._modules.stack[-1]
        self._inner.append(Call(func, facts.name, arguments, outputs, path, call, first, len(self._ops)))
        return result

    def _overwritten(self, old: Ref, new: Ref, into: Layout, part: Layout, current: Ref) -> None:
        _, path, call = self._modules.stack[-1]
        arguments = {"old": old, "new": new, "into": into, "part": part}
        index = int(new.key.partition(".")[0])
        made = Call(None, "overwrite", arguments, (current,), path, call, index, index)
        self.calls.made.append(made)

    def _arguments(self, func, args: tuple, kwargs: dict) -> dict[str, Any]:
        """All arguments by the names of the schema, tensors as references."""
        found = {}
        for position, argument in enumerate(func._schema.arguments):
            if position < len(args):
                found[argument.name] = self._refer(args[position])
            elif argument.name in kwargs:
                found[argument.name] = self._refer(kwargs[argument.name])
            elif argument.has_default_value():
                found[argument.name] = argument.default_value
        return found

    def _refer(self, value):
        if isinstance(value, Tensor):
            return self._values.of(value)
        if isinstance(value, (list, tuple)):
            return tuple(map(self._refer, value))
        return value

    def entered(self, kind: str, given) -> None:
        """A module of that class is called."""
        _, path, call = self._modules.stack[-1]
        around = self._open[-1] if self._open else -1
        self._open.append(len(self.calls.modules))
        with _C.DisableTorchFunction():
            inputs = tuple(map(self._values.of, tensors(given)))
        self.calls.modules.append(ModuleCall(path, kind, call, around, len(self._ops), inputs=inputs))

    def left(self, named: dict, output) -> None:
        """The module that was called last is done; what it was given by name is told only now."""
        if self._open:
            made = self.calls.modules[self._open.pop()]
            with _C.DisableTorchFunction():
                made.last, made.outputs = len(self._ops), tuple(map(self._values.of, _within(output)))
                made.named = tuple(map(self._values.of, tensors(named.values())))

    def over(self) -> None:
        """Lets go of the run's tensors."""
        self._modules.told = self._values = self._inner = None

    def returned(self, output) -> None:
        """The run has returned this."""
        with _C.DisableTorchFunction():
            self.calls.outputs = tuple(map(self._values.of, _within(output)))


@contextmanager
def above():
    """Shows composite ops to the dispatch mode of this thread."""
    with _C._ExcludeDispatchKeyGuard(AUTOGRAD):
        yield
