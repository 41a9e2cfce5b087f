"""A mask for drawing in the browser: open keys of each query, named segments, and the effect on each row."""

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from tracer.attention import layers, token_segments
from tracer.attention import segments as of_part
from tracer.figures.envelope import compress
from tracer.figures.predictions import visible_token
from tracer.figures.tensors import as_array
from tracer.record import Segment, Trace
from tracer.utils.lazy_import import lazy_import
from tracer.utils.text import round_numeral, scientific

if TYPE_CHECKING:
    from tracer.attention import masks
else:  # imported when first used
    masks = lazy_import("tracer.attention.masks")


MAX_BYTES = 1_500_000
"""Bytes of rows that one message takes; of a larger run a head's comes at a time, or rows about the one asked for."""


def labels(
    trace: Trace, part: str | None, tokens: int, numbered: bool = False, segments: Sequence[Segment] | None = None
) -> list[str]:
    """Return a name for each of the first `tokens` positions of a tower, by the words of the run; see `names`."""
    segments = of_part(trace, part) if segments is None else segments
    return names(tokens, segments, [visible_token(word) for word in trace.words[:tokens]], numbered)


def names(
    tokens: int,
    segments: Sequence[Segment],
    words: Sequence[str],
    numbered: bool = False,
) -> list[str]:
    """Return a name for each of `tokens` positions: its word if it is one, else its segment and its number in it. All
    count from 1, as everywhere on screen.

    Patches with positions in their segment are named by these. A word's name begins with the number of its token;
    `numbered` adds that number to all others.
    """
    labels = [f"token {position + 1}" if numbered else str(position + 1) for position in range(tokens)]
    for segment in segments:
        for position in range(segment.start, min(segment.stop, tokens)):
            place = position - segment.start
            if segment.name == "text" and place < len(words):
                labels[position] = f"{position + 1}: {words[place]!r}"
                continue
            kind = "patch" if segment.name == "image" or segment.places else segment.name
            is_single = segment.stop - segment.start == 1
            labels[position] = (
                kind if is_single else f"{kind} {(segment.places[place] if segment.places else place) + 1}"
            )
            if numbered:
                labels[position] += f" (token {position + 1})"
    return labels


def build(
    trace: Trace,
    cells,
    *,
    layer: int = 0,
    part: str | None = None,
    batch: int = 0,
    start: int = 0,
    wanted: Sequence[int] | None = None,
    alt: str = "",
    always: bool = False,
) -> dict[str, Any]:
    """Return the mask bool `[S_q, S_k]` of one input of the batch, and its rows: scores before and weights after it.

    The rows are those of all heads, or, if these are too large, those of the head that is `wanted`, a pair of head and
    query, perhaps only rows about that query. `open` is 1 in each open cell of the mask, `[S_q, S_k]`; if heads differ
    `own` is so `[h, rows, S_k]` in the rows that are sent, and so are `before` and `weights`. `alt` describes the mask
    in words; `always` has it drawn also if all is open.
    """
    record, visible = layers(trace, part)[layer], np.asarray(cells, dtype=np.uint8)
    queries, keys = visible.shape
    head, query = wanted if wanted is not None else (0, start)
    head, query = min(max(0, head), record.heads - 1), min(max(0, query), queries - 1)
    whole = fits(trace, layer, part)
    heads = range(record.heads) if whole else range(head, head + 1)
    count = queries if whole else min(queries, max(1, MAX_BYTES // (4 * keys)))
    first = min(max(0, query - count // 2), queries - count)
    rows = range(first, first + count)
    matrix = masks.whole(trace, list(rows), layer, part=part, batch=batch)
    own = [matrix.open[mask_row] for mask_row in heads]
    rows_of_head = {mask_row: masks.rows(trace, layer, head=mask_row, part=part, batch=batch) for mask_row in heads}
    same = all(bool((mask_row == cells[first : first + count]).all()) for mask_row in own)
    rows_of, columns_of = token_segments(trace, record)
    return {
        "queries": queries,
        "keys": keys,
        "heads": record.heads,
        "sent": [heads.start, len(heads), first, count],
        "start": start,
        "layer": layer,
        "alt": alt,
        "always": always,
        "names": labels(trace, part, queries, True, rows_of),
        "key_names": labels(trace, part, keys, True, columns_of),
        "segments": [[segment.start, segment.stop, *_span(segment)] for segment in rows_of],
        "key_segments": [[segment.start, segment.stop, *_span(segment)] for segment in columns_of],
        "kept": {mask_row: _describe_rows(rows_of_head[mask_row]) for mask_row in heads},
        "mask": _mask(masks.numbers(trace, list(rows), layer, part=part, batch=batch), rows_of_head.values()),
        "open": visible,
        "own": None if same else np.asarray([mask_row.numpy() for mask_row in own], dtype=np.uint8),
        "before": compress(as_array(matrix.before)[list(heads)]),
        "weights": compress(as_array(matrix.weights)[list(heads)]),
    }


def fits(trace: Trace, layer: int = 0, part: str | None = None) -> bool:
    """Return whether all rows of all heads fit in one message."""
    record = layers(trace, part)[layer]
    return 4 * record.queries * record.keys * record.heads <= MAX_BYTES


def _span(segment: Segment) -> tuple[str, str]:
    """Return the label of a segment of an axis: its name, or its number of tokens; in two lines, so it is narrow."""
    size = segment.stop - segment.start
    if size == 1 and segment.name == "CLS":
        return segment.name, ""
    return f"{size} {segment.name}", f"token{'s' * (size > 1)}"


def _describe_rows(rows) -> str:
    """Describe the keys to which the rows of one head are confined, as measured (`masks.Rows`)."""
    sentence = f"Over all rows of this head, the sum of a row differs from 1 by at most {scientific(rows.off)}"
    if rows.closed is None:
        return f"{sentence}."
    return f"{sentence}, and the largest weight of a closed key is {scientific(rows.closed)}."


def _mask(numbers, rows_of_head) -> dict[str, str]:
    """Describe the mask in words: its number for open and for closed keys (`masks.MaskValues`), and a title.

    The title says whether the softmax made the weights of a finite mask exactly 0, as measured over all rows.
    """
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return {"open": "open", "closed": "closed", "title": "the mask: open or closed"}
    open_, closed = map(round_numeral, known)
    title = f"the mask: {open_} where open, {closed} where closed"
    if isfinite(numbers.closed) and all(mask_row.closed == 0 for mask_row in rows_of_head):
        title += ", which acts as −∞: the weights there are exactly 0"
    return {"open": open_, "closed": closed, "title": title}


def describe(cells, kind: str) -> str:
    """Return the text alternative of a mask: its kind, its size and the number of open cells."""
    visible = as_array(cells)
    size = f"{visible.shape[0]} queries × {visible.shape[1]} keys"
    return f"Mask ({kind}) of {size}; {int(visible.sum()):,} of {visible.size:,} cells are open."
