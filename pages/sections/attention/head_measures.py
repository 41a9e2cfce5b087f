"""Measures of each head, in words: for one photo, and for the mean and the spread over many."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracer.figures.attention.head_grid import Measure, with_sign

NAMES = {
    "effect": "Effect on the answer",
    "loss": "Effect on the loss",
    "entropy": "Entropy",
    "distance": "Distance",
    "special": "Weight on CLS",
}
"""The measures as addresses name them, with their titles."""


class MeasureUnit(NamedTuple):
    """Unit of a measure: `patches` where distances are widths of patches, else of tokens; `points` where
    effects are on a probability, in percentage points."""

    patches: bool
    points: bool


def measure(name: str, values: np.ndarray, unit: MeasureUnit) -> Measure:
    """Return a measure of one run."""
    width = "patch widths" if unit.patches else "tokens"
    if name == "effect" and unit.points:
        title = "Change of the answer’s probability without the head, in percentage points"
        return Measure(title, values, with_sign, lambda value: f"{with_sign(value, 2)} points", signed=True)
    if name == "loss":
        title = "Change of the loss without the head, in nats"
        return Measure(title, values, _two, lambda value: f"{with_sign(value, 3)} nats", signed=True)
    if name in ("effect", "special"):
        title = "Change of the output without the head" if name == "effect" else "Weight on CLS, registers and the like"
        return Measure(title, values, lambda value: f"{100 * value:.0f}%", lambda value: f"{100 * value:.1f} %")
    if name == "distance":
        title = f"Mean distance that the head attends over, in {width}"
        return Measure(title, values, lambda value: f"{value:.1f}", lambda value: f"{value:.2f} {width}")
    title = "Mean entropy of the head’s weights, in nats"
    return Measure(title, values, lambda value: f"{value:.1f}", lambda value: f"{value:.2f} nats")


def spread(of: Measure, values: np.ndarray, count: int) -> Measure:
    """Return the spread of a measure over photos, which has no sign."""

    def drop_plus(text: str) -> str:
        return text.removeprefix("+")

    return Measure(
        f"{of.name}: standard deviation over {count:,} photos",
        values,
        lambda value: drop_plus(of.short(value)),
        lambda value: drop_plus(of.full(value)),
    )


def axis(name: str, unit: MeasureUnit) -> str:
    """Return the title of an axis of a measure's numbers."""
    return {
        "effect": "change of the probability, points" if unit.points else "change of the output, share",
        "loss": "change of the loss, nats",
        "entropy": "entropy, nats",
        "distance": f"distance, {'patch widths' if unit.patches else 'tokens'}",
        "special": "weight on CLS, share",
    }[name]


def _two(value: float) -> str:
    return with_sign(value, 2)
