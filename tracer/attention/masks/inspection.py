"""Mask that ran: the keys that each query may attend to, read from the scores of a trace."""

from __future__ import annotations

from collections.abc import Collection
from math import log
from typing import TYPE_CHECKING, NamedTuple

import torch

from tracer.attention import layers
from tracer.capture.attention.score_replay import MASKED_SCORE, hides, is_windowed, own_columns, scores_rows
from tracer.record import AttentionRecord, Segment, Trace

if TYPE_CHECKING:
    from tracer.attention.masks.perturbation import ChangedPositions


class MaskedRow(NamedTuple):
    """One query's scores before the mask, the numbers of its mask and its attention weights, `[S_k]` each."""

    before: torch.Tensor
    mask: torch.Tensor
    weights: torch.Tensor


class RowsOfHeads(NamedTuple):
    """Rows of several queries in every head: scores before, whether a key is open, and weights, `[h, S_q, S_k]`."""

    before: torch.Tensor
    open: torch.Tensor
    weights: torch.Tensor


class MaskValues(NamedTuple):
    """Number that a mask has in every open cell, and in every closed one: 0 and -∞, or the numbers that the code uses.

    None where there is no such cell, or where the cells have different numbers.
    """

    open: float | None
    closed: float | None


class RowSums(NamedTuple):
    """All rows of weights of one head: the largest deviation of their sums from 1, and the largest weight of a closed
    cell.

    The latter is None where no cell is closed.
    """

    off: float
    closed: float | None


class SegmentVisibility(NamedTuple):
    """View of one segment on another: the share of (query, key) cells that are visible, 0 to 1."""

    queries: str
    keys: str
    share: float


def visible(trace: Trace, layer: int = 0, *, head: int = 0, part: str | None = None, batch: int = 0) -> torch.Tensor:
    """Return bool `[S_q, S_k]`: True where the key was open to the query, cell by cell, as the scores that ran show it.

    ValueError for a layer, head or input of the batch that the run does not have, or attention that can't be recovered.
    """
    record = _record(trace, layer, part)
    cells = _open(trace, record, list(range(record.queries)))
    for name, value, count in (("head", head, record.heads), ("batch", batch, cells.shape[0])):
        if not 0 <= value < count:
            raise ValueError(f"{name}={value} is outside this run's {count}: 0 to {count - 1}")
    return cells[batch, head]


def open_keys(
    trace: Trace, query: int, layer: int = 0, *, head: int = 0, part: str | None = None, batch: int = 0
) -> torch.Tensor:
    """Return the row of `visible` of one query, bool `[S_k]`, without computing the others."""
    return _open(trace, _record(trace, layer, part), [query])[batch, head, 0]


def _open(trace: Trace, record: AttentionRecord, rows: list[int]) -> torch.Tensor:
    """Return the open cells, bool `[B, h, rows, S_k]`.

    A closed one has a weight below the resolution of its dtype, next to the highest of its row, whatever its score: it
    would even with the highest score that the row has before the mask.
    """
    before, after = (_scores(trace, record, chain, rows) for chain in (_without_masks(trace, record), record.chain))
    highest, (before, after) = (
        after.amax(dim=-1, keepdim=True),
        (_own(scores, trace, record) for scores in (before, after)),
    )
    most = before.amax(dim=-1, keepdim=True) + (after - before)
    return most - highest >= log(torch.finfo(after.dtype).eps)  # a row that is closed as a whole compares as no number


def _without_masks(trace: Trace, record: AttentionRecord):
    """Return the recorded chain without the links that hide keys."""
    return tuple(link for link in record.chain if not hides(link, trace.values.get))


def _mask(trace: Trace, record: AttentionRecord, rows: list[int]) -> torch.Tensor:
    """Apply the links that hide keys to scores of 0: return the numbers of the mask, `[B, h, rows, S_k]`."""
    if record.scores:
        scores = _scores(trace, record, record.chain, rows)
        return torch.where(scores.isinf(), scores, 0.0)
    chain = tuple(link for link in record.chain if hides(link, trace.values.get))
    q, k = trace.values[record.q], trace.values[record.k]
    scores = scores_rows(torch.zeros_like(q), torch.zeros_like(k), chain, rows, trace.values.get)
    return scores.reshape(-1, record.heads, *scores.shape[-2:])


def _own(scores: torch.Tensor, trace: Trace, record: AttentionRecord) -> torch.Tensor:
    return own_columns(scores, record.chain, record.keys, trace.values.get)


def _record(trace: Trace, layer: int, part: str | None) -> AttentionRecord:
    records = layers(trace, part)
    if not 0 <= layer < len(records):
        raise ValueError(f"layer={layer} is outside this run's {len(records)}: 0 to {len(records) - 1}")
    if records[layer].problem:
        raise ValueError(f"layer {layer}: the mask is not recoverable: {records[layer].problem}")
    return records[layer]


def _scores(trace: Trace, record: AttentionRecord, chain, rows: list[int]) -> torch.Tensor:
    """Return scores after the links of `chain`, `[B, h, rows, columns]`: the keys, and the columns beside them. Scores
    that a change replaced are those of the run, with their mask."""
    if record.scores:
        scores = trace.values[record.scores][..., rows, :]
    else:
        scores = scores_rows(trace.values[record.q], trace.values[record.k], chain, rows, trace.values.get)
    return scores.reshape(-1, record.heads, *scores.shape[-2:])  # of a single head, a model may leave the axis out


def row(
    trace: Trace, query: int, layer: int = 0, *, head: int = 0, part: str | None = None, batch: int = 0
) -> MaskedRow:
    """Return the effect of the mask on one query of an input of the batch: scores before it, the mask, weights after
    it.

    Each is `[S_k]`. The scores before are the recorded chain without its masking links, the mask is these links alone:
    what they add, or write in the place of a score.
    """
    record, weights = _record(trace, layer, part), trace.attention(layer, head, query, part=part)[batch]
    before = _own(_scores(trace, record, _without_masks(trace, record), [query]), trace, record)[batch, head, 0]
    return MaskedRow(before, _mask(trace, record, [query])[batch, head, 0], weights)


def whole(trace: Trace, queries: list[int], layer: int = 0, *, part: str | None = None, batch: int = 0) -> RowsOfHeads:
    """Return `row` for several queries of an input of the batch, in all heads at once."""
    record = _record(trace, layer, part)
    before = _own(_scores(trace, record, _without_masks(trace, record), queries), trace, record)[batch]
    weights = trace.attention(layer, part=part)[batch][:, queries]
    return RowsOfHeads(before, _open(trace, record, queries)[batch], weights)


def numbers(trace: Trace, queries: list[int], layer: int = 0, *, part: str | None = None, batch: int = 0) -> MaskValues:
    """Return the numbers of the mask itself for these queries of an input of the batch, in all heads."""
    record = _record(trace, layer, part)
    mask, open = _mask(trace, record, queries)[batch], _open(trace, record, queries)[batch]
    distinct = (torch.unique(mask[cells]).tolist() for cells in (open, ~open))
    return MaskValues(*(values[0] if len(values) == 1 else None for values in distinct))


def rows(trace: Trace, layer: int = 0, *, head: int = 0, part: str | None = None, batch: int = 0) -> RowSums:
    """Return bounds of the attention weights of one head, for an input of the batch, summed in float64."""
    weights = trace.attention(layer, head, part=part)[batch].double()
    closed = weights[~visible(trace, layer, head=head, part=part, batch=batch)]
    return RowSums(float((weights.sum(dim=-1) - 1).abs().max()), float(closed.max()) if len(closed) else None)


def kind(cells: torch.Tensor) -> str:
    """Return the kind of mask bool `[S, S]`: "bidirectional", "causal", "prefix", "padded", "windows", or "other".

    A prefix mask is causal but for its first n tokens, 1 < n < S, which see each other fully. In a padded one the
    same last keys are hidden from every query. Windows are groups of tokens that see only themselves.
    """
    queries, keys = cells.shape
    if bool(cells.all()):
        return "bidirectional"
    if queries == keys:
        lower = torch.ones_like(cells).tril()
        if torch.equal(cells, lower):
            return "causal"
        ahead = int(cells[0].sum())
        prefix = lower | (torch.arange(keys) < ahead)
        if torch.equal(cells, prefix):
            return "prefix"
    count = int(cells[0].sum())
    if torch.equal(cells, (torch.arange(keys) < count).expand_as(cells)):
        return "padded"
    return "windows" if is_windowed(~cells) else "other"


def blocks(cells: torch.Tensor, segments: tuple[Segment, ...]) -> tuple[SegmentVisibility, ...]:
    """Return the share of visible cells of `[S, S]` for each pair of segments, queries first."""
    return tuple(
        SegmentVisibility(a.name, b.name, float(cells[a.start : a.stop, b.start : b.stop].float().mean()))
        for a in segments
        for b in segments
    )


def reach(cells: torch.Tensor, tokens: int | Collection[int], hops: int) -> tuple[int, ...]:
    """Return the positions that a token, or several, can influence through `hops` blocks with this mask: themselves,
    and all that see them in turn."""
    reachable = torch.zeros(cells.shape[1], dtype=torch.bool)
    reachable[[tokens] if isinstance(tokens, int) else list(tokens)] = True
    for _ in range(hops):
        reachable = reachable | (cells & reachable).any(dim=1)
    return tuple(reachable.nonzero().flatten().tolist())


def largest_share(
    trace: Trace, queries: Collection[int], positions: ChangedPositions, *, part: str | None = None
) -> float:
    """Return the largest share of attention, 0 to 1, that any of `queries` gives, in a block and head, to positions
    that had already changed.

    Before the first block that is what entered it; before a later one, what of the tokens that moved in the end the
    mask lets the change reach by then. ValueError where a block's attention can't be recovered.
    """
    cells, most = visible(trace, part=part), 0.0
    for layer in range(len(layers(trace, part))):
        before = sorted({*positions.entering, *positions.leaving}.intersection(reach(cells, positions.entering, layer)))
        shares = trace.attention(layer, part=part)[:, :, list(queries)][..., before].double().sum(dim=-1)
        most = max(most, float(shares.max()))
    return most


def open_cells(trace: Trace, record: AttentionRecord) -> torch.Tensor:
    """Return bool `[B, h, S_q, S_k]`: True where a key was open to a query, of one attention of the run."""
    return _open(trace, record, list(range(record.queries)))


def hidden_rows(trace: Trace, record: AttentionRecord) -> torch.Tensor:
    """Return bool `[B, h, S_q]`: True where the mask hides all keys from a query, by -∞ or by numbers as low as those
    that hide a key."""
    mask = _own(_mask(trace, record, list(range(record.queries))), trace, record)
    return (mask <= MASKED_SCORE).all(dim=-1)
