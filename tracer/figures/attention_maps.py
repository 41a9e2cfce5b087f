"""Attention over the tokens: maps, heads, and the photo beneath."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from tracer.attention import block_names, places, segments, token_segments, unseen, windows
from tracer.attention import layers as of_part
from tracer.attention import rollout as over_blocks
from tracer.figures import drawing
from tracer.figures.drawing import ATTENTION, DIVERGING_SCALE, MASK, SEQUENTIAL, can_draw, stage_colour, table
from tracer.figures.mask_payload import labels
from tracer.figures.tensors import as_array, encode_image, rescale
from tracer.record import AttentionRecord, Picture, Segment, Step, Trace
from tracer.symbols.notation import size_html
from tracer.utils.errors import capitalize
from tracer.utils.text import svg_text, symbol_html, symbol_text

if TYPE_CHECKING:
    import torch


# Attention packed for drawing in the browser: many heads and all queries at once, so pointing costs no request.

MAX_BYTES = 2_000_000
"""Bytes of weights in one message, if they are several views."""
ONE_VIEW = 3_000_000
"""Bytes of one view of a layer; a larger one is not shown."""
ROLLOUT = 1_400_000
"""Bytes of a rollout in one message."""
PRODUCTS = 2 * 10**10
"""Most multiplications of a rollout."""


def layers(trace: Trace, part: str | None = None) -> list[int]:
    """Return the layers of a tower that can be laid over the photo.

    These are self-attention of tokens over its patches, all of one size, none lost.
    """
    records, patches = _records(trace, part), places(trace, part)
    if not patches:
        return []
    last = max(patches)
    sizes = [
        (record.heads, record.keys)
        if record.queries == record.keys > last and record.over == "tokens" and not record.problem
        else None
        for record in records
    ]
    first = next((size for size in sizes if size), None)
    return [layer for layer, size in enumerate(sizes) if size and size == first]


def blocks(trace: Trace, part: str | None = None) -> list[int]:
    """Return the layers of a tower to choose from: those over the photo if any, else all whose attention was kept."""
    records = _records(trace, part)
    layer_numbers = layers(trace, part) or [layer for layer, record in enumerate(records) if not record.problem]
    return [layer for layer in layer_numbers if _fits(trace, records[layer])]


def too_large(trace: Trace, part: str | None = None) -> bool:
    """Return whether a tower has attention that was kept, but none that fits on a page."""
    return not blocks(trace, part) and any(not record.problem for record in _records(trace, part))


def _fits(trace: Trace, record: AttentionRecord) -> bool:
    return 4 * record.queries * record.keys <= ONE_VIEW and can_draw(trace, record)


def _records(trace: Trace, part: str | None) -> tuple[AttentionRecord, ...]:
    return of_part(trace, part) if trace.attentions else ()


def portion(
    trace: Trace, choices: Sequence[int], part: str | None = None, wanted: Mapping[str, Any] | None = None
) -> tuple[list[int], list[str]]:
    """Return (layers, views) that fit in one message to the browser, with the `wanted` {"layer", "view"} among them.

    All layers of the wanted one's size with all their heads are sent if they fit; else that layer alone; else one view
    of it, "mean" or the number of a head. A layer or view that `wanted` names wrongly becomes the last layer, or the
    mean.
    """
    records, wanted = _records(trace, part), wanted if isinstance(wanted, Mapping) else {}
    layer = next((choice for choice in choices if choice == wanted.get("layer")), choices[-1])
    size, heads = _size(records[layer]), [str(head) for head in range(records[layer].heads)]
    alike = [choice for choice in choices if _size(records[choice]) == size]
    if 4 * len(alike) * size[0] * size[1] * size[2] <= MAX_BYTES:
        return alike, heads
    if 4 * size[0] * size[1] * size[2] <= MAX_BYTES:
        return [layer], heads
    return [layer], [next((head for head in heads if head == wanted.get("view")), "mean")]


def _size(record: AttentionRecord) -> tuple[int, int, int, str]:
    return record.heads, record.queries, record.keys, record.over


def rollout(trace: Trace, chosen: Sequence[int], part: str | None = None) -> np.ndarray | None:
    """Return attention rollout over all blocks of a tower, `[S, S]` of the first input of the batch, or None.

    Source: Abnar and Zuidema (2020).
    """
    return as_array(over_blocks(trace, part=part))[0] if rolls(trace, chosen, part) else None


def rolls(trace: Trace, chosen: Sequence[int], part: str | None = None) -> bool:
    """Return whether a tower has a rollout.

    It has none if the maps of a block are lost or don't fit, since the product would leave that block out.
    """
    records = _records(trace, part)
    sizes = {(record.queries, record.keys) for record in records}
    # what channels mix, and what windows hold, no token hands on to all others
    sizes |= {(0, 1) for record in records if record.over != "tokens" or windows(trace, record) > 1}
    whole = bool(chosen) and len(chosen) == len(records) and len(sizes) == 1 and len(set(*sizes)) == 1
    small = whole and 4 * records[0].keys ** 2 <= ROLLOUT and len(records) * records[0].keys ** 3 <= PRODUCTS
    return small and all(can_draw(trace, record) for record in records)


def build(
    trace: Trace,
    chosen: Sequence[int],
    rollout: np.ndarray | None = None,
    part: str | None = None,
    *,
    views: Sequence[str] = (),
    choices: Sequence[int] = (),
) -> dict[str, Any]:
    """Return the map for drawing in the browser.

    The weights are `[chosen, views, S_q, S_k]` of the first input of the batch; `views` are numbers of heads or "mean",
    by default all heads. In `masks`, `[…, S_q, S_k]`, a cell is 1 if it is closed: no mask if all cells are open, one
    if all layers have the same, else one for each. `choices` are the layers to choose from. The photo is included, as
    JPEG, if the chosen layers lie over it.
    """
    weights = np.stack([_views(as_array(trace.attention(layer, part=part))[0], views) for layer in chosen])
    closed, kind = masks(trace, chosen, part)
    lies = trace.picture if chosen[0] in layers(trace, part) else None
    over = _photo(trace, lies, part) if lies else {}
    queries, keys = weights.shape[2:]
    record = _records(trace, part)[chosen[0]]
    rows, columns = token_segments(trace, record)
    channels = [f"channel {i + 1}" for i in range(max(queries, keys))]
    channels = channels if record.over == "channels" else None
    return over | {
        "names": channels or list(map(_full, names(trace, part, queries, rows))),
        "marks": channels or labels(trace, part, queries, segments=rows),
        "keyNames": channels or list(map(_full, names(trace, part, keys, columns))),
        "keyMarks": channels or labels(trace, part, keys, segments=columns),
        "blocks": {layer: block_names(trace, part)[layer] for layer in choices or chosen},
        "others": name_other_tokens(trace, part) if over else [],
        "words": words(trace, part, max(queries, keys)),
        "text": "text" in [segment.name for segment in segments(trace, part)],
        "edges": [segment.start for segment in segments(trace, part) if segment.start > 0],
        "part": part or "",
        "choices": list(choices or chosen),
        "layers": list(chosen),
        "heads": record.heads,
        "views": list(views) or [str(head) for head in range(weights.shape[1])],
        "queries": queries,
        "keys": keys,
        "kind": kind,
        "closed": MASK[0],
        "weights": weights,
        "rollout": None if rollout is None else as_array(rollout),
        "masks": closed,
        "colours": table(ATTENTION),
    }


def _full(name: str) -> str:
    """Return the name of a token for a sentence: a number alone says of what it is one."""
    return f"token {name}" if name.isdecimal() else name


def _views(heads: np.ndarray, views: Sequence[str]) -> np.ndarray:
    return np.stack([heads.mean(0) if view == "mean" else heads[int(view)] for view in views]) if views else heads


def _photo(trace: Trace, picture: Picture, part: str | None) -> dict[str, Any]:
    """Return the position of the patches on the photo, and the photo as `jpeg`.

    `tokens` has for each patch its token, or null; `unseen` the patches that are not an input of the tower. `side` is
    that of a patch in pixels of the picture that the model sees, null if the run does not name it.
    """
    tokens = {patch: token for token, patch in places(trace, part).items()}
    tower, missing = unseen(trace)
    photo = Image.fromarray(np.asarray(trace.values[picture.value]))
    return {
        "photo": list(photo.size),
        "crop": list(picture.crop),
        "rows": picture.rows,
        "columns": picture.columns,
        "side": _side(trace, picture),
        "tokens": [tokens.get(patch) for patch in range(picture.rows * picture.columns)],
        "unseen": list(missing),
        "tower": tower or "model",
        "jpeg": encode_image(rescale(photo), "JPEG"),
    }


def _side(trace: Trace, picture: Picture) -> int | None:
    sizes = {size.name: size.value for size in trace.symbols}
    grid = tuple(side * sizes.get("P", 0) for side in (picture.rows, picture.columns))
    return sizes["P"] if "P" in sizes and grid == (sizes.get("H"), sizes.get("W")) else None


def masks(trace: Trace, chosen: Sequence[int], part: str | None = None) -> tuple[np.ndarray, str]:
    """Return the closed cells of layers as they ran, uint8 `[0, 1 or layers, S_q, S_k]`, and the kind of the first."""
    from tracer.attention.masks import kind, visible  # here, since a page is drawn before torch is imported

    cells = [visible(trace, layer, part=part) for layer in chosen]
    closed = np.stack([~each.numpy() for each in cells]).astype(np.uint8)
    if (closed == closed[:1]).all():
        closed = closed[:1] if closed.any() else closed[:0]
    return closed, kind(cells[0])


def names(trace: Trace, part: str | None, tokens: int, parted: Sequence[Segment] | None = None) -> list[str]:
    """Return a name for each of `tokens` positions that holds over the photo and in the matrix; `parted` are the
    segments of these tokens, by default those of the tower.

    Examples: `patch 39 (row 5, column 7)`, `75: 'square'`.
    """
    token_labels, hidden = labels(trace, part, tokens, segments=parted), set(unseen(trace)[1])
    if (picture := trace.picture) is None or not layers(trace, part):
        return token_labels
    lying = places(trace, part)
    for token in lying.keys() & range(tokens):
        row, column = divmod(lying[token], picture.columns)
        mask = ", mask token" if lying[token] in hidden else ""
        token_labels[token] = f"patch {lying[token] + 1} (row {row + 1}, column {column + 1}{mask})"
    return token_labels


def words(trace: Trace, part: str | None, tokens: int) -> list[tuple[int, str]]:
    """Return (token, word) of the first `tokens` positions that are words of the run's text, in its spelling."""
    text_segments = [segment for segment in segments(trace, part) if segment.name == "text"]
    text_words = [(segment.start + place, word) for segment in text_segments for place, word in enumerate(trace.words)]
    return [
        (token, word)
        for token, word in text_words
        if token < min(tokens, max(candidate.stop for candidate in text_segments))
    ]


def name_other_tokens(trace: Trace, part: str | None = None) -> list[tuple[str, int]]:
    """Return (name, token) of the tokens that are not patches, such as CLS or the words of a text."""
    patches = places(trace, part)
    tokens = [token for own in segments(trace, part) for token in range(own.start, own.stop)]
    names = labels(trace, part, max(tokens, default=-1) + 1)
    return [(names[token], token) for token in tokens if token not in patches]


# All heads at a glance: blocks × heads as one table of cells, coloured by a measure of each head.

MINUS = "\N{MINUS SIGN}"
STEPS = 256
"""Colours of a scale."""
MAX_DARK_LUMINANCE = 0.45
"""Luminance of a cell, 0 to 1, below which its number is white."""


class Measure(NamedTuple):
    """Measure of each head: its name, a table `[blocks, heads]`, and a number as text, short and in full.

    `signed` is True where 0 is the middle of the scale.
    """

    name: str
    values: np.ndarray
    short: Callable[[float], str]
    full: Callable[[float], str]
    signed: bool = False


def with_sign(value: float, digits: int = 1) -> str:
    """Return a number with its sign, `+0.4` or `−1.4`; 0 has none."""
    text = f"{abs(value):.{digits}f}"
    return text if not float(text) else f"{'+' if value > 0 else MINUS}{text}"


def grid(
    measure: Measure,
    layers: Sequence[int],
    flips: np.ndarray,
    more: Callable[[int, int], str] | None = None,
    chosen: tuple[int, int] | None = None,
    blocks: Sequence[str] = (),
) -> str:
    """Return the table as HTML: a row for each block, a button for each head, and the scale below.

    `layers` count from 0, and `blocks` has the name of each layer, by default its number; `flips` are True
    where another answer becomes the most probable, and that cell is framed.
    `more(row, head)` is said behind a number. Where a (layer, head) is `chosen`, a click chooses another one, and does
    not open it in the attention map.
    """
    values, (first, last) = measure.values, ends(measure)
    heads = values.shape[1]
    named = {layer: blocks[layer] if blocks else f"block {layer + 1}" for layer in layers}

    def cell(row: int, layer: int, head: int) -> str:
        value, flip = float(values[row, head]), bool(flips[row, head])
        if not np.isfinite(value):
            return "<td></td>"
        fill, ink = _colour(measure, (value - first) / (last - first))
        tooltip = f"{capitalize(named[layer])}, head {head + 1}: {measure.full(value)}" + ", and another answer" * flip
        tooltip = html.escape(tooltip + (more(row, head) if more else ""))
        mark = " class=flips" * flip + ' aria-pressed="true"' * ((layer, head) == chosen)
        return (
            f'<td><button type="button" data-layer="{layer}" data-head="{head}" title="{tooltip}" '
            f'aria-label="{tooltip}" style="background:{fill};color:{ink}"{mark}><span>{measure.short(value)}'
            "</span></button></td>"
        )

    numbers = "".join(f"<th scope=col>{number + 1}</th>" for number in range(heads))
    rows = "".join(
        f"<tr><th scope=row>{html.escape(named[layer].replace('block ', ''))}</th>"
        f"{''.join(cell(row, layer, head) for head in range(heads))}</tr>"
        for row, layer in enumerate(layers)
    )
    stops = ", ".join(_colour(measure, share)[0] for share in np.linspace(0, 1, 9))
    bar = f"<i style='background:linear-gradient(to right, {stops})'></i>"
    scale = f"<p class=scale><span>{measure.short(first)}</span>{bar}<span>{measure.short(last)}</span></p>"
    name = html.escape(measure.name)
    return (
        f'<div class="head-grid" data-figure="All heads: {name}" style="--heads:{heads}"{" data-asks" * bool(chosen)}>'
        f"<table><caption>{name}</caption><thead><tr><th scope=col>block</th>{numbers}</tr></thead>"
        f"<tbody>{rows}</tbody></table>{scale}</div>"
    )


def ends(measure: Measure) -> tuple[float, float]:
    """Return the ends of the colour scale: 0 or the least value and the largest; symmetric around 0 where it is
    signed."""
    known = measure.values[np.isfinite(measure.values)]
    if measure.signed:
        most = float(np.abs(known).max(initial=0)) or 1.0
        return -most, most
    return 0.0, float(known.max(initial=0)) or 1.0


def _colour(measure: Measure, share: float) -> tuple[str, str]:
    """Return the colour of a cell and of the number in it."""
    scale = DIVERGING_SCALE if measure.signed else SEQUENTIAL
    at = 3 * round((STEPS - 1) * min(1.0, max(0.0, float(share))))
    red, green, blue = table(scale, STEPS)[at : at + 3]
    light = (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255
    return f"rgb({red}, {green}, {blue})", "#fff" if light < MAX_DARK_LUMINANCE else "#111"


# Columns of one matrix that belong to each head, in the equation's layout and in PyTorch's.

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


def draw_columns(matrix: ProjectionMatrix) -> str:
    """Draw the matrix as SVG, twice.

    A head's columns have one colour: as columns in the equation's layout, and as rows in PyTorch's.
    """
    (rows, columns), (row, column) = matrix.shape, matrix.symbolic
    unit = (PACKED_SIDE if matrix.is_packed else SIDE) / max(rows, columns)
    wide, tall = columns * unit, rows * unit
    parts = [_bands(matrix, unit, tall, across=True)]
    parts += [_text(svg_text(symbol_html(matrix.symbol)), wide / 2, -14, 17), _column_side(row, -8, tall / 2, "end")]
    parts.append(_column_side(column, wide / 2, tall + 18, "middle"))
    width = wide
    if matrix.transposed:
        width = wide + 70
        parts.append(f'<g transform="translate({width:.1f} 0)">{_bands(matrix, unit, tall, across=False)}')
        parts += [_text("PyTorch’s weight", tall / 2, -14, 14), _column_side(column, -8, wide / 2, "end")]
        parts.append(_column_side(row, tall / 2, wide + 18, "middle") + "</g>")
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


def _column_side(size: str, x: float, y: float, anchor: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" dominant-baseline="central"'
    return f"<text {place}>{svg_text(size_html(size))}</text>"


# A photo under an attention map: a grey sketch in which every patch has the same mean, lit in amber by the weights.
#
# So a patch is the brighter the larger its weight, whatever the photo shows there. The browser draws the same
# (`pages/components/attention_map/sketch.js`).

GREY, CONTRAST, PASSES = 72.0, 0.7, 6
AMBER, STRENGTH = np.array(drawing.AMBER, float), 0.8
"""The colour of the largest weight, and its opacity."""


def sketch(photo: np.ndarray, crop: Sequence[float], rows: int, columns: int) -> np.ndarray:
    """Return a photo `[H, W, 3]` as greys `[H, W]` from 0 to 255; the mean of each patch of the crop is `GREY`.

    `crop` is left, top, right and bottom of the patches, in pixels. The means are taken away as a smooth field, so that
    edges and texture stay; what is left of them goes patch by patch.
    """
    grey = photo[..., :3].astype(np.float64) @ (0.299, 0.587, 0.114)
    x, y = _in_patches(grey, crop, rows, columns)
    for _ in range(PASSES):
        grey -= _field(_means(grey, x, y, rows, columns), x, y)
    grey = GREY * np.tanh(CONTRAST * grey / GREY)
    grey -= _patch_by_patch(_means(grey, x, y, rows, columns), x, y)
    return np.clip(grey + GREY, 0, 255)


def light(greys: np.ndarray, crop: Sequence[float], shares: np.ndarray) -> np.ndarray:
    """Return a sketch `[H, W]` lit in amber, as colours `[H, W, 3]`.

    `shares` are the weights of the patches as shares of the largest, `[rows, columns]`; outside of them nothing is lit.
    """
    rows, columns = shares.shape
    x, y = _in_patches(greys, crop, rows, columns)
    inside = ((y >= 0) & (y < rows))[:, None] & ((x >= 0) & (x < columns))
    alpha = (STRENGTH * _patch_by_patch(shares, x, y) * inside)[..., None]
    return np.round((1 - alpha) * greys[..., None] + alpha * AMBER).astype(np.uint8)


def _in_patches(greys: np.ndarray, crop: Sequence[float], rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the columns and of the rows of pixels, in patches."""
    left, top, right, bottom = crop
    x = (np.arange(greys.shape[1]) + 0.5 - left) / (right - left) * columns
    return x, (np.arange(greys.shape[0]) + 0.5 - top) / (bottom - top) * rows


def _means(grey: np.ndarray, x: np.ndarray, y: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Return the mean of each patch `[rows, columns]`; `x` and `y` are the positions of the pixels, in patches."""
    across, down = (x >= 0) & (x < columns), (y >= 0) & (y < rows)
    patches = (np.floor(y[down]).astype(int)[:, None] * columns + np.floor(x[across]).astype(int)).ravel()
    counts = np.bincount(patches, minlength=rows * columns)
    sums = np.bincount(patches, grey[down][:, across].ravel(), minlength=rows * columns)
    return (sums / np.maximum(counts, 1)).reshape(rows, columns)


def _patch_by_patch(values: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the value of the patch of each pixel; outside the patches, of the nearest one."""
    row, column = (
        np.clip(np.floor(at).astype(int), 0, count - 1) for at, count in zip((y, x), values.shape, strict=True)
    )
    return values[row][:, column]


def _field(values: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return values at each pixel, bilinear between the middles of patches."""
    middles = [np.arange(count) + 0.5 for count in values.shape]
    across = np.stack([np.interp(x, middles[1], line) for line in values])
    low = np.clip(np.floor(y - 0.5).astype(int), 0, max(len(values) - 2, 0))
    high, share = np.minimum(low + 1, len(values) - 1), np.clip(y - 0.5 - low, 0, 1)[:, None]
    return across[low] * (1 - share) + across[high] * share


# Attention of one query over the photo, at any length: one row of the weights alone.


def row(trace: Trace, record: AttentionRecord, head: str, query: int) -> np.ndarray:
    """Return the weights of one query `[S_k]` of the first input: of a head by its number, or their "mean"."""
    heads = as_array(trace.attention(record.layer, query=query, part=record.part))[0]
    return heads.mean(0) if head == "mean" else heads[int(head)]


def on_grid(
    patches: Mapping[int, int], values: Sequence[float] | np.ndarray, rows: int, columns: int, empty: float = 0.0
) -> np.ndarray:
    """Return values of tokens on the grid of their `patches`, `[rows, columns]`; `empty` where no token is a patch."""
    grid = np.full((rows, columns), empty)
    for token, patch in patches.items():
        grid[divmod(patch, columns)] = values[token]
    return grid


def patch_shares(picture: Picture, patches: Mapping[int, int], weights: np.ndarray) -> np.ndarray:
    """Return the weights of patches as shares of the largest, `[rows, columns]`, from those of the tokens."""
    shares = on_grid(patches, weights, picture.rows, picture.columns)
    return shares / (shares.max() or 1)


def over_photo(trace: Trace, patches: Mapping[int, int], weights: np.ndarray) -> np.ndarray:
    """Return the photo as colours `[H, W, 3]`, each patch lit by its weight; `patches` are the patches of the tokens.

    A run without a photo has no such picture: ValueError.
    """
    picture = trace.picture
    if picture is None:
        raise ValueError("this run has no photo to lay a map over")
    shares = patch_shares(picture, patches, weights)
    photo = np.asarray(trace.values[picture.value])
    greys = sketch(photo, picture.crop, picture.rows, picture.columns)
    return light(greys, picture.crop, shares)
