"""Test whether an answer depends on the patches that were attended to: hide them, and others for comparison.

Source: Samek et al. 2017, section III; the baselines are as many patches at random, and those in the centre.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from tracer.attention import layers, places, segments
from tracer.changes.of_inputs import Hide
from tracer.record import Trace

if TYPE_CHECKING:
    from tracer.models.shared.spec import Model

SEEDS = 20
"""Random choices of patches."""


class HidingTest(NamedTuple):
    """Probability of an answer with no patch hidden, and with equally many hidden: the most attended, the most central,
    and several random choices."""

    answer: str
    plain: float
    attended: float
    central: float
    random: tuple[float, ...]


def rank_by_attention(trace: Trace) -> tuple[int, ...]:
    """Return all patches of a run on a photo, the most attended first.

    This is the attention in the last block, the mean over heads, of the token that the answer is read from, or of all.
    Raise ValueError for a run without attention over a photo.
    """
    tokens = places(trace)
    records = layers(trace) if trace.attentions else ()
    if not tokens or not records or records[-1].problem or records[-1].keys <= max(tokens):
        raise ValueError("this run has no attention over a photo")
    weights = trace.attention(len(records) - 1)[0].mean(0)
    cls = [segment.start for segment in segments(trace) if segment.name == "CLS"]
    row = weights[cls[0]] if cls else weights.mean(0)
    return tuple(tokens[token] for token in sorted(tokens, key=lambda token: -float(row[token])))


def nearest_to_centre(rows: int, columns: int) -> tuple[int, ...]:
    """Return all patches of a grid, those nearest to the centre first."""
    y, x = np.divmod(np.arange(rows * columns), columns)
    far = np.maximum(abs((y + 0.5) / rows - 0.5), abs((x + 0.5) / columns - 0.5))
    return tuple(np.argsort(far, kind="stable").tolist())


def hide_attended(model: Model, trace: Trace, count: int, fill: str = "mean", **user_input: Any) -> HidingTest:
    """Hide that many patches and return the effect on the answer of a run; `user_input` are its arguments.

    Raise ValueError for a run that has no classes, no photo in patches, or not as many patches.
    """
    if trace.result.get("kind") != "classes" or trace.picture is None:
        raise ValueError("patches are hidden from models that name the class of a photo")
    ranked, names = rank_by_attention(trace), list(trace.result["classes"])
    if not 0 < count < len(ranked):
        raise ValueError(f"{count} patches can't be hidden, expected 1 to {len(ranked) - 1}")
    shares = list(map(float, trace.result["probabilities"]))
    answer = names[int(np.argmax(shares))]
    central = nearest_to_centre(trace.picture.rows, trace.picture.columns)

    def probability(patches: tuple[int, ...]) -> float:
        changed = model.with_changes({"image": Hide(patches, fill)})
        inputs = changed.inputs(**user_input)
        with torch.no_grad():
            output = changed.net(*inputs, **inputs.named)
        result = changed.spec.result(changed, inputs.on(torch.device("cpu")), output)
        return dict(zip(result["classes"], map(float, result["probabilities"]), strict=True)).get(answer, 0.0)

    draws = (np.random.default_rng(seed).choice(len(ranked), count, replace=False) for seed in range(SEEDS))
    return HidingTest(
        answer,
        max(shares),
        probability(ranked[:count]),
        probability(central[:count]),
        tuple(probability(tuple(map(int, patches))) for patches in draws),
    )
