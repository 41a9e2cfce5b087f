"""Columns of one matrix that belong to each head, in the equation's layout and in PyTorch's."""

from __future__ import annotations

import html
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from tracer.export.math_labels import size_html, svg_text, symbol_html, symbol_text
from tracer.figures.palette import stage_colour
from tracer.record import AttentionRecord, Step, Trace

if TYPE_CHECKING:
    import torch

SIDE, PACKED_SIDE = 150, 330
"""Pixels of the longer side of a matrix; of one that computes queries, keys and values at once."""
MAX_COLORED_HEADS = 32
"""Heads whose columns are drawn in their own colours."""
COLOURS = ("embedding", "attention", "mlp", "position")
"""Stages whose colours heads share in rotation, or queries, keys and values if one matrix computes all three."""
PARTS = {r"\mathbf{Q}": "Q", r"\mathbf{K}": "K", r"\mathbf{V}": "V"}
PACKED_SYMBOL = r"\mathbf{QKV}"


class HeadBand(NamedTuple):
    """Columns of a matrix that belong to one head: the index of the first, and their number.

    `part` is "Q", "K" or "V" if the matrix computes all three.
    """

    start: int
    width: int
    head: int
    part: str = ""


class ProjectionMatrix(NamedTuple):
    """Matrix of queries, keys or values, or of all three.

    It has its symbol, the step that multiplies by it, the bands of its columns, and its sizes as in the equation, `[in,
    out]`; `transposed` says that PyTorch keeps `[out, in]`.
    """

    symbol: str
    step: Step
    bands: tuple[HeadBand, ...]
    symbolic: tuple[str, str]
    shape: tuple[int, int]
    transposed: bool

    @property
    def heads(self) -> int:
        """Number of heads that share the columns."""
        return 1 + max(band.head for band in self.bands)

    @property
    def is_packed(self) -> bool:
        """True if the matrix computes queries, keys and values at once."""
        return bool(self.bands[0].part)


def matrices(trace: Trace, record: AttentionRecord) -> list[ProjectionMatrix]:
    """Return the matrices of one attention, as many as the model has; none if the run does not name them."""
    inputs = {operand.maker: operand for op in trace.ops for operand in op.inputs if operand.maker in op.parameters}
    result = []
    for step in trace.steps:
        if step.layer != record.layer or not step.id.startswith(record.part):
            continue
        for name in step.names if step.symbol.startswith((PACKED_SYMBOL, *PARTS)) else ():
            tensor = inputs.get(name.of.removeprefix("parameter "))
            if tensor is None or len(tensor.shape) != 2 or not name.symbol.startswith(r"\mathbf{W}"):
                continue
            rows, columns = (-1, -2) if name.transposed else (-2, -1)
            sizes, shape = tensor.symbolic or ("?", "?"), tensor.shape
            bands = (
                _packed_bands(trace, step)
                if step.symbol.startswith(PACKED_SYMBOL)
                else _equal_bands(step, shape[columns])
            )
            if 0 < len({band.head for band in bands}) <= MAX_COLORED_HEADS:
                own, numbers = (sizes[rows], sizes[columns]), (shape[rows], shape[columns])
                result.append(ProjectionMatrix(name.symbol, step, bands, own, numbers, name.transposed))
    return result


def _equal_bands(step: Step, columns: int) -> tuple[HeadBand, ...]:
    """Return the bands of a matrix whose columns go to the heads of its step in order."""
    heads = step.shape[-3] if len(step.shape) == 4 else 1
    each = columns // max(1, heads)
    return tuple(HeadBand(head * each, each, head) for head in range(heads)) if heads * each == columns else ()


def _packed_bands(trace: Trace, step: Step) -> tuple[HeadBand, ...]:
    """Return the bands of a product that computes queries, keys and values at once.

    A band is the columns that hold the very same numbers in this run. Return none if one head has no band.
    """
    steps = {
        PARTS[line.symbol[:10]]: own
        for line in trace.steps
        if line.layer == step.layer and line.symbol[:10] in PARTS and len(line.shape) == 4
        if (own := trace.value(line)) is not None
    }
    tensor = trace.value(step)
    if tensor is None or tensor.ndim != 3 or set(steps) != set(PARTS.values()):
        return ()
    ways = (tensor[0], tensor[:, 0])  # the batch is in front, or the sequence
    candidates = (tuple(_find_bands(rows, steps)) for rows in ways if len(rows) == steps["Q"].shape[-2])
    return next((bands for bands in candidates if sum(band.width for band in bands) == tensor.shape[-1]), ())


def _find_bands(rows: torch.Tensor, tensors: dict[str, torch.Tensor]) -> Iterator[HeadBand]:
    for part, tensor in tensors.items():
        for head, own in enumerate(tensor[0]):
            width = own.shape[-1]
            starts = (rows[0, : rows.shape[-1] - width + 1] == own[0, 0]).nonzero().flatten().tolist()
            start = next((at for at in starts if rows[:, at : at + width].equal(own)), None)
            if start is not None:
                yield HeadBand(start, width, head, part)


def drawing(matrix: ProjectionMatrix) -> str:
    """Draw the matrix as SVG, twice.

    A head's columns have one colour: as columns in the equation's layout, and as rows in PyTorch's.
    """
    (rows, columns), (row, column) = matrix.shape, matrix.symbolic
    unit = (PACKED_SIDE if matrix.is_packed else SIDE) / max(rows, columns)
    wide, tall = columns * unit, rows * unit
    parts = [_bands(matrix, unit, tall, across=True)]
    parts += [_text(svg_text(symbol_html(matrix.symbol)), wide / 2, -14, 17), _side(row, -8, tall / 2, "end")]
    parts.append(_side(column, wide / 2, tall + 18, "middle"))
    width = wide
    if matrix.transposed:
        width = wide + 70
        parts.append(f'<g transform="translate({width:.1f} 0)">{_bands(matrix, unit, tall, across=False)}')
        parts += [_text("PyTorch’s weight", tall / 2, -14, 14), _side(column, -8, wide / 2, "end")]
        parts.append(_side(row, tall / 2, wide + 18, "middle") + "</g>")
        width += tall
    high = max(tall, wide if matrix.transposed else 0)
    label, style = html.escape(describe(matrix)), f"display:block;width:100%;max-width:{width + 92:.0f}px"
    return (
        f'<svg viewBox="-62 -38 {width + 92:.0f} {high + 66:.0f}" role="img" aria-label="{label}" style="{style}" '
        f'font-size="14" fill="currentColor" font-family="inherit">{"".join(parts)}</svg>'
    )


def describe(matrix: ProjectionMatrix) -> str:
    """Return the text alternative: `W_Q [128 × 128]: 4 heads of 32 columns each`."""
    rows, columns = matrix.shape
    each = matrix.bands[0].width
    if matrix.is_packed:
        groups = ", ".join(f"{part} from column {first.start} on" for part, first, _ in _groups(matrix))
        many = f"{matrix.heads} heads of {each} columns each; {groups}"
        return f"{symbol_text(matrix.symbol)} [{rows} × {columns}]: {many}"
    many = f"{matrix.heads} heads of {each} columns each" if matrix.heads > 1 else f"one head of {each} columns"
    return f"{symbol_text(matrix.symbol)} [{rows} × {columns}]: {many}"


def _groups(matrix: ProjectionMatrix) -> list[tuple[str, HeadBand, int]]:
    """Return runs of columns for queries, for keys or for values alone: their part, first band, number of heads."""
    groups = [(part, list(group)) for part, group in groupby(sorted(matrix.bands), key=lambda band: band.part)]
    return [(part, group[0], sum(band.width for band in group)) for part, group in groups]


def _bands(matrix: ProjectionMatrix, unit: float, depth: float, across: bool) -> str:
    """Draw the bands, side by side or one above the other."""
    parts, bands = list(PARTS.values()), []
    for band in sorted(matrix.bands):
        at, step = band.start * unit, band.width * unit
        x, y, w, h = (at, 0, step, depth) if across else (0, at, depth, step)
        colour = stage_colour(COLOURS[(parts.index(band.part) if band.part else band.head) % len(COLOURS)])
        bands.append(
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{w:.2f}" height="{h:.2f}" fill="{colour}" fill-opacity="0.4" '
            f'stroke="{colour}"/>'
        )
        if step >= 14 and not band.part:
            bands.append(_text(str(band.head + 1), x + w / 2, y + h / 2, 13))
    for part, first, wide in _groups(matrix):
        x, y = (first.start + wide / 2) * unit, depth / 2
        if part and wide * unit >= 14:
            bands.append(_text(part, *((x, y) if across else (y, x)), 16))
    return "".join(bands)


def _text(text: str, x: float, y: float, size: int) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="middle" dominant-baseline="central" font-size="{size}"'
    return f"<text {place}>{text}</text>"


def _side(size: str, x: float, y: float, anchor: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" dominant-baseline="central"'
    return f"<text {place}>{svg_text(size_html(size))}</text>"
