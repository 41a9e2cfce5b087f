"""The mask that ran: which query may look at which key, read from the scores of a trace."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tracer.attention import layers
from tracer.attention.chain import scores_rows
from tracer.record import Segment, Trace

HIDDEN = -1e4
"""Scores from here down were masked: models write -∞, or the lowest number of their dtype, or -10,000."""


class Block(NamedTuple):
    """How one segment looks at another: the share of (query, key) cells that are visible, 0 to 1."""

    queries: str
    keys: str
    share: float


def visible(trace: Trace, layer: int = 0, *, head: int = 0, part: str | None = None, batch: int = 0) -> torch.Tensor:
    """Bool `[S_q, S_k]`: True where the query's score for the key was not masked, cell by cell, as it ran.

    ValueError for a layer, head or input of the batch that the run does not have, or attention that can't be recovered.
    """
    records = layers(trace, part)
    if not 0 <= layer < len(records):
        raise ValueError(f"layer={layer} is outside of this run's {len(records)}: 0 to {len(records) - 1}")
    record = records[layer]
    if record.problem:
        raise ValueError(f"layer {layer}: the mask is not recoverable: {record.problem}")
    q, k = trace.values[record.q], trace.values[record.k]
    scores = scores_rows(q, k, record.chain, list(range(record.queries)), trace.values.get)
    scores = scores.reshape(-1, record.heads, record.queries, record.keys)
    for name, value, count in (("head", head, record.heads), ("batch", batch, scores.shape[0])):
        if not 0 <= value < count:
            raise ValueError(f"{name}={value} is outside of this run's {count}: 0 to {count - 1}")
    return scores[batch, head] > HIDDEN


def kind(cells: torch.Tensor) -> str:
    """What mask bool `[S, S]` is: "bidirectional", "causal", "prefix", "padded", or "other".

    A prefix mask is causal but for its first n tokens, 1 < n < S, which see each other fully. In a padded one the
    same last keys are hidden from every query.
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
    return "other"


def blocks(cells: torch.Tensor, segments: tuple[Segment, ...]) -> tuple[Block, ...]:
    """Who may look at whom: for each pair of segments the share of visible cells of `[S, S]`, queries first."""
    return tuple(
        Block(a.name, b.name, float(cells[a.start : a.stop, b.start : b.stop].float().mean()))
        for a in segments
        for b in segments
    )


def reach(cells: torch.Tensor, token: int, hops: int) -> tuple[int, ...]:
    """The positions that a token can move through `hops` blocks with this mask: itself, and all that see it in turn."""
    moved = torch.zeros(cells.shape[1], dtype=torch.bool)
    moved[token] = True
    for _ in range(hops):
        moved = moved | (cells & moved).any(dim=1)
    return tuple(moved.nonzero().flatten().tolist())
