"""Slices of length 1 that a run takes of a sequence: `x[:, 0]`, `x[:, 1]` …, or `x[:, 0:1]`, `x[:, 1:2]` …"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tracer.capture.composite_calls import Call, refs
from tracer.ops import ACTIVATIONS, POINTWISE, base


class SequenceSlice(NamedTuple):
    """One index of a tensor along an axis; `keepdim`: that axis stays, with size 1."""

    whole: str
    axis: int
    place: int
    keepdim: bool


def match_slice(call: Call) -> SequenceSlice | None:
    """Return the slice of length 1 that a call takes; None for any other call."""
    arguments = call.arguments
    if call.name == "select" and isinstance(arguments.get("index"), int) and arguments["index"] >= 0:
        return SequenceSlice(
            arguments["self"].key, arguments["dim"] % len(arguments["self"].shape), arguments["index"], False
        )
    if call.name == "slice" and arguments.get("start") is not None and arguments["end"] == arguments["start"] + 1:
        axis = arguments["dim"] % len(arguments["self"].shape)
        if arguments["step"] == 1 and arguments["start"] >= 0 and arguments["self"].shape[axis] > 1:
            return SequenceSlice(arguments["self"].key, axis, arguments["start"], True)
    return None


def find_sliced_sequences(calls: Sequence[Call]) -> Iterator[tuple[list[int], set[int]]]:
    """Yield the calls that slice one tensor at 0, 1, 2 …, or from its end, and those that take the first slice
    again."""
    places: dict[tuple, list[int]] = defaultdict(list)
    again: dict[tuple, set[int]] = defaultdict(set)
    for index, call in enumerate(calls):
        if (slice_match := match_slice(call)) is None:
            continue
        from_end = call.arguments["self"].shape[slice_match.axis] - 1 - slice_match.place
        for backwards, place in ((False, slice_match.place), (True, from_end)):
            whole = slice_match.whole, slice_match.axis, slice_match.keepdim, backwards
            if place == len(places[whole]):
                places[whole].append(index)
            elif place == 0 and len(places[whole]) == 1:
                again[whole].add(index)
    yield from ((slices, again[whole]) for whole, slices in places.items())


def is_rowwise(call: Call, axis: int) -> bool:
    """Return whether a call treats each index along an axis alike, so that this axis can be left out."""
    name, rank = base(call.name), len(call.outputs[0].shape)
    shapes = [ref.shape for ref in refs(call.arguments)]
    if name in ("linear", "layer_norm", "rms_norm", "softmax", "cat", "concat", "chunk", "split", "slice"):
        on_last = (
            call.arguments.get("dim", -1) % rank == rank - 1 and len(call.arguments.get("normalized_shape", "1")) == 1
        )
        return on_last and axis < rank - 1 and len(shapes[0]) == rank
    if name == "matmul":
        return len(shapes[0]) == rank and len(shapes[1]) == 2 and axis < rank - 1
    cell_by_cell = name in POINTWISE | ACTIVATIONS - {"glu"}
    return cell_by_cell and all(len(shape) == rank or len(shape) < rank - axis for shape in shapes)
