"""Generated time series: a trend, seasons and noise. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable
from math import pi

import numpy as np

LENGTH = 96
"""Values of a series."""


def generate_series(level: float, trend: float, seasons: dict[float, float], noise: float, seed: int = 0) -> np.ndarray:
    """Return a series float32 `[T]`: `level`, plus `trend` from its first value to its last, plus waves of the periods
    and heights in `seasons`, plus normal noise of that standard deviation."""
    t = np.arange(LENGTH)
    waves = sum(height * np.sin(2 * pi * t / period) for period, height in seasons.items())
    grain = np.random.default_rng(seed).normal(0, noise, LENGTH)
    return (level + trend * t / (LENGTH - 1) + waves + grain).astype(np.float32)


def _jump() -> np.ndarray:
    """Return the first series, with one value that is six times as high."""
    series = SERIES["trend and season"]()
    series[70] *= 6
    return series


SERIES: dict[str, Callable[[], np.ndarray]] = {
    "trend and season": lambda: generate_series(20, 12, {24: 6, 8: 2}, 1),
    "two seasons": lambda: generate_series(5, 0, {32: 3, 12: 2}, 0.3, seed=1),
    "one outlier": _jump,
}
"""The series that are made here, by name."""
