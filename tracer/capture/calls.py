"""The calls that a model's code makes, with their arguments, numbers and source lines."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from types import CodeType, FrameType, MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tracer.capture.tensors import Layout, Ref, ValueVersions, address, named_tensors, refer
from tracer.capture.tensors import output_tensors as returned_tensors
from tracer.ops import LINEAR, MATMULS, NO_LABEL, RESHAPES, SOFTMAXES, Op, ops_with, schema
from tracer.record import Source
from tracer.utils.torch_internals import (
    HigherOrderOperator,
    function_schema,
    has_composite_kernel,
    pop_dispatch_mode,
    push_dispatch_mode,
    restore_autograd_keys,
)

# Model's own source line for an op: the innermost frame that is neither torch's nor the recorder's.

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_RECORDER = os.path.dirname(os.path.abspath(__file__)) + os.sep


_models: dict[int, tuple[bool, CodeType]] = {}
"""Whether code is the model's, by the code's id, since its hash reads all names and constants in it and every op asks
for a few frames; code that is held here keeps its id."""


def _is_models(code: CodeType) -> tuple[bool, CodeType]:
    if len(_models) > 10_000:
        _models.clear()
    entry = _models[id(code)] = not code.co_filename.startswith((_TORCH, _RECORDER, "<frozen")), code
    return entry


Span = tuple[int, int, int, int]
"""Part of a source: the line and the column, in bytes, where it begins and where it ends."""
Frame = tuple[str, Span]
"""A frame of the model's code: its file, and the expression that it evaluates."""
Stack = tuple[Frame, ...]
"""Frames of the model's code, the innermost first."""
_RECORD = _RECORDER + "__init__.py", "record"
_spans: dict[int, tuple[CodeType, list[tuple]]] = {}
"""Positions of the instructions of code, by the code's id."""


def span_of(frame: FrameType) -> Span:
    """Return the part of the source that a frame evaluates now; its line where that is all that is known."""
    code = frame.f_code
    if (entry := _spans.get(id(code))) is None:
        if len(_spans) > 10_000:
            _spans.clear()
        entry = _spans[id(code)] = code, list(code.co_positions())
    first, last, start, end = entry[1][frame.f_lasti // 2]
    if None in (first, last, start, end):
        return frame.f_lineno, 0, frame.f_lineno, 0
    return first, start, last, end


def locate(stop) -> tuple[tuple[str, int], Frame] | tuple[None, None]:
    """Return (file, line) of the model's frame that is running now, and its expression; None if the frame of code
    `stop` comes first."""
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code is stop:
            return None, None
        if (_models.get(id(code)) or _is_models(code))[0]:
            return (code.co_filename, frame.f_lineno), (code.co_filename, span_of(frame))
        frame = frame.f_back
    return None, None


def frame_of_model() -> FrameType | None:
    """Return the innermost frame of the model's code that is running now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (_models.get(id(frame.f_code)) or _is_models(frame.f_code))[0]:
        frame = frame.f_back
    return frame


def stack() -> Stack:
    """Return the frames of the model's code that are running now, up to the recorder that called it."""
    frames: list[Frame] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code.co_filename, frame.f_code.co_name) != _RECORD:
        if (_models.get(id(frame.f_code)) or _is_models(frame.f_code))[0]:
            frames.append((frame.f_code.co_filename, span_of(frame)))
        frame = frame.f_back
    return tuple(frames) if frame is not None else ()


@lru_cache(maxsize=8192)
def source(file: str, line: int) -> Source:
    """Return the text of the line; the file is named relative to Python's import path."""
    return Source(_short(file), line, linecache.getline(file, line).strip())


def _short(file: str) -> str:
    folders = [os.path.join(os.path.abspath(folder), "") for folder in sys.path]
    inside = [folder for folder in folders if file.startswith(folder)]
    return file[len(max(inside, key=len)) :] if inside else os.path.basename(file)


# Per-op facts of the recorder from PyTorch's schemas; op categories are in `tracer.ops`.

VIEWS = RESHAPES | ops_with("alias", "copy")
"""Ops that keep the elements in order; `view` and `clone` + `_unsafe_view` are one reshape in two spellings."""

PROJECTIONS = MATMULS | LINEAR
"""Ops that make queries: their last axis is of features."""
ATTENTION = {
    **dict.fromkeys(LINEAR, "mixing"),
    **dict.fromkeys(MATMULS, "product"),
    **dict.fromkeys(SOFTMAXES | ops_with("log-softmax"), "softmax"),
    **dict.fromkeys(ops_with("score"), "elementwise"),
    **dict.fromkeys(ops_with("reduce"), "reduction"),
}
"""What part an op may have in attention that is written out; fused kernels go by their own names."""

UNDECLARED_WRITES = dict.fromkeys(("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"), (3, 4))
"""Argument positions that an op writes to although its schema does not say so: running mean and variance."""


class OpKind(NamedTuple):
    """Facts of one op from its schema: name, `plain` without the mark of one that writes, its entry in the table of
    ops, argument names, positions that it writes to, whether it only changes the layout, its part in attention, whether
    it takes lists of tensors, whether its other arguments say where axes go, the defaults of those whose arguments are
    recorded, the defaults of optional arguments by name, whether it takes functions, whether it is composite, and
    whether it is one of PyTorch's own that writes to nothing and is never decomposed."""

    name: str
    plain: str
    op: Op
    arguments: tuple[str, ...]
    written: tuple[int, ...]
    layout: bool
    attention: str
    lists: bool
    func: object
    axis_arguments: bool = False
    defaults: tuple = ()
    optional: Mapping[str, Any] = MappingProxyType({})
    higher: bool = False
    composite: bool = False
    whole: bool = False


_kinds: dict[int, OpKind] = {}
"""By the id of the `OpOverload`, whose hash is two calls deep and asked for at every op; an op that is held here keeps
its id."""


def kind(func) -> OpKind:
    """Read an `OpOverload`'s schema once; `aten.add.Tensor` is named `add`, foreign ops keep their namespace."""
    return _kinds.get(id(func)) or _read(func)


def _read(func) -> OpKind:
    if isinstance(func, HigherOrderOperator):
        facts = _kinds[id(func)] = OpKind(
            name := f"higher_order.{func.name()}", name, schema(name), (), (), False, "", True, func, higher=True
        )
        return facts
    space, _, name = function_schema(func).name.partition("::")
    arguments = function_schema(func).arguments
    written = tuple(i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write)
    written += UNDECLARED_WRITES.get(name, ())
    own = space == "aten"
    prefix, plain = "" if own else f"{space}.", name.rstrip("_")
    op = schema(prefix + name)
    fused = name.startswith("_scaled_dot_product_") and "backward" not in name
    part = "fused" if fused else ATTENTION.get(plain, "")
    facts = _kinds[id(func)] = OpKind(
        name=prefix + name,
        plain=prefix + plain,
        op=op,
        arguments=tuple(a.name for a in arguments),
        written=written,
        layout=op.is_layout,
        attention=part,
        lists=any("List[" in str(a.type) and "Tensor" in str(a.type) for a in arguments),
        func=func,
        defaults=tuple(a.default_value for a in arguments) if op.size_rule not in ("", "merge") else (),
        axis_arguments=op.is_layout or part == "reduction" or bool(op.traits & {"concat", "stack"}),
        optional={a.name: a.default_value for a in arguments if a.has_default_value()},
        composite=(composite := own and has_composite_kernel(func)),
        whole=own and not written and not composite,
    )
    return facts


def settings(facts: OpKind, args: tuple, kwargs: dict) -> tuple:
    """Return all arguments of an op's call as plain data: None for tensors, tuples for lists."""
    values = [*args, *facts.defaults[len(args) :]]
    if kwargs:
        values = [kwargs.get(name, value) for name, value in zip(facts.arguments, values, strict=True)]
    return tuple(
        [None if isinstance(value, Tensor) else tuple(value) if isinstance(value, list) else value for value in values]
    )


def written_tensors(facts: OpKind, args: tuple, kwargs: dict) -> Iterator[Tensor]:
    """Yield the tensors among an op's arguments that it writes to."""
    for position in facts.written:
        value = args[position] if position < len(args) else kwargs.get(facts.arguments[position])
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from value


def tensors(values) -> list[Tensor]:
    """Return the tensors among an op's arguments, also in lists."""
    flat = []
    for value in values:
        if isinstance(value, Tensor):
            flat.append(value)
        elif isinstance(value, (list, tuple)):
            flat += tensors(value)
    return flat


# Composite ops that a forward called, above the ops that PyTorch ran for them: `linear` above `t` and `addmm`.
#
# While the keys of autograd are left out, a dispatch mode meets an op before it is taken apart. The op is then run as
# it would have been, with those keys back and the mode inside once more: both levels are of one run, whose ops, results
# and gradients are those of a run that nobody looks at.

SCALAR_TYPES = frozenset((int, float, bool, str, type(None), torch.dtype))
"""What most arguments are that are not tensors."""


class Call(NamedTuple):
    """One composite op: `op` is its entry in the table of ops, whatever form `name` has, and its arguments are by the
    names of its schema, with a `Ref` for each tensor, also in lists. The ops that it ran are `ops[first]` to
    `ops[last - 1]`, and `inner` has the calls inside it.

    A write into a part of a tensor's memory is a call of its own, `overwrite`, which gives the tensor's new value from
    `old`, `new` and their places in the memory, `into` and `part`.
    """

    func: Any
    op: Op
    name: str
    arguments: dict[str, Any]
    outputs: tuple[Ref, ...]
    module: str
    call: int
    first: int
    last: int
    inner: tuple[Call, ...] = ()


OVERWRITE = schema("overwrite")
"""The entry of a write into a part of a tensor's memory."""


def all_calls(calls: Iterable[Call]) -> Iterator[Call]:
    """Yield calls, each before those inside it."""
    for call in calls:
        yield call
        yield from all_calls(call.inner)


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


class ChangedValue(NamedTuple):
    """A value of the run that an intervention replaced: `after` stands in the place of `before`.

    The calls `made[first]` to `made[last - 1]` computed it. `text` says what the change is. `behind_heads` is the
    number of axes behind the one that heads lie along; None without such an axis.
    """

    before: Ref
    after: Ref
    first: int
    last: int
    text: str
    behind_heads: int | None = None


@dataclass
class CallLog:
    """Calls of one run and the calls of its modules, both in order. `changes` are the values that interventions
    replaced."""

    entries: list[Call] = field(default_factory=list)
    modules: list[ModuleCall] = field(default_factory=list)
    inputs: tuple[Ref, ...] = ()
    outputs: tuple[Ref, ...] = ()
    places: tuple[str, ...] = ()
    """Where each of the outputs stands in what was returned: `logits`, `[1]`, "" for the value itself."""
    weights: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The shapes of all parameters and buffers by their keys, also of those that the run did not take."""
    ties: dict[str, str] = field(default_factory=dict)
    """Key of each parameter and buffer by its other keys: a tied one is the same tensor in several modules."""
    changes: list[ChangedValue] = field(default_factory=list)

    def without_changes(self) -> CallLog:
        """Return the calls as if no value had been replaced: changed values are read as those before the change, and
        the calls that computed them are left out."""
        if not self.changes:
            return self
        before: dict[str, Ref] = {}
        for change in self.changes:  # a change of a changed value leads to the first
            before[change.after.key] = before.get(change.before.key, change.before)
        dropped_calls = {index for change in self.changes for index in range(change.first, change.last)}

        def restore(value: Any) -> Any:
            if type(value) is Ref:
                return before.get(value.key, value)
            return tuple(map(restore, value)) if type(value) is tuple else value

        def restore_call(call: Call) -> Call:
            arguments = {name: restore(value) for name, value in call.arguments.items()}
            return call._replace(arguments=arguments, inner=tuple(map(restore_call, call.inner)))

        modules = [
            replace(module, inputs=restore(module.inputs), outputs=restore(module.outputs), named=restore(module.named))
            for module in self.modules
        ]
        restored_calls = [restore_call(call) for index, call in enumerate(self.entries) if index not in dropped_calls]
        return CallLog(restored_calls, modules, self.inputs, restore(self.outputs), self.places, self.weights)

    @cached_property
    def signature(self) -> int:
        """Hash that is equal for runs of the same calls, whatever the values; read it once all is recorded."""
        outlines = tuple([_outline(call) for call in self.entries])
        modules = tuple([tuple(vars(module).values()) for module in self.modules])
        return hash((outlines, modules, self.inputs, self.outputs, self.places, tuple(self.changes)))

    def plan(self) -> int:
        """Return a hash that is equal for runs of the same calls up to sizes: shapes and whole numbers are left out."""
        outline: list[object] = []
        for call in self.entries:
            keys = map(_keys, call.arguments.values())
            outline.append((call.name, call.module, call.call, call.first, call.last, *call.arguments, *keys))
            outline.append(_keys(call.outputs))
        changes = tuple(
            (change.before.key, change.after.key, change.first, change.last, change.text) for change in self.changes
        )
        return hash((tuple(outline), _keys(self.inputs), _keys(self.outputs), self.places, changes))


def _outline(call: Call) -> tuple:
    """Return a call's arguments and outputs."""
    # as text: the hashes of 1 and True, and of -1 and -2, are the same
    arguments = [value if type(value) is Ref else repr(value) for value in call.arguments.values()]
    return call.name, call.module, call.call, call.first, call.last, call.outputs, *call.arguments, *arguments


def _left_out(labels: Tensor, ignored: int) -> bool:
    """Return whether one of the labels is the one that a loss ignores; False inside of `torch.func`, where values can't
    be read."""
    with torch.DisableTorchFunction():
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


def is_undecomposed(facts: OpKind, args: tuple, kwargs: dict) -> bool:
    """Return whether a composite op reached a mode before it was decomposed: autograd does that, which never meets the
    tensors of inference mode."""
    if not facts.composite:
        return False
    operands = tensors((*args, *kwargs.values()))
    return torch.is_inference_mode_enabled() or any(tensor.is_inference() for tensor in operands)


def decompose_composites(observe: Callable) -> Callable:
    """Return `observe` for the ops of which composite ones consist, where autograd did not decompose these."""

    def observe_decomposed(mode, func, types, args=(), kwargs=None):
        if is_undecomposed(kind(func), args, kwargs or {}):
            return run_decomposed(mode, func, args, kwargs or {})
        return observe(mode, func, types, args, kwargs)

    return observe_decomposed


def run_decomposed(mode, func, args, kwargs) -> Any:
    """Run a composite op by its kernel, whose ops pass the mode."""
    push_dispatch_mode(mode)
    try:
        return func.decompose(*args, **kwargs)
    finally:
        pop_dispatch_mode()


class CallRunner:
    """Base of observers of calls: runs an op or a call, so that autograd is passed once, and hands an op inside of a
    call to `_op`, and a call that is none to `_call`."""

    _alone = False
    """True while an op that is a call by itself runs, which has not been through autograd yet."""
    _inside = False
    """True while the ops of a call run."""

    def observer(self, observe: Callable) -> Callable:
        """Return `observe`, which records each op, with the calls around it."""

        def both(mode, func, types, args=(), kwargs=None):
            facts, kwargs = kind(func), kwargs or {}
            if facts.higher:  # the ops that it runs are calls of their own
                return self._run_inside(observe, mode, func, types, args, kwargs)
            if self._inside:
                if is_undecomposed(facts, args, kwargs):
                    return run_decomposed(mode, func, args, kwargs)
                return self._op(facts, observe, mode, func, types, args, kwargs)
            if facts.whole and not torch.is_grad_enabled():  # with gradients, an op may run others for them
                self._alone = True
                try:
                    return self._op(facts, observe, mode, func, types, args, kwargs)
                finally:
                    self._alone = False
            return self._call(facts, mode, func, args, kwargs)

        return both

    def _run_inside(self, run: Callable, *arguments) -> Any:
        """Run a function; the ops in it are not above others."""
        inside, self._inside = self._inside, True
        try:
            return run(*arguments)
        finally:
            self._inside = inside

    def _op(self, facts: OpKind, observe, mode, func, types, args, kwargs) -> Any:
        raise NotImplementedError

    def _call(self, facts: OpKind, mode, func, args, kwargs) -> Any:
        raise NotImplementedError

    def run(self, func, args, kwargs) -> Any:
        """Run an op."""
        if not self._alone:
            return func(*args, **kwargs) if kwargs else func(*args)
        with restore_autograd_keys():
            return func(*args, **kwargs) if kwargs else func(*args)

    @staticmethod
    def run_call(mode, func, args, kwargs) -> Any:
        """Run a call; its ops pass the mode."""
        with restore_autograd_keys():
            push_dispatch_mode(mode)
            try:
                return func(*args, **kwargs)
            finally:
                pop_dispatch_mode()


class CallRecorder(CallRunner):
    """Recorder of calls: its observer of ops also sees calls."""

    def __init__(self, recording, makers_named: dict[str, Tensor], modules):
        self.calls = CallLog()
        self._ops, self._store, self._modules = recording.ops, recording.store, modules
        self._attentions = recording.attentions
        with torch.DisableTorchFunction():
            self._values = ValueVersions(makers_named, recording.store, self._record_overwrite)
            self.calls.inputs = tuple(map(self._values.of, recording.inputs.values()))
            self.calls.weights = {key: tuple(tensor.shape) for key, tensor in makers_named.items()}
        self._open: list[int] = []
        self._entries = self.calls.entries

    def _call(self, facts: OpKind, mode, func, args, kwargs):
        first, entries, inner = len(self._ops), self._entries, list[Call]()
        arguments, self._entries = self._arguments(facts, args, kwargs), inner
        try:
            result = self._run_inside(self.run_call, mode, func, args, kwargs)
        finally:
            self._entries = entries
        outputs = self._outputs(result)
        _, path, call = self._modules.stack[-1]
        if len(inner) == 1 and inner[0].name == facts.name:
            inner = []
        last = len(self._ops)
        entries.append(Call(func, facts.op, facts.name, arguments, outputs, path, call, first, last, tuple(inner)))
        return result

    def _outputs(self, result) -> tuple[Ref, ...]:
        if isinstance(result, Tensor):
            return (self._values.of(result),)
        return tuple([self._values.of(tensor) for tensor in tensors((result,))])

    def _op(self, facts: OpKind, observe, mode, func, types, args, kwargs):
        first, values = len(self._ops), self._values
        arguments = self._arguments(facts, args, kwargs)
        changed = tuple(written_tensors(facts, args, kwargs)) if facts.written else ()
        result = observe(mode, func, types, args, kwargs)
        index = len(self._ops) - 1
        if changed:
            outputs = self._written_outputs(index, changed, tensors((result,)))
        elif isinstance(result, Tensor):
            shape, dtype, _ = self._ops[index].outputs[0]
            outputs = (values.record(result, Ref(f"{index}.0", shape, dtype)),)
        else:
            described = enumerate(self._ops[index].outputs)
            keyed = [Ref(f"{index}.{position}", shape, dtype) for position, (shape, dtype, _) in described]
            outputs = tuple(map(values.record, tensors((result,)), keyed))
        _, path, call = self._modules.stack[-1]
        entry = Call(func, facts.op, facts.name, arguments, outputs, path, call, first, len(self._ops))
        self._entries.append(entry)
        return result

    def _written_outputs(self, index: int, changed: tuple[Tensor, ...], results: list[Tensor]) -> tuple[Ref, ...]:
        """Return the outputs of an op that has written into some tensors."""
        values = self._values
        outputs = tuple(
            values.wrote(tensor, f"{index}.{position}")
            if any(tensor is candidate for candidate in changed)
            else values.record(tensor, refer(tensor, f"{index}.{position}"))
            for position, tensor in enumerate(results)
        )
        for number, tensor in enumerate(changed):  # a write that the op does not return: running means, for instance
            if not any(tensor is candidate for candidate in results):
                self._store.offer(f"{index}.{len(outputs) + number}", tensor)
                values.wrote(tensor, f"{index}.{len(outputs) + number}")
        return outputs

    def _record_overwrite(self, old: Ref, new: Ref, into: Layout, part: Layout, current: Ref) -> None:
        _, path, call = self._modules.stack[-1]
        arguments = {"old": old, "new": new, "into": into, "part": part}
        index = int(new.key.partition(".")[0])
        overwrite = Call(None, OVERWRITE, OVERWRITE.name, arguments, (current,), path, call, index, index)
        self._entries.append(overwrite)

    def _arguments(self, facts: OpKind, args: tuple, kwargs: dict) -> dict[str, Any]:
        """Return all arguments by the names of the schema, tensors as references."""
        names = facts.arguments
        arguments: dict[str, Any] = {}
        for name, value in zip(names, args, strict=False):
            if isinstance(value, Tensor):
                value = self._values.of(value)
            elif type(value) not in SCALAR_TYPES:
                value = self._refer(value)
            arguments[name] = value
        for name in names[len(args) :]:
            if name in kwargs:
                arguments[name] = self._refer(kwargs[name])
            elif name in facts.optional:
                arguments[name] = facts.optional[name]
        if "identity" in facts.op.traits and type(arguments[names[0]]) in (bool, int, float):  # inside of `torch.func`
            arguments[names[0]] = self._values.of(torch.tensor(arguments[names[0]]))
        ignored = arguments["ignore_index"] if "leaves-out" in facts.op.traits else 0
        if ignored < 0 and not _left_out(args[names.index("target")], ignored):  # no class, and no label is that
            arguments["ignore_index"] = NO_LABEL
        return arguments

    def _refer(self, value):
        if isinstance(value, Tensor):
            return self._values.of(value)
        if isinstance(value, (list, tuple)):
            return tuple([item if type(item) in SCALAR_TYPES else self._refer(item) for item in value])
        return value

    def enter(self, kind: str, arguments) -> None:
        """Record that a module of that class is called."""
        _, path, call = self._modules.stack[-1]
        around = self._open[-1] if self._open else -1
        self._open.append(len(self.calls.modules))
        with torch.DisableTorchFunction():
            inputs = self._refs(tensors(arguments))
        self.calls.modules.append(ModuleCall(path, kind, call, around, len(self._ops), inputs=inputs))

    def leave(self, named: dict, output) -> None:
        """Record the return of the module called last; its named arguments are known only now."""
        if self._open:
            module_call = self.calls.modules[self._open.pop()]
            with torch.DisableTorchFunction():
                outputs = [tensor for _, tensor in named_tensors("", output)]
                module_call.last, module_call.outputs = len(self._ops), self._refs(outputs)
                module_call.named = self._refs(tensors(named.values()))

    def _refs(self, values: list[Tensor]) -> tuple[Ref, ...]:
        """Return references to a module's inputs or outputs; inside of `torch.func`, these differ from those of the
        ops."""
        known = self._values.known
        own = (
            tensor
            for tensor in values
            if known(tensor) or tensor.layout is not torch.strided or address(tensor) is not None
        )
        return tuple(map(self._values.of, own))

    @contextmanager
    def changing(self, value: Tensor, text: str, behind_heads: int | None = None) -> Iterator[list[Tensor]]:
        """Record that the calls of the block replace a value, by the tensor that the block puts into the list."""
        first, replacement = len(self.calls.entries), list[Tensor]()
        with torch.DisableTorchFunction():
            before = self._values.of(value)
        yield replacement
        with torch.DisableTorchFunction():
            after = self._values.of(replacement[0])
        self.calls.changes.append(ChangedValue(before, after, first, len(self.calls.entries), text, behind_heads))
        if self._attentions is not None:
            self._attentions.replace(before.key, after.key)

    def over(self) -> None:
        """Release the run's tensors."""
        self._modules.call_recorder = None
        del self._values

    def record_output(self, output) -> None:
        """Record the output of the run."""
        with torch.DisableTorchFunction():
            returned = returned_tensors(output)
            self.calls.outputs = tuple(self._values.of(tensor) for _, tensor in returned)
            self.calls.places = tuple(name for name, _ in returned)
