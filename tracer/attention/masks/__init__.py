"""Masks: those that models build, those read from a trace, and the outputs that a token really moves.

`visible` reads the mask that ran, cell by cell, from any trace. `influence` is a second proof that knows nothing of
masks: it changes one token and looks which positions move. `reach` says what the mask predicts for that, `attended`
how much the positions that stood still looked at those that moved. `said` is what a model says under its mask, `closed`
what it says of each word with the picture closed to the words in some blocks.
"""

from tracer.attention.masks.alternatives import Said, said
from tracer.attention.masks.closing import Closed, closed
from tracer.attention.masks.influence import Moved, Streams, influence, streams, traced_streams
from tracer.attention.masks.kinds import causal, padded, prefix
from tracer.attention.masks.reading import (
    Block,
    Numbers,
    Row,
    Rows,
    Whole,
    attended,
    blocks,
    kind,
    numbers,
    reach,
    row,
    rows,
    visible,
    whole,
)

__all__ = [
    "Block",
    "Closed",
    "Moved",
    "Numbers",
    "Row",
    "Rows",
    "Said",
    "Streams",
    "Whole",
    "attended",
    "blocks",
    "causal",
    "closed",
    "influence",
    "kind",
    "numbers",
    "padded",
    "prefix",
    "reach",
    "row",
    "rows",
    "said",
    "streams",
    "traced_streams",
    "visible",
    "whole",
]
