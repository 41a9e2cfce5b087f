"""Flat shapes as signed distances: the distance of a point from a shape's edge, negative inside.

Each function takes x to the right and y down from the centre, and the radius (half the shape's width), in pixels, as
arrays that broadcast. Source: Quilez, 2D distance functions; away from an edge's nearest side they are bounds, which is
all that drawing with antialiased edges needs.
"""

from __future__ import annotations

from math import cos, pi, sin, sqrt

import numpy as np


def circle(x, y, r) -> np.ndarray:
    return np.hypot(x, y) - r


def square(x, y, r) -> np.ndarray:
    return np.maximum(abs(x), abs(y)) - r


def triangle(x, y, r) -> np.ndarray:
    """Return the distance from a triangle that points up: base 2r at the bottom, height 2r."""
    return np.maximum(y - r, (2 * abs(x) - y - r) / sqrt(5))


def cross(x, y, r) -> np.ndarray:
    """Return the distance from a cross of two bars of a third of the width."""
    across, down = abs(x), abs(y)
    return np.minimum(
        np.maximum(across - r, down - 0.36 * r),
        np.maximum(across - 0.36 * r, down - r),
    )


def star(x, y, r) -> np.ndarray:
    """Return the distance from a star of five points, one up; the inner corners lie at 0.45 of the radius."""
    fifth = 2 * pi / 5
    angle = abs((np.arctan2(x, -y) + fifth / 2) % fifth - fifth / 2)  # 0 at a point, π/5 between two
    distance = np.hypot(x, y)
    inner = 0.45 * r
    ex, ey = inner * cos(fifth / 2) - r, inner * sin(fifth / 2)  # along the edge, from the point to the inner corner
    px, py = distance * np.cos(angle) - r, distance * np.sin(angle)
    return (ex * py - ey * px) / -np.hypot(ex, ey)


SHAPES = {"circle": circle, "square": square, "triangle": triangle, "cross": cross, "star": star}
"""The shapes by their names."""
