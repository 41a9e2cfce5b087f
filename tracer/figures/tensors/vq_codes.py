"""A picture as codes in SVG: the ids over the grid, the decoded picture, and the whole codebook."""

from __future__ import annotations

import html

import numpy as np
from PIL import Image

from tracer.figures.tensors.image_patches import data_uri

CELL = 32
"""Units of a drawing that a cell of the grid takes."""
CODES_PER_ROW = 16
"""Codes side by side in the drawing of all of them."""


def picture(image: Image.Image, label: str) -> str:
    """Draw a small picture with its pixels visible."""
    width, height = image.size
    return _svg(width, height, label, f'<image href="{data_uri(image, "PNG")}" width="{width}" height="{height}" '
                  'style="image-rendering:pixelated"/>')  # fmt: skip


def grid(ids: np.ndarray, colours: np.ndarray, label: str) -> str:
    """Draw the ids `[rows, columns]`, each on the mean colour of its code; `colours` is uint8 `[V, 3]`."""
    rows, columns = ids.shape
    cells = []
    for row in range(rows):
        for column in range(columns):
            id, (x, y) = int(ids[row, column]), (column * CELL, row * CELL)
            red, green, blue = (int(channel) for channel in colours[id])
            ink = "#000" if 0.299 * red + 0.587 * green + 0.114 * blue > 128 else "#fff"
            cells.append(
                f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="rgb({red},{green},{blue})"/>'
                f'<text x="{x + CELL / 2:g}" y="{y + CELL * 0.66:g}" fill="{ink}">{id}</text>'
            )
    inside = f'<g font-size="{CELL * 0.47:g}" font-family="inherit" text-anchor="middle">{"".join(cells)}</g>'
    return _svg(columns * CELL, rows * CELL, label, inside)


def sheet(codes: np.ndarray, counts: np.ndarray, label: str) -> str:
    """Draw all codes, uint8 `[V, P, P, 3]`, in the order of their ids.

    `counts` `[V]` are the numbers of uses: an unused code is crossed out.
    """
    side, total = codes.shape[1], len(codes)
    rows, pitch = -(-total // CODES_PER_ROW), side + 2
    pixels = np.zeros((rows * pitch, CODES_PER_ROW * pitch, 4), dtype=np.uint8)
    crosses = []
    for id, code in enumerate(codes):
        top, left = id // CODES_PER_ROW * pitch, id % CODES_PER_ROW * pitch
        pixels[top : top + side, left : left + side, :3], pixels[top : top + side, left : left + side, 3] = code, 255
        if not counts[id]:
            crosses.append(f"M{left} {top}l{side} {side}m0 {-side}l{-side} {side}")
    width, height = CODES_PER_ROW * pitch, rows * pitch
    image = f'<image href="{data_uri(Image.fromarray(pixels), "PNG")}" width="{width}" height="{height}" '
    lines = "".join(crosses)
    strokes = "".join(
        f'<path d="{lines}" stroke="{colour}" stroke-width="{wide}" fill="none" vector-effect="non-scaling-stroke"/>'
        for colour, wide in (("#fff", 3), ("#d01f3c", 1.5))
    )
    return _svg(width, height, label, f'{image}style="image-rendering:pixelated"/>{strokes}')


def _svg(width: float, height: float, label: str, inside: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(label)}" '
        'preserveAspectRatio="xMinYMin" style="display:block;width:100%;max-height:26rem;border-radius:6px">'
        f"{inside}</svg>"
    )
