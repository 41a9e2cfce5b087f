"""Rows of attention that need words of their own: those that attend to nothing, to one token alone, or to all alike.

They are told from the weights as they ran, before these are rounded for a message.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tracer.record import AttentionRecord, Trace

OTHER, NOTHING, ALONE, EVEN = range(4)
"""Kinds of rows: any other, every weight is 0, every weight but one is 0, every open weight is the same."""
SAME = 1e-6
"""Shares of the largest weight by which weights that are called the same differ at most."""
WHOLE = 1e-3
"""What the weights of a row add up to differs from 1 by this at most, where they are called shares of its attention."""


def kinds(weights: np.ndarray, closed: Callable[[], np.ndarray] | None = None) -> np.ndarray:
    """Return the kind of each row of `[..., S_k]`.

    `closed` returns which keys a mask closes, bool in a shape that broadcasts to that of the weights; it is asked where
    the answer depends on it. Without it, all keys are open.
    """
    used = weights != 0
    count, most = used.sum(-1), weights.max(-1)
    least = np.where(used, weights, most[..., None]).min(-1)
    even = (count > 1) & (most - least <= SAME * most)
    if closed is not None and (even & (count < weights.shape[-1])).any():
        even &= (used | closed()).all(-1)
    else:
        even &= count == weights.shape[-1]
    found = np.select([count == 0, count == 1, even], [NOTHING, ALONE, EVEN], OTHER)
    return np.asarray(found, np.uint8)


def closed_keys(trace: Trace, record: AttentionRecord, query: int | None = None) -> np.ndarray:
    """Return which keys the mask that ran closes, bool `[S_q, S_k]`, or `[S_k]` of one query."""
    from tracer.attention.masks.inspection import open_keys, visible  # here, since a page is drawn before torch

    layer = [each for each in trace.attentions if each.part == record.part].index(record)
    if query is None:
        return ~visible(trace, layer, part=record.part).numpy()
    return ~open_keys(trace, query, layer, part=record.part).numpy()
