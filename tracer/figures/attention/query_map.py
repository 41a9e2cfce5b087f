"""Attention of one query over the photo, at any length: one row of the weights alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tracer.figures.attention import lit_photo
from tracer.figures.tensors.heatmap import as_array
from tracer.record import AttentionRecord, Trace


def row(trace: Trace, record: AttentionRecord, head: str, query: int) -> np.ndarray:
    """Return the weights of one query `[S_k]` of the first input: of a head by its number, or their "mean"."""
    heads = as_array(trace.attention(record.layer, query=query, part=record.part))[0]
    return heads.mean(0) if head == "mean" else heads[int(head)]


def over_photo(trace: Trace, patches: Mapping[int, int], weights: np.ndarray) -> np.ndarray:
    """Return the photo as colours `[H, W, 3]`, each patch lit by its weight; `patches` are the patches of the tokens.

    A run without a photo has no such picture: ValueError.
    """
    picture = trace.picture
    if picture is None:
        raise ValueError("this run has no photo to lay a map over")
    shares = np.zeros(picture.rows * picture.columns)
    for token, patch in patches.items():
        shares[patch] = weights[token]
    shares = (shares / (shares.max() or 1)).reshape(picture.rows, picture.columns)
    photo = np.asarray(trace.values[picture.value])
    greys = lit_photo.sketch(photo, picture.crop, picture.rows, picture.columns)
    return lit_photo.light(greys, picture.crop, shares)
