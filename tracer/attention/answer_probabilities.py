"""Probabilities of an answer's choices, from the output of a batch, for models of every kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

SINGLE_ANSWER_KINDS = {"classes", "sentences", "next", "caption"}
"""Kinds of results with one answer for each input; a text's is the next token."""
POSITION_ANSWER_KINDS = {"tokens", "labels"}
"""Kinds of results with an answer at each position."""


def choice_probabilities(kind: str, output: Any) -> Tensor | None:
    """Return the probabilities of all choices, `[B, choices]` or `[B, positions, choices]`, in float64.

    `kind` is that of the model's result, `output` what forward returned: a tensor, or a mapping with `logits`. None for
    a kind without probabilities, such as a reconstruction.
    """
    scores = output.get("logits") if isinstance(output, Mapping) else output
    if kind not in SINGLE_ANSWER_KINDS | POSITION_ANSWER_KINDS or not isinstance(scores, Tensor) or scores.dim() < 2:
        return None
    scores = scores.detach().double()
    if kind in SINGLE_ANSWER_KINDS:
        scores = scores[:, -1] if scores.dim() == 3 else scores
        return as_probabilities(scores) if scores.dim() == 2 else None
    return as_probabilities(scores.flatten(1, -2)) if scores.dim() > 2 else None


def as_probabilities(scores: Tensor) -> Tensor:
    """Return the softmax over the last axis, or the scores themselves where a model returns probabilities already."""
    if bool((scores >= 0).all()) and bool((scores.sum(dim=-1) - 1).abs().max() < 1e-4):
        return scores
    return scores.softmax(dim=-1)


def answer_probability(probabilities: Tensor, answer: Tensor) -> Tensor:
    """Return the probability of an answer in each row, `[B]`; the mean over positions where there are several.

    `answer` is the number of the choice, or one for each position.
    """
    index = answer.expand(probabilities.shape[:-1])[..., None]
    picked = probabilities.gather(-1, index)[..., 0]
    return picked.mean(dim=-1) if picked.dim() > 1 else picked


def floating_output(output: Any) -> Tensor:
    """Return the first floating-point tensor that forward returned, `[B, …]`, except a loss, which is one number for
    the batch. Raise ValueError where there is none."""
    values = (
        output.values() if isinstance(output, Mapping) else output if isinstance(output, (tuple, list)) else (output,)
    )
    for value in values:
        if isinstance(value, Tensor) and torch.is_floating_point(value) and value.dim():
            return value
    raise ValueError("the model returned no tensor of numbers, so there is no answer that a head could change")
