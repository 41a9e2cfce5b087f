"""Tensors as heat maps and pictures."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from io import BytesIO
from math import prod
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from tracer.figures.drawing import AMBER, VALUES, stage_colour, tables
from tracer.figures.envelope import compress
from tracer.inputs.images import Crop, patch_boxes
from tracer.record import ATTENTION_WEIGHTS, Operand, Step
from tracer.symbols.notation import AXES, latex, size_html
from tracer.utils.text import percent, svg_text, symbol_html, symbol_text

# A tensor as a heatmap of its last two axes: axes named after the symbols, a colour bar with numbers.

MAX_ROWS, MAX_COLUMNS = 256, 512
MATRICES, ALL_BYTES = 64, 400_000
"""Of a tensor with more matrices, or whose matrices take more bytes together, one is sent at a time."""
LETTER = re.compile(r"[A-Za-z]\w*")
"""A size in a formula of sizes."""


def as_array(tensor) -> np.ndarray:
    """Return a tensor of any kind as a float array (half precision and bfloat16 become float32)."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().float().cpu().numpy()
    return np.asarray(tensor, dtype=np.float32)


def reduce(matrix: np.ndarray, rows: int = MAX_ROWS, columns: int = MAX_COLUMNS) -> tuple[np.ndarray, tuple[int, int]]:
    """Return `[…, rows, columns]` reduced to `rows` × `columns` cells, means of boxes, and the boxes' (height, width).

    The last row and column of boxes may be smaller; a box of one value is the value itself.
    """
    size = matrix.shape[-2:]
    high, wide = (max(1, -(-long // most)) for long, most in zip(size, (rows, columns), strict=True))
    if (high, wide) == (1, 1):
        return matrix, (1, 1)
    down, across = (np.arange(0, long, step) for long, step in zip(size, (high, wide), strict=True))
    sums = np.add.reduceat(np.add.reduceat(matrix.astype(np.float64), down, axis=-2), across, axis=-1)
    heights = np.diff(np.append(down, size[0]))
    widths = np.diff(np.append(across, size[1]))
    return (sums / np.outer(heights, widths)).astype(np.float32), (high, wide)


def build_heatmap(
    value,
    symbolic: Sequence[str],
    stage: str,
    *,
    index: Sequence[int] = (),
    ticks: Sequence[str] | None = None,
    named: Collection[str] = (),
    kind: str = "sequential",
) -> dict[str, Any] | None:
    """Return the matrices of a tensor `[…, rows, columns]` for drawing in the browser; None if it is not drawn.

    All of them are sent if they are few and small, else the one at `index` of the leading axes. `lead` are the leading
    axes as [label, size], `which` the numbers of the matrices that are sent, counted in order, `full` their rows and
    columns before reduction, `box` the values that a cell is the mean of, `axes` the labels of rows and columns,
    `roles` the roles of these (rows and columns of sizes that the caller `named`), `ticks` the names of columns.
    `slices` has for each matrix its scale, [lowest, highest, "diverging", "mask" or else `kind`], the text alternative
    without the tensor's name, and a caption. A mask of one value and -inf is 1 if it is open and has that value as its
    lowest. `cells` are the matrices, `[which, rows, columns]`.
    """
    names = list(symbolic)
    while value.ndim < 2:
        value, names = value[None], ["1", *names]
    lead, full = tuple(value.shape[:-2]), tuple(value.shape[-2:])
    if 0 in value.shape or full[0] * full[1] > VALUES:
        return None
    wanted = (*index, *[0] * len(lead))
    chosen = tuple(min(max(at, 0), size - 1) for at, size in zip(wanted, lead, strict=False))
    count = prod(lead)
    if _together(count, full):
        which, matrices = list(range(count)), as_array(value).reshape(count, *full)
    else:
        which, matrices = [int(np.ravel_multi_index(chosen, lead))], as_array(value[chosen])[None]
    cells, box = reduce(matrices)
    if np.isfinite(matrices).all():  # as most are
        note = _reduction(matrices[0], box)
        slices = [
            [*scale_ends(drawn.min(), drawn.max(), kind), _description(matrix, matrix), note]
            for drawn, matrix in zip(cells, matrices, strict=True)
        ]
    else:
        cells, slices = np.array(cells, dtype=np.float32), []
        for place, matrix in enumerate(matrices):
            scale, cells[place] = _scale(cells[place], kind)
            slices.append([*scale, describe(matrix), caption(matrix)])
    square = stage == "attention" and names[-1] == names[-2]
    known = {name: role for name, role in AXES.items() if not named or not set(LETTER.findall(name)) & {*named}}
    roles = ("query", "key") if square else (known.get(names[-2], "row"), known.get(names[-1], "column"))
    whole = not getattr(value, "is_floating_point", lambda: value.dtype.kind == "f")()
    return {
        "lead": [
            [f"${latex(name)}$ index" if name in named else _lead(name), size]
            for name, size in zip(names, lead, strict=False)
        ],
        "which": which,
        "full": list(full),
        "box": list(box),
        "axes": [_axis(*axis) for axis in zip(roles, names[-2:], full, strict=True)],
        "roles": list(roles),
        "ticks": list(ticks) if ticks and box[1] == 1 else None,
        "slices": slices,
        "cells": compress(cells, exact=whole),
    }


def has_weights(step: Step) -> bool:
    """Return whether the tensor of a step are attention weights."""
    return step.role == ATTENTION_WEIGHTS


def weight(shape: Sequence[int]) -> int:
    """Return the approximate number of bytes of a tensor's cells in a message, by its shape."""
    full, count = (1, 1, *shape)[-2:], prod(shape[:-2])
    return 2 * min(full[0], MAX_ROWS) * min(full[1], MAX_COLUMNS) * (count if _together(count, full) else 1)


def _together(count: int, full: Sequence[int]) -> bool:
    """Return whether that many matrices are sent at once."""
    return count <= MATRICES and 2 * count * min(full[0], MAX_ROWS) * min(full[1], MAX_COLUMNS) <= ALL_BYTES


def _scale(cells: np.ndarray, kind: str) -> tuple[tuple[float, float, str], np.ndarray]:
    """Return (lowest, highest, kind) of the colours of a matrix, and the cells that are drawn with them."""
    if (open_value := mask_value(cells)) is not None:
        return (open_value, open_value, "mask"), np.isfinite(cells).astype(np.float32)
    known = cells[np.isfinite(cells)]
    lowest, highest = (known.min(), known.max()) if known.size else (0.0, 1.0)
    return scale_ends(lowest, highest, kind), cells


def scale_ends(lowest: float, highest: float, kind: str) -> tuple[float, float, str]:
    """Return (lowest, highest, kind) of the colours of finite values between these."""
    low, high = float(lowest), float(highest)
    if low < 0 < high:
        edge = max(-low, high)
        return -edge, edge, "diverging"
    return low, high if high > low else low + 1, kind


def mask_value(matrix: np.ndarray) -> float | None:
    """Return the one finite value of a matrix with only −∞ beside it, as an additive mask has, else None."""
    known = matrix[np.isfinite(matrix)]
    if known.size == matrix.size or not known.size or known.min() != known.max():
        return None
    return float(known.flat[0]) if np.isneginf(matrix).sum() + known.size == matrix.size else None


def caption(matrix: np.ndarray) -> str:
    """Return one sentence on the reduction of the picture and its empty cells; "" if it shows every value."""
    _, box = reduce(matrix)
    parts = [text] if (text := _reduction(matrix, box)) else []
    if mask_value(matrix) is not None:
        parts.append(f"{int(np.isinf(matrix).sum()):,} of {matrix.size:,} values are −∞.")
    elif missing := int((~np.isfinite(matrix)).sum()):
        kinds = {"−∞": np.isneginf(matrix).any(), "+∞": np.isposinf(matrix).any(), "NaN": np.isnan(matrix).any()}
        kind_names = " or ".join(name for name, there in kinds.items() if there)
        parts.append(f"{missing:,} {'value is' if missing == 1 else 'values are'} {kind_names} and left empty.")
    return " ".join(parts)


def _reduction(matrix: np.ndarray, box: tuple[int, int]) -> str:
    if box == (1, 1):
        return ""
    high, wide = box
    return f"Each cell is the mean of {high} × {wide} values, because {matrix.size:,} don't fit on a screen."


def describe(matrix: np.ndarray) -> str:
    """Return the size and the smallest, mean and largest value of a matrix, to follow the words "Heatmap of …"."""
    known = matrix[np.isfinite(matrix)]
    if not known.size:
        return f"{matrix.shape[0]} × {matrix.shape[1]}, no finite value."
    return _description(matrix, known)


def _description(matrix: np.ndarray, known: np.ndarray) -> str:
    return (
        f"{matrix.shape[0]} rows × {matrix.shape[1]} columns: "
        f"smallest {known.min():.3g}, mean {known.mean():.3g}, largest {known.max():.3g}."
    )


def _axis(role: str, symbolic: str, size: int) -> str:
    return f"{role}, ${latex(symbolic)} = {size}$" if symbolic not in ("?", str(size)) else f"{role}, {size}"


def _lead(name: str) -> str:
    """Return the label of a leading axis's slider."""
    return {"h": "Head", "B": "Input of the batch"}.get(name, f"${latex(name)}$ index" if name != "?" else "Index")


# Matrices side by side as small pictures that a browser draws and describes, each with named axes and a scale.


class Panel(NamedTuple):
    """A matrix `[rows, columns]` with its title, the names of its axes, and the first index on each.

    `edge` is the end of a scale around 0 that several share, `top` of one from 0; without them, the matrix has a scale
    of its own. `weights` says that the cells are attention weights, which have a colour of their own. `square` cells
    are as tall as they are wide. `names` replace the numbers of rows. `frame` is put around one "row" or "column", by
    its index from 0, and says what it is.
    """

    title: str
    cells: object
    row: str
    column: str
    first: tuple[int, int] = (1, 1)
    edge: float = 0.0
    square: bool = True
    names: Sequence[str] = ()
    top: float = 0.0
    frame: tuple[str, int, str] | None = None
    weights: bool = False


def edge(*matrices: object) -> float:
    """Return the end of a symmetric scale that fits all of these; cells that are not finite are left out."""
    known = [np.abs(cells[np.isfinite(cells)]) for cells in map(as_array, matrices)]
    return max((float(cells.max()) for cells in known if cells.size), default=0.0) or 1.0


def build_panels(panels: Sequence[Panel]) -> dict[str, Any]:
    """Return the pictures for drawing in the browser, each with its `cells`, and the colours of all."""
    pictures = []
    for panel in panels:
        cells, box = reduce(as_array(panel.cells))
        low, high, scale = (0.0, panel.top, "sequential") if panel.top else _panel_scale(cells, panel.edge)
        pictures.append(
            {
                "title": panel.title,
                "axes": [panel.row, panel.column],
                "first": panel.first,
                "box": box,
                "full": as_array(panel.cells).shape,
                "ends": [low, high],
                "scale": "attention" if panel.weights else scale,
                "square": panel.square,
                "names": list(panel.names),
                "frame": panel.frame,
                "cells": compress(cells),
            }
        )
    return {"panels": pictures, "colours": tables(picture["scale"] for picture in pictures)}


def _panel_scale(cells: np.ndarray, shared: float) -> tuple[float, float, str]:
    """Return the ends of a matrix's colours, and the kind of its scale."""
    known = cells[np.isfinite(cells)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
    if shared or low < 0:
        end = shared or max(-low, high)
        return -end, end, "diverging"
    return scale_ends(low, high, "sequential")


# Photo as the model sees it in SVG: the patch grid over it, and its patches.

MAX_SIDE = 960
MAX_NUMBERED_PATCHES = 100
MAX_POINTER_PATCHES = 4096
"""Patches that can be pointed at; of more, only the picture is drawn."""
MARGIN = 0.8
"""Opacity of the shade over parts of a photo that the model does not see: that of a patch with no share."""
INPUT = 640
"""Pixels of the longer side of the model's input in the drawing of its patches."""


def encode_image(image: Image.Image, kind: str) -> bytes:
    """Return an image as the bytes of a file, "JPEG" or "PNG"."""
    file = BytesIO()
    image.save(file, kind, **({"quality": 88} if kind == "JPEG" else {}))
    return file.getvalue()


def data_uri(image: Image.Image, kind: str = "JPEG") -> str:
    """Return an image as a `data:` address, so that a page shows it without a request."""
    return f"data:image/{kind.lower()};base64,{base64.b64encode(encode_image(image, kind)).decode()}"


def rescale(photo: Image.Image, crop: Crop | None = None) -> Image.Image:
    """Return the photo at no more than `MAX_SIDE` pixels a side, enough for a screen.

    With a `crop` it is not smaller than the model's input: a smaller photo is enlarged in the model's way, and not by
    the screen.
    """
    least = crop.width / (crop.right - crop.left) if crop else 1
    scale = min(max(1, least), MAX_SIDE / max(photo.size))
    size = [max(1, round(side * scale)) for side in photo.size]
    return photo if scale == 1 else photo.resize(size, Image.Resampling.BICUBIC)


def grid(photo: Image.Image, crop: Crop, rows: int, columns: int) -> str:
    """Draw the photo with its patch grid, dimmed outside the crop. Coordinates are the photo's own pixels."""
    width, height = photo.size
    boxes = patch_boxes(crop, rows, columns)
    xs = [box[0] for box in boxes[:columns]] + [boxes[columns - 1][2]]
    ys = [box[1] for box in boxes[::columns]] + [boxes[-1][3]]
    lines = "".join(f"M{x:g} {ys[0]:g}V{ys[-1]:g}" for x in xs) + "".join(f"M{xs[0]:g} {y:g}H{xs[-1]:g}" for y in ys)
    frame = _outline(boxes)
    label = f"The photo, {width} × {height} pixels; {rows} × {columns} patches over the part that the model sees"
    stroke = 'fill="none" vector-effect="non-scaling-stroke"'
    inside = (
        f'<image href="{data_uri(rescale(photo, crop))}" width="{width}" height="{height}" preserveAspectRatio="none"/>'
        f'<path d="M0 0H{width}V{height}H0Z{frame}" fill="#000" fill-opacity="0.62" fill-rule="evenodd"/>'
        f'<path d="{lines}" stroke="#000" stroke-opacity="0.45" stroke-width="3" {stroke}/>'
        f'<path d="{lines}" stroke="#fff" stroke-opacity="0.9" stroke-width="1" {stroke}/>'
        f'<path d="{frame}" stroke="{stage_colour("patches")}" stroke-width="3" {stroke}/>{_cells(boxes)}'
    )
    return svg(photo.size, label, inside, "photo-grid")


def _outline(boxes: Sequence[tuple[float, float, float, float]]) -> str:
    """Return the path around all patches."""
    (left, top, *_), (*_, right, bottom) = boxes[0], boxes[-1]
    return f"M{left:g} {top:g}H{right:g}V{bottom:g}H{left:g}Z"


def spotlight(photo: Image.Image, crop: Crop, weights: np.ndarray, label: str, what: str = "of the attention") -> str:
    """Draw the photo with each patch darker for less of `weights`, `[rows, columns]`, and dark outside the crop.

    The patch with the most is framed; `label` is the text alternative, and `what` says what a share is of.
    """
    width, height = photo.size
    shares = np.asarray(weights, dtype=float)
    boxes = patch_boxes(crop, *shares.shape)
    dark = MARGIN * (1 - shares.ravel() / max(shares.max(), 1e-12))
    shades = "".join(
        f'<rect x="{left:g}" y="{top:g}" width="{right - left:g}" height="{bottom - top:g}" '
        f'fill-opacity="{opacity:.3f}"/>'
        for (left, top, right, bottom), opacity in zip(boxes, dark, strict=True)
    )
    margin = f"M0 0H{width}V{height}H0Z{_outline(boxes)}"
    left, top, right, bottom = boxes[int(shares.argmax())]
    frame = f'x="{left:g}" y="{top:g}" width="{right - left:g}" height="{bottom - top:g}" fill="none"'
    stroke = f'stroke="rgb{AMBER}" stroke-width="4" vector-effect="non-scaling-stroke"'
    labels = [f"patch {number + 1}: {percent(share)} {what}" for number, share in enumerate(shares.ravel())]
    inside = (
        f'<image href="{data_uri(rescale(photo, crop))}" width="{width}" height="{height}" preserveAspectRatio="none"/>'
        f'<g shape-rendering="crispEdges">{shades}</g><path d="{margin}" fill-opacity="{MARGIN}" fill-rule="evenodd"/>'
        f"<rect {frame} {stroke}/>{_cells(boxes, labels)}"
    )
    return svg(photo.size, label, inside, "spotlight")


def patches(image: Image.Image, rows: int, columns: int) -> str:
    """Draw the patches of the model's input, numbered from 1 in the order of the tokens.

    The sides of the image must be multiples of the grid. Beyond 100 patches the numbers are left out.
    """
    size = f"{image.width} × {image.height} pixels"
    if max(image.size) > INPUT:
        sides = (
            max(1, min(INPUT, side) // count) * count for side, count in zip(image.size, (columns, rows), strict=True)
        )
        image = image.resize(tuple(sides))
    pixels = np.asarray(image.convert("RGB"))
    high, wide = pixels.shape[0] // rows, pixels.shape[1] // columns
    numbered = rows * columns <= MAX_NUMBERED_PATCHES
    zoom = max(1, 16 // max(high, wide))  # the screen enlarges it further, as it is: this much is for the gaps
    side_x, side_y = wide * zoom, high * zoom
    gap, head = max(2, side_x // 8), 2 * side_y // 5 if numbered else max(2, side_y // 8)
    pitch_x, pitch_y = side_x + gap, side_y + head
    sheet = np.zeros((rows * pitch_y, columns * pitch_x, 4), dtype=np.uint8)
    for row in range(rows):
        for column in range(columns):
            patch = pixels[row * high : (row + 1) * high, column * wide : (column + 1) * wide]
            top, left = row * pitch_y + head, column * pitch_x
            cell = sheet[top : top + side_y, left : left + side_x]
            cell[..., :3], cell[..., 3] = patch.repeat(zoom, 0).repeat(zoom, 1), 255
    height, width = sheet.shape[0], sheet.shape[1] - gap
    sheet = sheet[:, :width]
    numbers = "".join(
        f'<text x="{column * pitch_x}" y="{row * pitch_y + 0.85 * head:g}">{row * columns + column + 1}</text>'
        for row in range(rows if numbered else 0)
        for column in range(columns)
    )
    boxes = [
        (column * pitch_x, row * pitch_y + head, column * pitch_x + side_x, (row + 1) * pitch_y)
        for row in range(rows)
        for column in range(columns)
    ]
    label = f"The {rows * columns} patches of the model’s input of {size}, in {rows} rows and {columns} columns"
    inside = (
        f'<image href="{data_uri(Image.fromarray(sheet), "PNG")}" width="{width}" height="{height}" '
        f'style="image-rendering:pixelated"/>'
        f'<g fill="currentColor" font-size="{0.9 * head:g}" font-family="inherit">{numbers}</g>{_cells(boxes)}'
    )
    return svg((width, height), label, inside, "patches", "max-height:26rem")


def _cells(boxes: list[tuple[float, float, float, float]], titles: Sequence[str] = ()) -> str:
    """Return a clear rectangle over each patch, to point at: the same patch has the same number in two drawings."""
    if len(boxes) > MAX_POINTER_PATCHES:
        return ""
    titles = titles or [f"patch {number + 1}" for number in range(len(boxes))]
    return "".join(
        f'<rect data-patch="{number}" x="{left:g}" y="{top:g}" width="{right - left:g}" height="{bottom - top:g}" '
        f'fill="transparent"><title>{title}</title></rect>'
        for number, ((left, top, right, bottom), title) in enumerate(zip(boxes, titles, strict=True))
    )


# A matrix product drawn to scale: rows of the left factor meet columns of the right one.

SIZE = 420  # pixels of the longer side of the drawing, without labels
GAP = 30
SCALE_MARGIN = 112
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
    width, height = cx + cw + 2 * SCALE_MARGIN, cy + ch + 64
    return (
        f'<svg class="product" viewBox="{-SCALE_MARGIN} -32 {width:.1f} {height:.1f}" role="img" '
        f'aria-label="{html.escape(describe_matmul(product))}" '
        f'style="display:block;width:100%;max-width:{width:.0f}px;max-height:30rem;overflow:visible" '
        f'font-size="15" fill="currentColor" font-family="inherit">{"".join(parts)}</svg>'
    )


def describe_matmul(product: tuple[Operand, Operand, Operand]) -> str:
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


# A picture as codes in SVG: the ids over the grid, the decoded picture, and the whole codebook.

CELL = 32
"""Units of a drawing that a cell of the grid takes."""
CODES_PER_ROW = 16
"""Codes side by side in the drawing of all of them."""


def picture(image: Image.Image, label: str) -> str:
    """Draw a small picture with its pixels visible."""
    width, height = image.size
    drawn = f'<image href="{data_uri(image, "PNG")}" width="{width}" height="{height}" '
    return svg(image.size, label, f'{drawn}style="image-rendering:pixelated"/>')


def code_grid(ids: np.ndarray, colours: np.ndarray, label: str) -> str:
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
    return svg((columns * CELL, rows * CELL), label, inside)


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
    return svg((width, height), label, f'{image}style="image-rendering:pixelated"/>{strokes}')


def svg(
    size: tuple[int, int], label: str, inside: str, name: str = "", style: str = "max-height:26rem;border-radius:6px"
) -> str:
    """Return an SVG of that size in its own pixels, as wide as its container; `name` is its class."""
    named = f'class="{name}" ' if name else ""
    return (
        f'<svg {named}viewBox="0 0 {size[0]} {size[1]}" role="img" aria-label="{html.escape(label)}" '
        f'preserveAspectRatio="xMinYMin" style="display:block;width:100%;{style}">{inside}</svg>'
    )
