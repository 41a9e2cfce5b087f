"""Python numbers in the arguments of a run's calls, besides the shapes by which runs at other sizes are compared.

A recording of all calls holds arguments, references and values; to solve numbers, none but the numbers are wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tracer.capture.composite_calls import Call, CallRunner
from tracer.capture.op_schema import OpKind, kind, tensors
from tracer.capture.tensors.producers import CONSTANT
from tracer.ops import NO_LABEL, ops_with

MAX_NUMEL = 1 << 20
"""Largest number of elements of a tensor that is compared between runs."""

NUMERIC = frozenset((int, float))
FLAGS = frozenset((bool, str, complex, type(None), torch.dtype))
"""Arguments that are not numbers and say what a call computes."""
SHAPE_CALLS = ops_with("shape-arguments")
"""Calls whose numbers are sizes and axes, which the shapes of what they give say already."""


class Scalars(NamedTuple):
    """Numbers in one call's arguments, by name: an int, a float, or a tuple of these; of a probe also calls of
    several ops without any. The ops that it ran are `first` to `last - 1`, and `flags` are its other arguments, but
    tensors."""

    name: str
    first: int
    last: int
    values: Mapping[str, Any]
    flags: Mapping[str, Any] = {}


def scalars_of(calls: Iterable[Call]) -> Iterator[Scalars]:
    """Yield the numbers of recorded calls, also of those inside of others."""
    for call in calls:
        yield from scalars_of(call.inner)
        values: dict[str, Any] = {}
        flags: dict[str, Any] = {}
        for name, value in call.arguments.items() if call.func is not None and call.name not in SHAPE_CALLS else ():
            _put(values, flags, name, value)
        if values or flags:
            yield Scalars(call.name, call.first, call.last, values, flags)


class ScalarRecorder(CallRunner):
    """Recorder of numbers: builds an observer of ops that also notes the numbers of the calls above them."""

    def __init__(self, recording):
        self.scalars: list[Scalars] = recording.scalars
        self._ops = recording.ops
        self._within = False

    def observer(self, observe: Callable) -> Callable:
        """Return `observe`, which records each op, with the numbers of the calls around it."""

        def both(mode, func, types, args=(), kwargs=None):
            facts = kind(func)
            if facts.higher:
                return self._inside(observe, mode, func, types, args, kwargs)
            if self._within:
                return self._op(facts, observe, mode, func, types, args, kwargs)
            if facts.whole and not torch.is_grad_enabled():
                self._within = self._alone = True
                try:
                    return self._op(facts, observe, mode, func, types, args, kwargs)
                finally:
                    self._within = self._alone = False
            return self._call(facts, mode, func, args, kwargs or {})

        return both

    def _inside(self, observe, *call):
        """Run an op that takes functions: the ops that it runs are calls of their own, and not above others."""
        within, self._within = self._within, True
        try:
            return observe(*call)
        finally:
            self._within = within

    def _call(self, facts: OpKind, mode, func, args, kwargs):
        first, self._within = len(self._ops), True
        try:
            return self.run_call(mode, func, args, kwargs)
        finally:
            self._within = False
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
        arguments = dict(zip(facts.arguments, args, strict=False)) | (kwargs or {})
        for name, value in {**facts.optional, **arguments}.items():
            _put(values, flags, name, value)
        if values or flags or len(self._ops) - first > 1:
            self.scalars.append(Scalars(facts.name, first, len(self._ops), values, flags))


def _put(values: dict[str, Any], flags: dict[str, Any], name: str, value) -> None:
    """Put an argument among the numbers if it is one, else among the flags."""
    if (type(value) is int or type(value) is float) and value != NO_LABEL:
        values[name] = value
    elif type(value) in FLAGS:
        flags[name] = value
    elif isinstance(value, (list, tuple)) and value and {*map(type, value)} <= NUMERIC:
        values[name] = tuple(value)


def digesting(observe: Callable, recording) -> Callable:
    """Return `observe`, with a digest of each tensor that an op reads and no op of the run produced: inputs from
    computations outside PyTorch differ with the input, and no op shows it."""
    ops, constants = recording.ops, recording.constants
    known: dict[int, tuple[Tensor, bytes]] = {}

    def look(mode, func, types, args=(), kwargs=None):
        index = len(ops)
        result = observe(mode, func, types, args, kwargs)
        if len(ops) == index + 1:
            for place, (_, _, maker) in enumerate(ops[index].inputs):
                if maker == CONSTANT:
                    tensor = tensors((*args, *(kwargs or {}).values()))[place]
                    if id(tensor) not in known:
                        known[id(tensor)] = tensor, _digest(tensor)
                    constants[index, place] = known[id(tensor)][1]
        return result

    return look


def _digest(tensor: Tensor) -> bytes:
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
