"""One turn of a loop over time, as the call of the whole loop has it."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.capture.composite_calls import Call
from tracer.graph.subgraph import Made

FUNC = Made("turns", ("turn", "given", "starts"))
JOIN = "|"
"""Between the keys of the values that are one sequence: none of them alone was in memory."""


@dataclass(frozen=True)
class Turn:
    """One turn as it ran: its calls, the key of what it gives, along which axis turns are, and how many there are.

    `places` says what a turn takes: by its key there, (what, axis, the key of the whole, its number in `starts`); `own`
    is the key of what the loop makes. `back`: the turns go from the last part to the first. `kept`: what a turn takes
    and gives has the axis of turns, of size 1."""

    calls: tuple[Call, ...]
    key: str
    axis: int
    length: int
    places: tuple[tuple[str, int, int, str, int], ...]
    own: str
    back: bool = False
    kept: bool = False
