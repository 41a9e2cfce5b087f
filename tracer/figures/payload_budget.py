"""Limits on what a page computes and sends for one picture; a run beyond them is shown in part.

All that one page sends stays below `PAGE`, so each picture has a share of it. The rest is in the file and on the
command line, and the page says so.
"""

from __future__ import annotations

from tracer.record import AttentionRecord, Trace

PAGE = 4_000_000
"""Bytes that one page sends at most."""
CELLS = 1 << 24
"""Attention weights that are computed at once, over all heads and inputs of the batch: 64 MB."""
SIDE = 1400
"""Tokens of a mask that is drawn cell by cell, one byte each."""
MAX_NAMED_CELLS = 10_000
"""Cells of a mask that each show the names of their tokens."""
ROWS = 2000
"""Rows of a table, or choices of a list."""
LINES = 2000
"""Lines between the steps of a pipeline."""
VALUES = 1 << 23
"""Values of a matrix that is drawn."""


def can_draw(trace: Trace, record: AttentionRecord) -> bool:
    """Return whether all weights of one attention can be computed and its mask drawn."""
    batch = trace.values[record.q].shape[:-2].numel() if record.q in trace.values else record.heads
    cells = record.queries * record.keys
    return max(record.queries, record.keys) <= SIDE and max(batch, record.heads) * cells <= CELLS
