"""Attention of a word on the picture: the share of its row's attention on each patch."""

from __future__ import annotations

import torch

from tracer.attention import segments, weights
from tracer.record import Trace
from tracer.utils.error_text import quote


def region(trace: Trace, place: int, layer: int, head: int | None = None) -> torch.Tensor:
    """Return the attention on every patch, `[rows, columns]`, of the row that predicts the word at `place` of the text,
    from 1.

    That row is the one of the token before it; `place` T, after the last word, gives the row that predicts the next.
    The mean over heads where `head` is None. ValueError for a run without picture or text, and for another place.
    """
    text = next((segment for segment in segments(trace) if segment.name == "text"), None)
    if trace.picture is None or text is None:
        raise ValueError(f"this run of {quote(trace.model)} has no picture and text in one sequence")
    if not 1 <= place <= text.stop - text.start:
        raise ValueError(f"place={place} is outside this run's text, expected 1 to {text.stop - text.start}")
    row = weights(trace, layer, head, text.start + place - 1)[0]
    row = row.mean(dim=0) if head is None else row
    patches = trace.picture.rows * trace.picture.columns
    patch_weights = row[trace.picture.first : trace.picture.first + patches]
    return patch_weights.reshape(trace.picture.rows, trace.picture.columns)
