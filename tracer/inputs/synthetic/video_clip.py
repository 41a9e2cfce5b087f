"""A drawn scene that moves: a circle rolls past a square that stays. Nothing here imports torch."""

from __future__ import annotations

import numpy as np

from tracer.inputs.synthetic.scenes import SIDE, Scene, SceneObject, gather

FRAMES = 8
"""Frames of the clip."""
HEIGHT, WIDTH = 48, SIDE
"""Pixels of a frame: fewer rows than columns, so that the two are not mistaken for one another."""
START, STEP = 11.0, 6.0
"""Where the centre of the circle is in the first frame, and how far it goes in each, in pixels."""


def clip() -> np.ndarray:
    """Return the frames of the clip, uint8 `[F, H, W, 3]`: a red circle that goes right, above a blue square that
    stays."""
    top = (SIDE - HEIGHT) // 2
    return gather([_scene(frame) for frame in range(FRAMES)]).pixels()[:, top : top + HEIGHT]


def _scene(frame: int) -> Scene:
    moving = SceneObject("circle", "red", "large", START + STEP * frame, 24.0, 9.0)
    return Scene((moving, SceneObject("square", "blue", "small", 40.0, 46.0, 6.0)))
