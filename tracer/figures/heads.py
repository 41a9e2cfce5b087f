"""Where heads come from: the columns of one matrix, dealt out to them, and the same numbers as PyTorch keeps them."""

from __future__ import annotations

import html
from typing import NamedTuple

from tracer.figures.colours import stage_colour
from tracer.figures.labels import size_html, svg_text, symbol_html, symbol_text
from tracer.record import AttentionRecord, Step, Trace

SIDE = 150
"""Pixels of the longer side of a matrix."""
MOST = 32
"""Heads whose columns are told apart."""
COLOURS = ("embedding", "attention", "mlp", "position")
"""Stages whose colours heads take in turn."""


class Matrix(NamedTuple):
    """The matrix of queries, keys or values: its symbol, the step that multiplies by it, how many heads its columns are
    dealt out to, and its sizes as the equation has it, `[in, out]`; `turned` says that PyTorch keeps `[out, in]`."""

    symbol: str
    step: Step
    heads: int
    symbolic: tuple[str, str]
    shape: tuple[int, int]
    turned: bool


def matrices(trace: Trace, record: AttentionRecord) -> list[Matrix]:
    """Those of one attention, as many as the model has; none where the run does not name them."""
    inputs = {one.maker: one for op in trace.ops for one in op.inputs if one.maker in op.parameters}
    found = []
    for step in trace.steps:
        if step.layer != record.layer or not step.id.startswith(record.part) or not _makes(step):
            continue
        for name in step.names:
            kept = inputs.get(name.of.removeprefix("parameter "))
            if kept is None or len(kept.shape) != 2 or not name.symbol.startswith(r"\mathbf{W}"):
                continue
            rows, columns = (-1, -2) if name.transposed else (-2, -1)
            sizes, shape = kept.symbolic or ("?", "?"), kept.shape
            heads = step.shape[-3] if len(step.shape) == 4 else 1
            if 0 < heads <= MOST and shape[columns] % heads == 0:
                own, numbers = (sizes[rows], sizes[columns]), (shape[rows], shape[columns])
                found.append(Matrix(name.symbol, step, heads, own, numbers, name.transposed))
    return found


def _makes(step: Step) -> bool:
    """Whether a step makes queries, keys or values of tokens, by a product."""
    return step.symbol.startswith((r"\mathbf{Q}", r"\mathbf{K}", r"\mathbf{V}"))


def drawing(matrix: Matrix) -> str:
    """The matrix as SVG, twice: with a head's columns in one colour, as in the equation, and as PyTorch keeps it, with
    the same numbers as rows."""
    (rows, columns), (row, column) = matrix.shape, matrix.symbolic
    unit = SIDE / max(rows, columns)
    wide, tall = columns * unit, rows * unit
    parts = [_bands(matrix.heads, wide, tall, across=True)]
    parts += [_text(svg_text(symbol_html(matrix.symbol)), wide / 2, -14, 17), _side(row, -8, tall / 2, "end")]
    parts.append(_side(column, wide / 2, tall + 18, "middle"))
    width = wide
    if matrix.turned:
        width = wide + 70
        parts.append(f'<g transform="translate({width:.1f} 0)">{_bands(matrix.heads, tall, wide, across=False)}')
        parts += [_text("PyTorch’s weight", tall / 2, -14, 14), _side(column, -8, wide / 2, "end")]
        parts.append(_side(row, tall / 2, wide + 18, "middle") + "</g>")
        width += tall
    high = max(tall, wide if matrix.turned else 0)
    said, style = html.escape(describe(matrix)), f"display:block;width:100%;max-width:{width + 92:.0f}px"
    return (
        f'<svg viewBox="-62 -38 {width + 92:.0f} {high + 66:.0f}" role="img" aria-label="{said}" style="{style}" '
        f'font-size="14" fill="currentColor" font-family="inherit">{"".join(parts)}</svg>'
    )


def describe(matrix: Matrix) -> str:
    """The text alternative: `W_Q [128 × 128]: 4 heads of 32 columns each`."""
    rows, columns = matrix.shape
    each = columns // matrix.heads
    many = f"{matrix.heads} heads of {each} columns each" if matrix.heads > 1 else f"one head of {each} columns"
    return f"{symbol_text(matrix.symbol)} [{rows} × {columns}]: {many}"


def _bands(heads: int, wide: float, tall: float, across: bool) -> str:
    step = (wide if across else tall) / heads
    made = []
    for head in range(heads):
        x, y, w, h = (head * step, 0, step, tall) if across else (0, head * step, wide, step)
        colour = stage_colour(COLOURS[head % len(COLOURS)])
        made.append(
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{w:.2f}" height="{h:.2f}" fill="{colour}" fill-opacity="0.4" '
            f'stroke="{colour}"/>'
        )
        if step >= 14:
            made.append(_text(str(head), x + w / 2, y + h / 2, 13))
    return "".join(made)


def _text(text: str, x: float, y: float, size: int) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="middle" dominant-baseline="central" font-size="{size}"'
    return f"<text {place}>{text}</text>"


def _side(size: str, x: float, y: float, anchor: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" dominant-baseline="central"'
    return f"<text {place}>{svg_text(size_html(size))}</text>"
