"""Figures of a model's answer: shares of words, a label map, or a reconstruction beside the picture."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from tracer.figures.palette import MASK, SEQUENTIAL, STAGES
from tracer.figures.predictions.class_bars import percent, ranking
from tracer.figures.svg_layout import PLAIN_AXIS, TRANSPARENT_BACKGROUND
from tracer.record import Trace
from tracer.utils.error_text import shorten

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
        return f"The answer: {shorten(short(result))}." if result["kind"] in ("caption", "tokens", "next") else ""
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError):
        return ""


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
    return go.Figure(
        traces,
        {
            "xaxis": across,
            "yaxis": down,
            "images": under,
            "height": 430,
            "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
            "font": {"size": 15},
            "showlegend": True,
            "legend": {"font": {"size": 15}, "x": 0, **legend},
            **TRANSPARENT_BACKGROUND,
        },
    )


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
    return go.Figure(
        heat,
        {
            "xaxis": {"nticks": 5, **across},
            "yaxis": {"nticks": 5, "constraintoward": "top", **down},
            "shapes": [hidden] if np.isnan(values).any() else [],
            "height": 370,
            "margin": {"l": 8, "r": 8, "t": 8, "b": 92},
            "font": {"size": 15},
            **TRANSPARENT_BACKGROUND,
        },
    )
