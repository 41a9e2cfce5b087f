"""A matrix product drawn to scale: rows of the left factor meet columns of the right one."""

import html
import re
from functools import lru_cache

from tracer.export.math_labels import size_html, svg_text, symbol_html, symbol_text
from tracer.figures.palette import stage_colour
from tracer.record import Operand

SIZE = 420  # pixels of the longer side of the drawing, without labels
GAP = 30
MARGIN = 112
DRAWINGS = 512
"""Drawings that are known at once: products of the same sizes and symbols are in every run of a model."""


def rectangles(product: tuple[Operand, Operand, Operand]) -> list[tuple[float, float, float, float]]:
    """Return (x, y, width, height) of left factor, right factor and result, every side in the same proportion.

    The left factor lies left of the result (they share the rows), the right factor above it (the columns).
    """
    (rows, inner), (_, columns) = product[0].shape, product[1].shape
    unit = SIZE / max(inner + columns, inner + rows)
    deep, tall, wide = inner * unit, rows * unit, columns * unit
    return [
        (0, deep + GAP, deep, tall),
        (deep + GAP, 0, wide, deep),
        (deep + GAP, deep + GAP, wide, tall),
    ]


@lru_cache(maxsize=DRAWINGS)
def drawing(product: tuple[Operand, Operand, Operand], stage: str) -> str:
    """Draw the product as SVG, with symbols in the rectangles and sizes on their sides."""
    left, right, result = product
    boxes = rectangles(product)
    (ax, ay, aw, ah), (bx, by, bw, bh), (cx, cy, cw, ch) = boxes
    colour = stage_colour(stage)
    parts = [_box(box, colour, 0.42 if index == 2 else 0.16) for index, box in enumerate(boxes)]
    row, column = ah / left.shape[0], bw / right.shape[1]
    parts += [  # one row meets one column in one value
        _box(part, colour, 1) for part in ((ax, ay, aw, row), (bx, by, column, bh), (cx, cy, column, row))
    ]
    for operand, box in zip(product, boxes, strict=True):
        parts.append(_name(operand.symbol, box, beside=operand is right))
    parts += [
        _text(_side(left, 0), ax - 8, ay + ah / 2, "end"),
        _text(_side(left, 1), ax + aw / 2, ay + ah + 20, "middle"),
        _text(_side(right, 1), bx + bw / 2, by - 10, "middle"),
        _text(_side(right, 0), bx + bw + 8, by + bh / 2, "start"),
        _text(_side(result, 0), cx + cw + 8, cy + ch / 2, "start"),
        _text(_side(result, 1), cx + cw / 2, cy + ch + 20, "middle"),
    ]
    width, height = cx + cw + 2 * MARGIN, cy + ch + 64
    return (
        f'<svg class="product" viewBox="{-MARGIN} -32 {width:.1f} {height:.1f}" role="img" '
        f'aria-label="{html.escape(describe(product))}" '
        f'style="display:block;width:100%;max-width:{width:.0f}px;max-height:30rem;overflow:visible" '
        f'font-size="15" fill="currentColor" font-family="inherit">{"".join(parts)}</svg>'
    )


def describe(product: tuple[Operand, Operand, Operand]) -> str:
    """Return the text alternative: `X_p [64 × 48] times W_E [48 × 128] gives I [64 × 128], drawn to scale`."""
    left, right, result = (f"{symbol_text(o.symbol)} [{o.shape[0]} × {o.shape[1]}]" for o in product)
    return f"{left} times {right} gives {result}, drawn to scale"


def _box(box: tuple[float, float, float, float], colour: str, opacity: float) -> str:
    x, y, w, h = box
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{w:.2f}" height="{h:.2f}" fill="{colour}" fill-opacity="{opacity}" '
        f'stroke="{colour}" stroke-width="1.5"/>'
    )


def _name(symbol: str, box: tuple[float, float, float, float], beside: bool) -> str:
    """Return the symbol in the middle of its rectangle, or, if it does not fit, `beside` it or above it."""
    x, y, w, h = box
    letters = len(re.sub(r"[\^_()]", "", symbol_text(symbol)))
    if w >= 12 * letters + 8 and h >= 26:
        return _text(symbol_html(symbol), x + w / 2, y + h / 2, "middle", 20)
    if beside:
        return _text(symbol_html(symbol), x - 8, y + h / 2, "end", 18)
    return _text(symbol_html(symbol), x + w / 2, y - 15, "middle", 18)


def _side(operand: Operand, axis: int) -> str:
    symbolic, size = operand.symbolic[axis], operand.shape[axis]
    return f"{size_html(symbolic)} = {size}" if symbolic not in ("?", str(size)) else str(size)


def _text(markup: str, x: float, y: float, anchor: str, size: int = 15) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" dominant-baseline="central" font-size="{size}">'
        f"{svg_text(markup)}</text>"
    )
