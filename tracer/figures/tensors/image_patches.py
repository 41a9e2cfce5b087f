"""Photo as the model sees it in SVG: the patch grid over it, and its patches."""

import base64
import html
from collections.abc import Sequence
from io import BytesIO

import numpy as np
from PIL import Image

from tracer.figures.palette import AMBER, stage_colour
from tracer.figures.predictions.class_bars import percent
from tracer.inputs.images import Crop, patch_boxes

MAX_SIDE = 960
MAX_NUMBERED_PATCHES = 100
MAX_POINTER_PATCHES = 4096
"""Patches that can be pointed at; of more, only the picture is drawn."""
MARGIN = 0.8
"""Opacity of the shade over parts of a photo that the model does not see: that of a patch with no share."""
INPUT = 640
"""Pixels of the longer side of the model's input in the drawing of its patches."""


def data_uri(image: Image.Image, kind: str = "JPEG") -> str:
    """Return an image as a `data:` address, so that a page shows it without a request."""
    file = BytesIO()
    image.save(file, kind, **({"quality": 88} if kind == "JPEG" else {}))
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


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
    return (
        f'<svg class="photo-grid" viewBox="0 0 {width} {height}" role="img" aria-label="{label}" '
        f'preserveAspectRatio="xMinYMin" style="display:block;width:100%;max-height:26rem;border-radius:6px">'
        f'<image href="{data_uri(rescale(photo, crop))}" width="{width}" height="{height}" preserveAspectRatio="none"/>'
        f'<path d="M0 0H{width}V{height}H0Z{frame}" fill="#000" fill-opacity="0.62" fill-rule="evenodd"/>'
        f'<path d="{lines}" stroke="#000" stroke-opacity="0.45" stroke-width="3" {stroke}/>'
        f'<path d="{lines}" stroke="#fff" stroke-opacity="0.9" stroke-width="1" {stroke}/>'
        f'<path d="{frame}" stroke="{stage_colour("patches")}" stroke-width="3" {stroke}/>{_cells(boxes)}</svg>'
    )


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
    return (
        f'<svg class="spotlight" viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(label)}" '
        f'preserveAspectRatio="xMinYMin" style="display:block;width:100%;max-height:26rem;border-radius:6px">'
        f'<image href="{data_uri(rescale(photo, crop))}" width="{width}" height="{height}" preserveAspectRatio="none"/>'
        f'<g shape-rendering="crispEdges">{shades}</g><path d="{margin}" fill-opacity="{MARGIN}" fill-rule="evenodd"/>'
        f"<rect {frame} {stroke}/>{_cells(boxes, labels)}</svg>"
    )


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
    return (
        f'<svg class="patches" viewBox="0 0 {width} {height}" role="img" aria-label="{label}" '
        f'preserveAspectRatio="xMinYMin" style="display:block;width:100%;max-height:26rem">'
        f'<image href="{data_uri(Image.fromarray(sheet), "PNG")}" width="{width}" height="{height}" '
        f'style="image-rendering:pixelated"/>'
        f'<g fill="currentColor" font-size="{0.9 * head:g}" font-family="inherit">{numbers}</g>{_cells(boxes)}</svg>'
    )


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
