"""A video as SVG: its frames side by side with the grid of tokens, and the frames one after the other."""

from __future__ import annotations

import numpy as np
from PIL import Image

from tracer.figures.palette import stage_colour
from tracer.figures.tensors.image_patches import data_uri

COLUMNS = 4
"""Frames in a row."""
GAP, HEAD = 6, 9
"""Between frames, and above each for its number, in pixels of the video."""
SECONDS = 0.25
"""Duration of each frame."""
STROKE = 'fill="none" vector-effect="non-scaling-stroke"'


def sheet(frames: np.ndarray, side: int, depth: int, chosen: int, what: str) -> str:
    """Draw all frames `[F, H, W, 3]` of a video, each with the grid of patches of `side` pixels.

    A token is a patch of `depth` frames in a row, in the order of time, then row by row; names count from 1. The
    `chosen` one, from 0, is framed, all others are dimmed, and the token under the pointer is marked in every frame.
    `what` names the tokens.
    """
    count, height, width = frames.shape[:3]
    across, down = width // side, height // side
    rows = -(-count // COLUMNS)
    whole = COLUMNS * (width + GAP) - GAP, rows * (height + HEAD + GAP) - GAP
    elements = []
    for number, frame in enumerate(frames):
        left, top = (width + GAP) * (number % COLUMNS), (height + HEAD + GAP) * (number // COLUMNS) + HEAD
        first = number // depth * across * down
        cells = "".join(
            f'<rect data-patch="{what} {first + place + 1}" x="{left + side * (place % across)}" '
            f'y="{top + side * (place // across)}" width="{side}" height="{side}" fill="#000" '
            f'fill-opacity="{0 if first + place == chosen else 0.45}"><title>{what} {first + place + 1}</title></rect>'
            for place in range(across * down)
        )
        lines = "".join(f"M{left + side * i} {top}v{height}" for i in range(1, across))
        lines += "".join(f"M{left} {top + side * i}h{width}" for i in range(1, down))
        elements.append(
            f'<text x="{left}" y="{top - 2}">frame {number + 1}</text>'
            f'<image href="{data_uri(Image.fromarray(frame), "PNG")}" x="{left}" y="{top}" width="{width}" '
            f'height="{height}" style="image-rendering:pixelated"/>{cells}'
            f'<path d="{lines}" stroke="#fff" stroke-opacity="0.6" stroke-width="1" pointer-events="none" {STROKE}/>'
        )
        if 0 <= chosen - first < across * down:
            place = chosen - first
            box = f'x="{left + side * (place % across)}" y="{top + side * (place // across)}"'
            colour = f'stroke="{stage_colour("attention")}" stroke-width="3" pointer-events="none"'
            elements.append(f'<rect {box} width="{side}" height="{side}" {colour} {STROKE}/>')
    label = f"{count} frames cut to {count // depth * across * down} tokens; {what} {chosen + 1} is framed"
    return _svg(whole, label, f'<g fill="currentColor" font-size="6.5">{"".join(elements)}</g>', "34rem")


def player(frames: np.ndarray, playing: bool) -> str:
    """Draw the frames `[F, H, W, 3]` in one place, one after the other if they are `playing`.

    The first frame alone is shown if they are not, or if the reader's system asks for less motion.
    """
    count, height, width = frames.shape[:3]
    strip = data_uri(Image.fromarray(np.concatenate(list(frames), axis=1)), "PNG")
    style = (
        f"<style>@media (prefers-reduced-motion: no-preference) {{ .strip {{ animation: play {count * SECONDS:g}s "
        f"steps({count}) infinite; }} }} @keyframes play {{ to {{ transform: translateX({-count * width}px); }} }}"
        "</style>"
    )
    image = f'<image href="{strip}" width="{count * width}" height="{height}" style="image-rendering:pixelated"/>'
    label = "The video, a red circle that goes past a blue square"
    return _svg((width, height), label, f'{style if playing else ""}<g class="strip">{image}</g>', "14rem")


def _svg(size: tuple[int, int], label: str, inside: str, most: str) -> str:
    """Return an SVG of that size in its own pixels, as wide as its container and at most as high as `most`."""
    return (
        f'<svg viewBox="0 0 {size[0]} {size[1]}" role="img" aria-label="{label}" preserveAspectRatio="xMinYMin" '
        f'style="display:block;width:100%;max-height:{most};overflow:hidden">{inside}</svg>'
    )
