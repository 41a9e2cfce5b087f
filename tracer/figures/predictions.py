"""What a model answers, as charts and tables."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from tracer.figures.charts import CURVES, PLAIN_AXIS, axis, curve, draw, level_line, upright_line
from tracer.figures.drawing import DIVERGING_SCALE, MASK, OTHER_COLOR, SEQUENTIAL, STAGES, ranking
from tracer.figures.tensors import data_uri
from tracer.record import Trace
from tracer.utils.errors import shorten
from tracer.utils.text import percent

# Arithmetic of each token of a text, with a cache and without, over the length of the text.

MAX_POWERS = 4
"""Powers of ten on an axis that has room for ticks between them."""


def per_token(lengths: Sequence[int], without: Sequence[int], cached: Sequence[int], here: int) -> go.Figure:
    """Draw the FLOPs of the token at each length, without a cache and with one, on a logarithmic scale; the length of
    the run, `here`, is marked."""
    hover = "token %{x}: %{y:.3s}FLOP<extra></extra>"
    lines = [
        curve("reads the whole text again", lengths, without, "attention", hover, dash="solid"),
        curve("reads one token, with the cache", lengths, cached, "patches", hover, dash="dash"),
    ]
    across = axis("T: number of the token, from 1")
    up = axis("FLOP for this token", type="log", tickvals=ticks(*without, *cached), tickformat="~s")
    shapes = [upright_line(here, dash="dot", color=OTHER_COLOR)]
    return draw(lines, **CURVES, height=340, xaxis=across, yaxis=up, shapes=shapes)


def ticks(*values: int) -> list[int]:
    """Return the ticks of a logarithmic axis over values: powers of ten, and 2 and 5 between where there is room."""
    least, most = min(values), max(values)
    powers = range(len(str(least)) - 1, len(str(most)) + 1)
    digits = (1, 2, 5) if len(powers) <= MAX_POWERS else (1,)
    return [digit * 10**power for power in powers for digit in digits if least <= digit * 10**power <= most]


# Loss after one step of training over the learning rate, as measured and as the slope predicts it.


def losses(rates: Sequence[float], after: Sequence[float], predictions: Sequence[float], before: float) -> go.Figure:
    """Draw both curves on a logarithmic axis of rates. The loss `before` is a dotted line, and the axis of losses ends
    where the measured ones do: no loss is below 0."""
    hover = "η = %{x}: %{y:.4g}<extra></extra>"
    lines = [
        curve("measured", rates, after, "patches", hover, "circle", dash="solid"),
        curve("predicted: L − η‖∇L‖²", rates, predictions, "attention", hover, "square", dash="dash"),
    ]
    lowest, highest = min(*after, before), max(*after, before)
    room = 0.08 * (highest - lowest)
    ticktext = [f"{rate:g}" for rate in rates]
    across = axis("η: the learning rate", type="log", tickvals=list(rates), ticktext=ticktext)
    up = axis("loss after the step", range=[lowest - room, highest + room], exponentformat="power")
    shapes = [level_line(before, dash="dot", color=OTHER_COLOR)]
    return draw(lines, **CURVES, height=340, xaxis=across, yaxis=up, shapes=shapes)


# Figures of a model's answer: shares of words, a label map, or a reconstruction beside the picture.

SIDE, CLASSES, LETTERS, MAX_NAMED_CELLS = 400, 256, 100, 100_000
"""Limits of the drawing: cells on a side, classes, letters of a class, and cells with their class under the pointer."""

SUBSCRIPT = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def visible_token(token: str) -> str:
    """Return a token as visible text, with blanks, line breaks and quotes kept."""
    return {" ": "␣", "\n": "⏎"}.get(token, token)


def label_token(token: str, place: int) -> str:
    """Return a token with its position as a subscript, which tells equal tokens apart: `red₃`."""
    return shorten(visible_token(token)) + str(place).translate(SUBSCRIPT)


def short(result: Mapping[str, Any]) -> str:
    """Return the answer of a text model in one line: the caption, the generated text, or the next token."""
    if result["kind"] == "caption":
        return str(result["caption"])
    if result["kind"] == "tokens":
        return "".join(result["tokens"])
    name, share = ranking(result["tokens"], result["probabilities"])[0]
    return f"{visible_token(name)}, with {percent(share)}"


def answer_sentence(trace: Trace) -> str:
    """Return the answer of a run as a sentence; "" if no sentence describes it or a file holds it in a wrong form."""
    result = trace.result
    try:
        names = result.get("classes") or result.get("sentences") or ()
        if result["kind"] in ("classes", "sentences"):
            name, share = ranking(names, result["probabilities"])[0]
            return f"The answer: {shorten(str(name))}, {percent(share)}."
        if result["kind"] == "map":
            return map_sentence(result)
        return f"The answer: {shorten(short(result))}." if result["kind"] in ("caption", "tokens", "next") else ""
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError):
        return ""


def map_sentence(result: Mapping[str, Any]) -> str:
    """Return what a map of importance says of its picture, in a sentence."""
    row, column = int(result["row"]) + 1, int(result["column"]) + 1
    share, peak = percent(float(result["share"])), percent(float(result["peak"]))
    return f"{share} of the picture is above one half. The largest value, {peak}, is in row {row}, column {column}."


def spotlight(values: Sequence[Sequence[float]], photo: Image.Image) -> Image.Image:
    """Return a photo that is as bright as a map in percent, `[rows][columns]`, says: what is 0 is nearly black."""
    cells = np.asarray(values, np.float32)
    if cells.ndim != 2 or max(cells.shape) > SIDE:
        raise ValueError(f"a map of shape {cells.shape} can't be drawn, expected at most {SIDE} × {SIDE}")
    shares = Image.fromarray(np.clip(cells / 100, 0, 1)).resize(photo.size, Image.Resampling.BILINEAR)
    bright = DARKEST + (1 - DARKEST) * np.asarray(shares)[..., None]
    return Image.fromarray((np.asarray(photo.convert("RGB")) * bright).round().astype(np.uint8))


DARKEST = 0.12
"""Brightness of a pixel that does not matter at all."""


def label_map(
    labels: Sequence[Sequence[int]], classes: Sequence[str], photo: Image.Image | None = None, opacity: float = 1.0
) -> go.Figure:
    """Draw the class of every pixel, `[H, W]` indices into `classes`, over the photo that the model saw.

    Each class has its own colour. The legend lists the classes that occur, with their share of the picture.
    """
    numbers, count = np.asarray(labels), len(classes)
    high, wide = numbers.shape
    if max(high, wide) > SIDE or count > CLASSES or any(len(name) > LETTERS for name in classes):
        raise ValueError(f"{high} × {wide} labels of {count} classes are too many to draw")
    named = numbers.size <= MAX_NAMED_CELLS
    palette = ["#c9ced6", *(colour for name, colour in STAGES.items() if name != "norm")]
    palette = [palette[index % len(palette)] for index in range(count)]
    scale = [[edge / count, palette[index]] for index in range(count) for edge in (index, index + 1)]
    traces: list = [
        go.Heatmap(
            z=numbers,
            x0=1,
            y0=1,
            zmin=-0.5,
            zmax=count - 0.5,
            colorscale=scale,
            showscale=False,
            opacity=opacity,
            text=[[classes[label] for label in line] for line in numbers] if named else None,
            hovertemplate=f"row %{{y}}, column %{{x}}: {'%{text}' if named else 'class %{z}'}<extra></extra>",
        )
    ]
    for index in np.unique(numbers):
        name = f"{classes[index]} {percent(float((numbers == index).mean()))}"
        marker = {"color": palette[index], "symbol": "square", "size": 14}
        traces.append(go.Scatter(x=[None], y=[None], mode="markers", marker=marker, name=name, hoverinfo="skip"))
    under = []
    if photo is not None:
        zoom = max(1, 512 // max(high, wide))  # so that pixels stay squares and are not smoothed
        pixels = photo.resize((wide, high)).resize((wide * zoom, high * zoom), Image.Resampling.NEAREST)
        place = {"x": 0.5, "y": 0.5, "sizex": wide, "sizey": high, "xref": "x", "yref": "y"}
        under = [{"source": pixels, "sizing": "stretch", "layer": "below", **place}]
    across, down = _axes("pixel", high, wide)
    legend = {"orientation": "h", "y": -0.22, "yanchor": "top", "itemclick": False, "itemdoubleclick": False}
    look = {"height": 430, "margin": {"l": 8, "r": 8, "t": 8, "b": 8}, "font": {"size": 15}, "showlegend": True}
    legend |= {"font": {"size": 15}, "x": 0}
    return draw(traces, xaxis=across, yaxis=down, images=under, legend=legend, **look)


def _axes(cell: str, high: int, wide: int) -> tuple[dict, dict]:
    """Return the axes of a picture of `high` × `wide` square cells, which count from 1; row 1 is on top."""
    across = {"title": {"text": f"{cell} column"}, "range": [0.5, wide + 0.5], "constrain": "domain", **PLAIN_AXIS}
    down = {"title": {"text": f"{cell} row"}, "range": [high + 0.5, 0.5], "constrain": "domain", **PLAIN_AXIS}
    return across, {"scaleanchor": "x", **down}


def visible(pixels: np.ndarray, patches: Sequence[int], rows: int, columns: int) -> np.ndarray:
    """Return pixels `[H, W]` of the patches at these indices, in raster order; all others are NaN."""
    shown = np.isin(np.arange(rows * columns), patches).reshape(rows, columns)
    high, wide = pixels.shape[0] // rows, pixels.shape[1] // columns
    return np.where(shown.repeat(high, axis=0).repeat(wide, axis=1), pixels, np.nan)


_BAR = {"orientation": "h", "y": 0, "yref": "container", "yanchor": "bottom", "thickness": 12, "len": 0.8}


def panel(values: np.ndarray, unit: str = "", cell: str = "pixel", ends: tuple[float, float] = (0, 255)) -> go.Figure:
    """Draw a matrix in grey, or, if it has a `unit`, in colours with a colour bar below; `cell` names a cell.

    The scale runs between `ends`. Cells of NaN are hidden, and have the colour of cells that a mask closes. Pictures of
    one row have the same area for the matrix, with a bar or without.
    """
    values = np.asarray(values, dtype=np.float32)
    high, wide = values.shape
    if max(high, wide) > SIDE:
        raise ValueError(f"{high} × {wide} values are too many to draw")
    heat = go.Heatmap(
        z=values,
        x0=1,
        y0=1,
        zmin=ends[0],
        zmax=ends[1],
        colorscale=SEQUENTIAL if unit else "gray",
        showscale=bool(unit),
        colorbar=_BAR | {"title": {"text": unit, "side": "bottom", "font": {"size": 14}}} if unit else None,
        hovertemplate="row %{y}, column %{x}: %{z:.3g}<extra></extra>",
    )
    across, down = _axes(cell, high, wide)
    edges = {"x0": 0.5, "x1": wide + 0.5, "y0": 0.5, "y1": high + 0.5}
    hidden = {"type": "rect", **edges, "fillcolor": MASK[0], "line": {"width": 0}, "layer": "below"}
    across, down = {"nticks": 5, **across}, {"nticks": 5, "constraintoward": "top", **down}
    shapes = [hidden] if np.isnan(values).any() else []
    look = {"height": 370, "margin": {"l": 8, "r": 8, "t": 8, "b": 92}, "font": {"size": 15}}
    return draw([heat], xaxis=across, yaxis=down, shapes=shapes, **look)


# Loss of a text as colour behind its tokens, and its gradient over the blocks.

DEEPEST = 0.65
"""Largest opacity behind a token: letters stay readable on it, on a light page and on a dark one."""
MAX_SIDE = 400
"""Pixels of a picture's longer side."""


def _shade(share: float) -> str:
    red, green, blue = (int(STAGES["position"][at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {DEEPEST * min(1.0, share):.3f})"


def colour_text(
    words: Sequence[str], losses: Sequence[float], shares: Sequence[float], guess: float, joined: bool
) -> str:
    """Return a text as HTML, with the loss of each token but the first as its background, up to that of a `guess`.

    Numbers are in titles. Tokens are `joined` as characters, or words with blanks between.
    """
    first, *rest = words
    spans = [f'<span class="unasked" title="no loss: no token precedes it">{_token_html(first)}</span>']
    for word, loss, share in zip(rest, losses, shares, strict=True):
        label = f"{word!r}: p = {share:.3g}, −log p = {loss:.3g}"
        spans.append(
            f'<span style="background:{_shade(loss / guess)}" title="{html.escape(label)}">{_token_html(word)}</span>'
        )
    ends = f"{_shade(0)}, {_shade(1)}"
    scale = (
        '<div class="loss-scale"><span>0: certain</span>'
        f'<div style="background:linear-gradient(to right, {ends})"></div>'
        f"<span>{guess:.2f} = ln V: as good as a random guess</span></div>"
    )
    text = ("" if joined else " ").join(spans)
    return f'<div class="loss-text" data-figure="The text by its loss">{text}</div>{scale}'


def _token_html(word: str) -> str:
    return "⏎\n" if word == "\n" else html.escape(word)


def hatch(image: Image.Image, rows: int, columns: int) -> str:
    """Draw the picture that a model sees, hatched: no logits belong to its patches."""
    width, height = image.size
    lines = "".join(f"M{x * width / columns:g} 0V{height}" for x in range(1, columns))
    lines += "".join(f"M0 {y * height / rows:g}H{width}" for y in range(1, rows))
    large = image.resize((MAX_SIDE, round(MAX_SIDE * height / width)), Image.Resampling.NEAREST)
    thin = 'fill="none" vector-effect="non-scaling-stroke"'
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" style="display:block;width:100%;max-width:16rem" '
        f'aria-label="The picture in {rows} × {columns} patches, all hatched: they have no targets">'
        f'<defs><pattern id="unasked" width="{width / 16:g}" height="{width / 16:g}" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="{width / 32:g}" height="{width / 16:g}" fill="#7a8494" '
        'fill-opacity="0.75"/></pattern></defs>'
        f'<image href="{data_uri(large)}" width="{width}" height="{height}"/>'
        f'<rect width="{width}" height="{height}" fill="url(#unasked)"/>'
        f'<path d="{lines}" stroke="#fff" stroke-opacity="0.8" {thin}/></svg>'
    )


def gradients(whole: Sequence[float], branches: Sequence[float]) -> go.Figure:
    """Draw the norms of ∂loss/∂X over the blocks, with the residual path and without, on a logarithmic scale."""
    at, hover = range(len(whole)), "X<sup>(%{x})</sup>: %{y:.3g}<extra></extra>"
    lines = [
        curve("with the residual path", at, whole, "patches", hover, "circle"),
        curve("through attention and MLPs only", at, branches, "attention", hover, "square"),
    ]
    across = axis("ℓ: the stream after block ℓ, 0 before the first", dtick=1)
    up = axis("norm of ∂loss/∂X", type="log", dtick=1, exponentformat="power")
    return draw(lines, **CURVES, height=380, xaxis=across, yaxis=up)


# A text as its tokens, each with its id: HTML for a page, with the classes of `pieces.css`.

MAX_ROWS = 24
"""Rows of a table that are drawn."""
NARROW = {"l": 10, "r": 10, "t": 10, "b": 10}
"""The margin of a chart whose axes make room for their own names."""
WHITESPACE_SYMBOLS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
"""Symbols for invisible characters."""


UNKNOWN = "[UNK]"
"""The label beside the id of the unknown token."""


class TokenPiece(NamedTuple):
    """A token as it is shown: its text, its id, whether it is the unknown token, and its meaning in a few words."""

    text: str
    id: int
    unknown: bool = False
    about: str = ""


def visible_piece(text: str) -> str:
    """Return a text with every character visible.

    Blanks are `␣`, a combining mark without a letter is on `◌`, others are numbers.
    """
    characters = []
    for character in text:
        kind = unicodedata.category(character)
        if character in WHITESPACE_SYMBOLS or kind[0] in "CZ":
            characters.append(WHITESPACE_SYMBOLS.get(character, f"U+{ord(character):04X}"))
        else:
            characters.append(f"◌{character}" if kind[0] == "M" and not characters else character)
    return "".join(characters)


def of_bytes(raw: bytes) -> str:
    """Return bytes as the characters that they encode, or as hexadecimal numbers if they encode no whole character."""
    try:
        return visible_piece(raw.decode("utf-8"))
    except UnicodeDecodeError:
        return raw.hex(" ").upper()


def of_run(trace: Trace) -> list[TokenPiece]:
    """Return the tokens of a run's text, with the model's ids; none if it lacks either."""
    named = dict.fromkeys(name.of for step in trace.steps for name in step.names if name.of.startswith("input "))
    for ids in (trace.values[key] for key in named if key in trace.values):
        rows = np.asarray(ids).reshape(-1, ids.shape[-1]) if ids.ndim else np.empty((0, 0))
        if rows.dtype.kind in "iu" and rows.shape[-1] == len(trace.words) > 0 and (rows == rows[:1]).all():
            return [TokenPiece(visible_piece(word), int(id)) for word, id in zip(trace.words, rows[0], strict=True)]
    return []


def cut(label: str, pieces: Sequence[TokenPiece]) -> str:
    """Return the tokens of a text in order, side by side, the id under each, as HTML."""
    inside = "".join(map(_one, pieces))
    return f'<div class="pieces" dir="ltr" role="group" aria-label="{html.escape(label)}">{inside}</div>'


def row(name: str, facts: Sequence[str], pieces: Sequence[TokenPiece], spelled: str, chosen: bool = False) -> str:
    """Return one tokenization of a text as HTML: its name, facts of it, its tokens and the text that they decode to."""
    facts_html = "".join(f"<span>{html.escape(fact)}</span>" for fact in facts)
    here = " chosen" if chosen else ""
    return (
        f'<div class="cut{here}"><p class="facts"><strong>{html.escape(name)}</strong>{facts_html}</p>'
        f'{cut(name, pieces)}<p class="spelled">{html.escape(spelled)}</p></div>'
    )


def _one(piece: TokenPiece) -> str:
    kind = ' class="unknown"' if piece.unknown else ""
    about = f' title="{html.escape(piece.about)}"' if piece.about else ""
    number = f"{UNKNOWN} {piece.id}" if piece.unknown else piece.id
    return f"<span{kind}{about}><bdi>{html.escape(piece.text)}</bdi><i>{number}</i></span>"


def rows(ids: Sequence[int], texts: Sequence[str], vectors: np.ndarray) -> go.Figure:
    """Draw the rows of a table that ids pick, `[n, D]`, the first `MAX_ROWS` of them, each named by its id and
    token."""
    count = min(len(ids), MAX_ROWS)
    names = [
        f"{place}: {text}  <b>{id}</b>"
        for place, (id, text) in enumerate(zip(ids, map(html.escape, texts), strict=True), 1)
    ]
    heat = {
        "type": "heatmap",
        "z": np.asarray(vectors[:count], dtype=np.float32),
        "x0": 1,
        "y": list(range(1, count + 1)),
        "colorscale": DIVERGING_SCALE,
        "zmid": 0,
        "colorbar": {"thickness": 12, "title": {"text": "value"}},
        "hovertemplate": "token %{y}, feature %{x}: %{z:.3f}<extra></extra>",
    }
    ticks: dict[str, Any] = {"tickvals": list(range(1, count + 1)), "ticktext": names[:count], "automargin": True}
    across = axis("feature of the row, 1 to D", **PLAIN_AXIS)
    down = axis("place: piece, id", autorange="reversed", **ticks, **PLAIN_AXIS)
    return draw([heat], height=110 + 22 * count, margin=NARROW, xaxis=across, yaxis=down)


TICKS = [2**power for power in range(4, 15)]
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x")


def lengths(points: Mapping[str, tuple[int, int]], curve: Sequence[tuple[int, int]], name: str) -> go.Figure:
    """Draw the number of tokens of a text over the size of the vocabulary.

    `points` has (V, n) of each tokenizer, and `curve` is that of one of them, `name`, as its vocabulary grows.
    """
    line = {
        "type": "scatter", "mode": "lines+markers", "name": name, "marker": {"size": 5},
        "x": [V for V, _ in curve], "y": [n for _, n in curve], "line": {"color": STAGES["attention"], "width": 2},
        "hovertemplate": "V = %{x:,}: n = %{y}<extra></extra>",
    }  # fmt: skip
    marks = [
        {
            "type": "scatter", "mode": "markers", "name": way, "marker": {"size": 12, "symbol": symbol},
            "x": [V], "y": [n], "hovertemplate": f"{html.escape(way)}: V = %{{x:,}}, n = %{{y}}<extra></extra>",
        }
        for symbol, (way, (V, n)) in zip(SYMBOLS, points.items(), strict=False)
    ]  # fmt: skip
    legend = {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "font": {"size": 14}}
    across = axis("entries of the vocabulary, V", 16, type="log", tickvals=TICKS, zeroline=False)
    up = axis("tokens, n", 16, rangemode="tozero", automargin=True, zeroline=False)
    return draw([line, *marks], height=380, margin=NARROW, legend=legend, xaxis=across, yaxis=up)
