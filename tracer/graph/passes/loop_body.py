"""One iteration of a rolled loop over time."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.capture.composite_calls import Call
from tracer.graph.subgraph import SyntheticOp

FUNC = SyntheticOp("scan", ("body", "operands", "initial"))
JOIN = "|"
"""Separator of the keys of the values in one sequence, none of which was in memory as a tensor of its own."""


@dataclass(frozen=True)
class LoopBody:
    """One recorded iteration: its calls, the key of its result, the axis of iterations, and their number.

    `places` are the operands: (key in the iteration, kind, axis, key of the whole, index in `initial`). `own` is the
    key of the loop's result. `back`: iterations go from the last slice to the first. `keepdim`: operands and results
    keep the axis of iterations, of size 1.
    """

    calls: tuple[Call, ...]
    key: str
    axis: int
    length: int
    places: tuple[tuple[str, int, int, str, int], ...]
    own: str
    back: bool = False
    keepdim: bool = False
