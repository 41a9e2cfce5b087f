"""Points in space: a sampled torus, and centres far from one another. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable
from math import pi

import numpy as np

POINTS = 1024
"""Points of a cloud."""


def torus(seed: int, ring: float = 1.0, tube: float = 0.4) -> np.ndarray:
    """Return points of a torus around the z axis, evenly spread over its surface: float32 `[N, 3]`.

    The angle around the tube is drawn again where the surface is narrow (Diaconis, Holmes and Shahshahani 2013).
    """
    random = np.random.default_rng(seed)
    around = random.uniform(0, 2 * pi, POINTS)
    angle = np.empty(0)
    while len(angle) < POINTS:
        angles, chance = random.uniform(0, 2 * pi, 2 * POINTS), random.uniform(0, 1, 2 * POINTS)
        angle = np.concatenate([angle, angles[chance * (ring + tube) < ring + tube * np.cos(angles)]])
    reach = ring + tube * np.cos(angle[:POINTS])
    points = [reach * np.cos(around), reach * np.sin(around), tube * np.sin(angle[:POINTS])]
    return np.stack(points, axis=1).astype(np.float32)


def sphere(seed: int) -> np.ndarray:
    """Return points of the unit sphere, evenly spread: float32 `[N, 3]`."""
    points = np.random.default_rng(seed).normal(size=(POINTS, 3))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def box(seed: int) -> np.ndarray:
    """Return points of the faces of a cube from -1 to 1, evenly spread: float32 `[N, 3]`."""
    random = np.random.default_rng(seed)
    points = random.uniform(-1, 1, (POINTS, 3))
    points[np.arange(POINTS), random.integers(3, size=POINTS)] = random.choice((-1.0, 1.0), POINTS)
    return points.astype(np.float32)


CLOUDS: dict[str, Callable[[], np.ndarray]] = {
    "torus": lambda: torus(0),
    "sphere": lambda: sphere(0),
    "cube": lambda: box(0),
}
"""The clouds that are made here, by name."""


def farthest(points: np.ndarray, count: int, start: int = 0) -> np.ndarray:
    """Return indices int64 `[count]` into `points`, `[N, 3]`, by farthest point sampling (Eldar et al. 1997).

    The first is `start`; each next one is the point whose nearest chosen point is farthest away. Raise ValueError for
    more points than there are.
    """
    if not 1 <= count <= len(points):
        raise ValueError(f"{count} centres can't be chosen among {len(points)} points")
    points = points.astype(float)
    chosen, away = [start], np.full(len(points), np.inf)
    while len(chosen) < count:
        away = np.minimum(away, ((points - points[chosen[-1]]) ** 2).sum(axis=1))
        chosen.append(int(away.argmax()))
    return np.array(chosen)


def shortfall(points: np.ndarray, chosen: np.ndarray) -> float:
    """Return how far a choice falls short of farthest point sampling, with all distances recomputed: the most by which
    another point is farther from the earlier choices than the chosen one. 0 where each is the farthest."""
    apart = np.linalg.norm(points[:, None].astype(float) - points[chosen][None].astype(float), axis=2)  # [N, G]
    nearest = np.minimum.accumulate(apart, axis=1)[:, :-1]  # to the nearest of the first g, for each g
    taken = nearest[chosen[1:], np.arange(len(chosen) - 1)]
    return float(np.max(nearest.max(axis=0) - taken, initial=0.0))
