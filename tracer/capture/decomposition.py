"""PyTorch's own decomposition of an op, run on the op's arguments.

The decompositions are those that PyTorch registers, and composite kernels. An op is opened as far as they go: one that
they only say in terms of `prims`, the layer below, is a primitive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tracer.capture.dispatch_modes import observe_ops
from tracer.capture.op_schema import kind, tensors
from tracer.capture.tensors.producers import ProducerIndex
from tracer.utils.internals.torch_internals import is_decomposable, op_decomposition

ELEMENTARY = "PyTorch does not open it any further"
RANDOM = "its results are random, so it is not run a second time"


class PrimitiveEvent(NamedTuple):
    """One primitive as it ran: tensors by (shape, dtype, maker). The maker is the number of the primitive that computed
    the tensor, or says which of the op's inputs it is: `"input 0"`. `within` names the ops that were opened to reach
    it."""

    name: str
    within: str
    inputs: tuple[tuple, ...]
    outputs: tuple[tuple, ...]


class NoDecomposition(Exception):
    """An op that is not opened, and the reason."""


class DownToPrims(Exception):
    """A decomposition that went down to `prims`."""


def decompose(func, args: tuple, kwargs: dict) -> tuple[tuple[PrimitiveEvent, ...], object]:
    """Return the primitives of `func(*args, **kwargs)`, and their result. Raise `NoDecomposition` if the op has no
    others.

    Draws no random numbers, and writes into its arguments where the op does.
    """
    function, random = op_decomposition(func), torch.Tag.nondeterministic_seeded in func.tags
    if function is not None:
        lister = PrimitiveRecorder(args, kwargs)
        try:
            with torch.DisableTorchFunction():
                result = lister.run(function, args, kwargs)
            if result is not NotImplemented:
                return tuple(lister.parts), result
        except DownToPrims:
            pass
    raise NoDecomposition(RANDOM if random else ELEMENTARY)


class PrimitiveRecorder:
    """Primitives of one op: its decomposition, with the decompositions of the ops in it."""

    def __init__(self, args: tuple, kwargs: dict):
        self.parts: list[PrimitiveEvent] = []
        self._within: list[str] = []
        inputs = tensors((*args, *kwargs.values()))
        numbers = reversed(range(len(inputs)))  # what is given twice is the first of the two
        self._makers = ProducerIndex({f"input {number}": inputs[number] for number in numbers})

    def run(self, function: Callable, args: tuple, kwargs: dict) -> Any:
        """Run a decomposition and list its ops."""
        with observe_ops(self._see):
            return function(*args, **kwargs)

    def _see(self, mode, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.namespace == "prims":
            raise DownToPrims
        facts = kind(func)
        if not facts.written and (not facts.layout or is_decomposable(func)):
            opened, result = self._open(func, facts, args, kwargs)
            if opened:
                return result
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise NoDecomposition(RANDOM)
        inputs = tuple(map(self._makers.of, tensors((*args, *kwargs.values()))))
        result = func(*args, **kwargs)
        number = len(self.parts)
        for tensor in tensors(args[position] for position in facts.written if position < len(args)):
            self._makers.wrote(tensor, number)
        outputs = tuple(self._makers.record(tensor, number) for tensor in tensors((result,)))
        within = self._within[:-1] if self._within[-1:] == [facts.name] else self._within  # one overload by another
        self.parts.append(PrimitiveEvent(facts.name, "/".join(within), inputs, outputs))
        return result

    def _open(self, func, facts, args, kwargs) -> tuple[bool, object]:
        """Return whether an op of the decomposition could be opened in its turn, and its result."""
        function, before = op_decomposition(func), len(self.parts)
        if function is None:
            return False, None
        self._within += () if facts.layout else (facts.name,)
        depth = len(self._within)
        try:
            result = self.run(function, args, kwargs)
            if result is not NotImplemented:
                return True, result
        except DownToPrims:
            pass
        finally:
            del self._within[depth - (not facts.layout) :]
        del self.parts[before:]
        return False, None
