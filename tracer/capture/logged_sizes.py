"""Sizes and numbers that the code of a model reads: of tensors, and from Python."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tracer.capture.calls import Call, CallRunner, OpKind, Stack, frame_of_model, stack
from tracer.capture.tensors import Ref, indexed_axes
from tracer.ops import NO_LABEL, ops_with

# Python numbers in the arguments of a run's calls, besides the shapes by which runs at other sizes are compared.
#
# A recording of all calls holds arguments, references and values; to solve numbers, none but the numbers are wanted.

MAX_NUMEL = 1 << 20
"""Largest number of elements of a tensor that is compared between runs."""

NUMERIC = frozenset((int, float))
FLAGS = frozenset((bool, str, complex, type(None), torch.dtype))
"""Arguments that are not numbers and say what a call computes."""
SHAPE_CALLS = ops_with("shape-arguments")
"""Calls whose numbers are sizes and axes, which the shapes of what they give say already."""


class Scalars(NamedTuple):
    """Numbers in one call's arguments, by name: an int, a float, or a tuple of these; of a probe also calls of
    several ops without any. The ops that it ran are `first` to `last - 1`. Its tensors have `ranks`, and `flags` are
    its other arguments."""

    name: str
    first: int
    last: int
    values: Mapping[str, Any]
    flags: Mapping[str, Any] = {}
    ranks: Mapping[str, int] = {}

    @classmethod
    def of(cls, call: Call) -> Scalars:
        """Return the numbers of a recorded call."""
        values: dict[str, Any] = {}
        flags: dict[str, Any] = {}
        for name, value in call.arguments.items():
            _put(values, flags, name, value)
        ranks = {name: len(value.shape) for name, value in call.arguments.items() if isinstance(value, Ref)}
        return cls(call.name, call.first, call.last, values, flags, ranks)

    def is_like(self, call: Scalars) -> bool:
        """Return whether a call of the same name in another run has the same numbers, flags and ranks."""
        return (self.values, self.flags, self.ranks) == (call.values, call.flags, call.ranks)


def scalars_of(calls: Iterable[Call]) -> Iterator[Scalars]:
    """Yield the numbers of recorded calls, also of those inside of others."""
    for call in calls:
        yield from scalars_of(call.inner)
        if call.func is not None and call.name not in SHAPE_CALLS:
            scalars = Scalars.of(call)
            if scalars.values or scalars.flags:
                yield scalars


class ScalarRecorder(CallRunner):
    """Recorder of numbers: its observer of ops also notes the numbers of the calls above them."""

    def __init__(self, recording):
        self.scalars: list[Scalars] = recording.scalars
        self._ops = recording.ops

    def _call(self, facts: OpKind, mode, func, args, kwargs):
        first = len(self._ops)
        try:
            return self._run_inside(self.run_call, mode, func, args, kwargs)
        finally:
            self._note(facts, first, args, kwargs)

    def _op(self, facts: OpKind, observe, mode, func, types, args, kwargs):
        first = len(self._ops)
        result = observe(mode, func, types, args, kwargs)
        self._note(facts, first, args, kwargs)
        return result

    def _note(self, facts: OpKind, first: int, args, kwargs) -> None:
        if facts.name in SHAPE_CALLS:
            return
        values: dict[str, Any] = {}
        flags: dict[str, Any] = {}
        arguments = dict(zip(facts.arguments, args, strict=False)) | kwargs
        for name, value in {**facts.optional, **arguments}.items():
            _put(values, flags, name, value)
        if values or flags or len(self._ops) - first > 1:
            ranks = {name: value.dim() for name, value in arguments.items() if isinstance(value, Tensor)}
            self.scalars.append(Scalars(facts.name, first, len(self._ops), values, flags, ranks))


def _put(values: dict[str, Any], flags: dict[str, Any], name: str, value) -> None:
    """Put an argument among the numbers if it is one, else among the flags."""
    if (type(value) is int or type(value) is float) and value != NO_LABEL:
        values[name] = value
    elif type(value) in FLAGS:
        flags[name] = value
    elif isinstance(value, (list, tuple)) and value and {*map(type, value)} <= NUMERIC:
        values[name] = tuple(value)


def digest(tensor: Tensor) -> bytes:
    """Return a digest of a tensor's numbers; empty for a tensor that has none to read, or too many."""
    if (
        tensor.is_meta
        or tensor.layout is not torch.strided
        or type(tensor) not in (Tensor, torch.nn.Parameter)
        or not 0 < tensor.numel() <= MAX_NUMEL
    ):
        return b""
    numbers = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return blake2b(numbers.numpy().tobytes(), digest_size=16).digest()


# Sizes that log their comparisons: in a run, the numbers that code reads from the shapes of tensors are integers that
# note each comparison of them, or of what is computed from them, such as `T // 2 > 8`.

READS = frozenset({Tensor.shape.__get__, Tensor.size})  # type: ignore[attr-defined]
"""Functions by which code reads sizes."""
COUNTS = frozenset({Tensor.numel, Tensor.nelement, torch.numel, Tensor.nbytes.__get__})  # type: ignore[attr-defined]
"""Functions by which code reads products of sizes."""
ITERATIONS = frozenset({Tensor.__len__, Tensor.__iter__, Tensor.unbind, torch.unbind, Tensor.tolist})
"""Functions that hand code as many items as an axis is long."""
INDEXING = frozenset({Tensor.__getitem__, Tensor.__setitem__})
SPLITS = {
    Tensor.split: "split_size",
    torch.split: "split_size_or_sections",
    Tensor.chunk: "chunks",
    torch.chunk: "chunks",
}
"""Functions that return as many tensors as an axis has parts of a size, or at most as many as they are asked for."""
DEEPEST = 12
"""Largest number of operations from a size to a number that is still followed."""
MAX_COMPARISONS = 1000
"""Largest number of different comparisons that are logged in a run."""

DIVISIONS = frozenset({operator.__floordiv__, operator.__mod__})
ROUNDINGS = frozenset({round, math.ceil, math.floor, int})
Term = Any
"""A number that follows from sizes: a number of the code, a `Read`, or a tuple of a function and its terms."""


class Read(NamedTuple):
    """A size that code reads: its number in a run, or its formula."""

    size: int | str


class Comparison(NamedTuple):
    """A comparison of two terms, as a function of their values."""

    compare: Callable[[float, float], bool]
    left: Term
    right: Term


class SizeLog(TorchFunctionMode):
    """A mode in which sizes that code reads from tensors log their `comparisons`, in order, each once, with the frames
    of the first. `reads` has the shapes of the tensors whose sizes are read, or counted, at each line."""

    def __init__(self):
        super().__init__()
        self.comparisons: dict[Comparison, Stack] = {}
        self.reads: dict[tuple[str, int], set[tuple[int, ...]]] = {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in INDEXING:
            self._note_slices(args[0], args[1])
        elif func in SPLITS:
            self._note_parts(SPLITS[func], *args, **(kwargs or {}))
        reads = func in READS or func in COUNTS or func in ITERATIONS or func in SPLITS
        if reads and (frame := frame_of_model()) is not None:
            self.reads.setdefault((frame.f_code.co_filename, frame.f_lineno), set()).add(_sizes(args[0]))
        result = func(*args, **kwargs) if kwargs else func(*args)
        if func in READS:
            if isinstance(result, torch.Size):
                return torch.Size([self._read(size) for size in result])
            return self._read(result)
        if func in COUNTS:
            sizes = _sizes(args[0])
            return math.prod(map(self._read, sizes), start=result // (math.prod(sizes) or 1)) if sizes else result
        return result

    def _note_slices(self, tensor: Any, index: Any) -> None:
        """Note the comparison of the end of each slice with the length of its axis: PyTorch leaves out a slice of a
        whole axis, so no op shows the end that the code asked for. An index that follows from sizes may not exist."""
        sizes = _sizes(tensor)
        for item, axis in indexed_axes(index if isinstance(index, tuple) else (index,), len(sizes)):
            end = item.stop if isinstance(item, slice) else item + 1 if isinstance(item, LoggedInt) else None
            if isinstance(end, int) and _plain(end) > 0 and _plain(end) != sizes[axis]:
                self.note(operator.le, _term(end), Read(sizes[axis]))

    def _note_parts(self, name: str, tensor: Any, *args: Any, dim: int = 0, **kwargs: Any) -> None:
        """Note the comparison of the length of an axis with the size, or the number, of the parts that it is split
        into."""
        parts, dim = (args[0] if args else kwargs.get(name)), args[1] if len(args) > 1 else dim
        sizes = _sizes(tensor)
        if isinstance(parts, int) and -len(sizes) <= dim < len(sizes) and _plain(parts) != sizes[dim]:
            self.note(operator.le, Read(sizes[dim]), _term(parts))

    def _read(self, size: Any) -> Any:
        return LoggedInt.of(size, Read(size), self) if type(size) is int else size

    def note(self, compare: Callable, left: Term, right: Term) -> None:
        """Note a comparison."""
        comparison = Comparison(compare, left, right)
        if len(self.comparisons) < MAX_COMPARISONS and comparison not in self.comparisons:
            self.comparisons[comparison] = stack()


class LoggedNumber:
    """Base of numbers that follow from sizes: they log comparisons, and so do their results."""

    term: Term
    depth: int
    log: SizeLog

    @classmethod
    def of(cls, number: Any, term: Term, log: SizeLog, depth: int = 0) -> Any:
        """Return a number as one that logs comparisons; the number itself if it is of another type."""
        kind = KINDS.get(type(number))
        if kind is None or depth > DEEPEST:
            return number
        logged = kind(number)
        logged.term, logged.log, logged.depth = term, log, depth
        return logged

    def __reduce_ex__(self, protocol):
        return type(_plain(self)), (_plain(self),)

    def apply(self, function: Callable, *operands: Any) -> Any:
        """Return the result of a function of numbers, of which this is one. Rounding to 0, and the remainder of a
        number below its divisor, are noted as comparisons, too: at larger sizes they give other numbers."""
        if function in DIVISIONS and abs(_plain(operands[0])) < abs(_plain(operands[1])):
            self.log.note(operator.lt, (abs, _term(operands[0])), (abs, _term(operands[1])))
        elif function in ROUNDINGS and abs(_plain(self)) < 1:
            self.log.note(operator.lt, (abs, self.term), 1)
        depth = 1 + max(operand.depth for operand in operands if isinstance(operand, LoggedNumber))
        return self.of(function(*map(_plain, operands)), (function, *map(_term, operands)), self.log, depth)

    def __bool__(self):
        self.log.note(operator.ne, self.term, 0)
        return bool(_plain(self))

    def __round__(self, digits=None):
        return self.apply(round, self, *([] if digits is None else [digits]))

    def __int__(self):
        return int(_plain(self.apply(int, self)))

    __trunc__ = __int__

    def __divmod__(self, other):
        return self // other, self % other

    def __rdivmod__(self, other):
        return other // self, other % self


def _plain(number: Any) -> Any:
    return PLAIN_TYPES[type(number)](number) if isinstance(number, LoggedNumber) else number


def _term(number: Any) -> Term:
    return number.term if isinstance(number, LoggedNumber) else number


def _sizes(tensor: Any) -> tuple[int, ...]:
    """Return the sizes of a tensor as plain numbers; none for anything else."""
    with torch.DisableTorchFunction():
        return tuple(tensor.shape) if isinstance(tensor, Tensor) else ()


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _arithmetic(function: Callable, reflected: bool) -> Callable:
    def method(self, other, *modulus):
        if not _is_number(other) or modulus:
            return NotImplemented
        return self.apply(function, other, self) if reflected else self.apply(function, self, other)

    return method


def _comparison(function: Callable) -> Callable:
    def method(self, other):
        if not _is_number(other):
            return NotImplemented
        self.log.note(function, self.term, _term(other))
        return function(_plain(self), _plain(other))

    return method


def _unary(function: Callable) -> Callable:
    return lambda self: self.apply(function, self)


class LoggedInt(LoggedNumber, int):
    """A whole number that follows from sizes."""

    __hash__ = int.__hash__

    def bit_length(self) -> Any:
        """Return the number of bits, as of any whole number."""
        return self.apply(int.bit_length, self)


class LoggedFloat(LoggedNumber, float):
    """A float that follows from sizes."""

    __hash__ = float.__hash__


KINDS: dict[type, Any] = {int: LoggedInt, float: LoggedFloat}
PLAIN_TYPES: dict[type, Any] = {LoggedInt: int.__int__, LoggedFloat: float.__float__}
INTEGER_OPERATORS = ("and", "or", "xor", "lshift", "rshift")
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", *INTEGER_OPERATORS):
    for _kind in (LoggedInt,) if _name in INTEGER_OPERATORS else (LoggedInt, LoggedFloat):
        _function = getattr(operator, f"__{_name}__")
        setattr(_kind, f"__{_name}__", _arithmetic(_function, False))
        setattr(_kind, f"__r{_name}__", _arithmetic(_function, True))
for _kind in (LoggedInt, LoggedFloat):
    for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(_kind, f"__{_name}__", _comparison(getattr(operator, _name)))
    for _name, _function in (("neg", operator.neg), ("abs", abs), ("ceil", math.ceil), ("floor", math.floor)):
        setattr(_kind, f"__{_name}__", _unary(_function))
