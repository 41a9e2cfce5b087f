"""An op opened into the primitives of PyTorch's decomposition table."""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import isnan
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tracer.capture.calls import kind, tensors, written_tensors
from tracer.capture.modes import observe_ops
from tracer.capture.tensors import ProducerIndex
from tracer.utils.devices import to_cpu
from tracer.utils.torch_internals import function_schema, is_decomposable, op_decomposition, storage_id, tree_map_only
from tracer.utils.torch_state import relative_difference

# PyTorch's own decomposition of an op, run on the op's arguments.
#
# The decompositions are those that PyTorch registers, and composite kernels. An op is opened as far as they go: one
# that they only say in terms of `prims`, the layer below, is a primitive.

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
    recorder = PrimitiveRecorder(args, kwargs)
    with torch.DisableTorchFunction():
        opened, result = recorder.open(func, args, kwargs)
    if not opened:
        raise NoDecomposition(RANDOM if torch.Tag.nondeterministic_seeded in func.tags else ELEMENTARY)
    return tuple(recorder.parts), result


class PrimitiveRecorder:
    """Primitives of one op: its decomposition, with the decompositions of the ops in it."""

    def __init__(self, args: tuple, kwargs: dict):
        self.parts: list[PrimitiveEvent] = []
        self._within: list[str] = []
        inputs = tensors((*args, *kwargs.values()))
        self._makers = ProducerIndex({f"input {number}": tensor for number, tensor in enumerate(inputs)})

    def open(self, func, args: tuple, kwargs: dict) -> tuple[bool, Any]:
        """Run the decomposition of an op and list its ops. Return whether it has one that does not go down to `prims`,
        and its result."""
        if (function := op_decomposition(func)) is None:
            return False, None
        try:
            with observe_ops(self._see):
                result = function(*args, **kwargs)
            return result is not NotImplemented, result
        except DownToPrims:
            return False, None

    def _see(self, mode, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.namespace == "prims":
            raise DownToPrims
        facts = kind(func)
        if not facts.written and (not facts.layout or is_decomposable(func)):
            opened, result = self._open_inside(func, facts, args, kwargs)
            if opened:
                return result
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise NoDecomposition(RANDOM)
        inputs = tuple(map(self._makers.of, tensors((*args, *kwargs.values()))))
        result = func(*args, **kwargs)
        number = len(self.parts)
        for tensor in written_tensors(facts, args, kwargs):
            self._makers.wrote(tensor, number)
        outputs = tuple(self._makers.record(tensor, number) for tensor in tensors((result,)))
        within = self._within[:-1] if self._within[-1:] == [facts.name] else self._within  # one overload by another
        self.parts.append(PrimitiveEvent(facts.name, "/".join(within), inputs, outputs))
        return result

    def _open_inside(self, func, facts, args, kwargs) -> tuple[bool, Any]:
        """Open an op of the decomposition in its turn; where it can't be, its ops are not listed."""
        depth, before = len(self._within), len(self.parts)
        self._within += () if facts.layout else (facts.name,)
        try:
            opened, result = self.open(func, args, kwargs)
        finally:
            del self._within[depth:]
        if not opened:
            del self.parts[before:]
        return opened, result


# Primitives of every op of a run: each is opened right after it has run, on its own arguments.


class OpDecomposition(NamedTuple):
    """Primitives of one op. `error` is the relative difference between their result and the op's, or None if the op
    is its own only primitive; `note` says why."""

    parts: tuple[PrimitiveEvent, ...]
    error: float | None
    note: str


def opening(observe: Callable, recording, wanted: bool | Collection[int]) -> Callable:
    """Return an observer that calls `observe`, and then opens the op, if it is one of the `wanted`: `recording.opened`
    gets one for each op, None for the others."""
    chosen = None if wanted is True else wanted or ()

    def open_too(mode, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if chosen is not None and len(recording.ops) not in chosen:
            before = len(recording.ops)
            result = observe(mode, func, types, args, kwargs)
            recording.opened += [None] * (len(recording.ops) - before)
            return result
        positional, named = _before(func, args, kwargs)
        result = observe(mode, func, types, args, kwargs)
        recording.opened.append(_open(func, positional, named, result, recording.ops[-1]))
        return result

    return open_too


def _before(func, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Return the arguments as they are before the op writes: copies of all that share memory with what it writes to."""
    facts = kind(func)
    if facts.layout or not facts.written:
        return args, kwargs
    storages = {storage_id(tensor.untyped_storage()) for tensor in written_tensors(facts, args, kwargs)}

    def copy_shared(value: Tensor) -> Tensor:
        return value.clone() if storage_id(value.untyped_storage()) in storages else value

    return tree_map_only(Tensor, copy_shared, (args, kwargs))


def _open(func, args: tuple, kwargs: dict, result, event) -> OpDecomposition:
    if event.layout:
        return _alone(event, "")
    try:
        parts, recomputed = decompose(_functional(func), args, kwargs)
        if not parts:  # it hands on what it is given
            return _alone(event, ELEMENTARY)
        return OpDecomposition(parts, _error(event.name, tensors((recomputed,)), tensors((result,))), "")
    except NoDecomposition as refused:
        return _alone(event, str(refused))
    except Exception as error:  # a decomposition that PyTorch wrote for other arguments than these
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return _alone(event, f"PyTorch's decomposition does not run on these arguments ({reason})")


def _functional(func):
    """Return the op that computes what an in-place op writes: `add` of `add_`."""
    space, _, name = function_schema(func).name.partition("::")
    if not name.endswith("_") or name.endswith("__"):
        return func
    packet = getattr(getattr(torch.ops, space), name[:-1], None)
    return getattr(packet, func.name().partition(".")[2] or "default", func)


def _alone(event, note: str) -> OpDecomposition:
    """Return an op that is its own only primitive."""
    inputs = tuple((shape, dtype, f"input {i}") for i, (shape, dtype, _) in enumerate(event.inputs))
    outputs = tuple((shape, dtype, 0) for shape, dtype, _ in event.outputs)
    return OpDecomposition((PrimitiveEvent(event.name, "", inputs, outputs),), None, note)


def _error(name: str, recomputed: list[Tensor], ran: list[Tensor]) -> float | None:
    """Return the largest relative difference between outputs; of an internal op, of the first: those after it are kept
    for the gradient, and may be anything close to 0, like the means of normalised inputs."""
    if not ran or any(tensor.is_meta for tensor in ran):
        return None
    count = 1 if name.startswith(("native_", "_")) else len(ran)
    shapes = [[list(tensor.shape) for tensor in outputs[:count]] for outputs in (recomputed, ran)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"it gives shapes {shapes[0]}, the op gave {shapes[1]}")
    differences = map(_difference, recomputed[:count], ran[:count])
    return max(differences, key=lambda error: (isnan(error), error))


def _difference(recomputed: Tensor, ran: Tensor) -> float:
    """Return the relative difference in double precision. Cells undefined in both, as in the softmax of a fully masked
    row, differ by 0."""
    recomputed, ran = (
        tensor.detach() if tensor.is_complex() else to_cpu(tensor.detach()).double() for tensor in (recomputed, ran)
    )
    undefined = recomputed.isnan() & ran.isnan()
    return relative_difference(recomputed.masked_fill(undefined, 0), ran.masked_fill(undefined, 0))
