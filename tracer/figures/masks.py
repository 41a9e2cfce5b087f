"""Pictures of a mask: which query may look at which key, in named segments, and what it does to one query's row."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tracer.attention import segments as of_part
from tracer.figures.answers import shown
from tracer.figures.budget import NAMED
from tracer.figures.colours import stage_colour
from tracer.figures.layout import CLEAR, PLAIN, bands, heading, title
from tracer.figures.tensors import as_array
from tracer.record import Segment, Trace

VISIBLE, HIDDEN, MARK, EDGE = "#2589c7", "rgba(122,132,148,0.22)", "#e8710a", "#7a8494"
SHUT = "rgba(122,132,148,0.6)"
ACROSS = 40
"""Characters of tick labels that fit below the keys, also on a phone."""
STEPS = (1, 2, 3, 4, 5, 10, 15, 20, 25, 50)
"""Distances between labelled keys that are easy to count in."""
SCALE = [[0, HIDDEN], [0.5, HIDDEN], [0.5, VISIBLE], [1, VISIBLE]]


def labels(trace: Trace, part: str | None, tokens: int, numbered: bool = False) -> list[str]:
    """A name for each of the first `tokens` positions of a tower, by the words of the run; see `names`."""
    return names(tokens, of_part(trace, part), [shown(word) for word in trace.words[:tokens]], numbered)


def names(
    tokens: int,
    segments: Sequence[Segment],
    words: Sequence[str],
    numbered: bool = False,
) -> list[str]:
    """A name for each of `tokens` positions: its word where it is one, else its segment and place in it, from 0.

    Patches that a segment says the places of are named by these. A word's name begins with the number of its token;
    `numbered` adds that number to all others.
    """
    found = [f"token {position}" if numbered else str(position) for position in range(tokens)]
    for segment in segments:
        for position in range(segment.start, min(segment.stop, tokens)):
            place = position - segment.start
            if segment.name == "text" and place < len(words):
                found[position] = f"{position}: {words[place]!r}"
                continue
            if segment.places:
                found[position] = f"image {segment.places[place]}"
            else:
                found[position] = segment.name if segment.stop - segment.start == 1 else f"{segment.name} {place}"
            if numbered:
                found[position] += f" (token {position})"
    return found


def spans(segments: Sequence[Segment]) -> list[str]:
    """What stands at each segment of an axis: its name, or how many tokens it has; two lines, so that it is narrow."""
    sizes = [segment.stop - segment.start for segment in segments]
    return [
        segment.name if size == 1 and segment.name == "CLS" else f"{size} {segment.name}<br>token{'s' * (size > 1)}"
        for segment, size in zip(segments, sizes, strict=True)
    ]


def matrix(cells, segments: Sequence[Segment], labels: Sequence[str] = (), query: int | None = None) -> go.Figure:
    """The mask bool `[S_q, S_k]` as a picture: filled where the query (row) may look at the key (column).

    Segments are named on both axes with their sizes and parted by lines; row `query` has an outline and an arrow.
    `labels` names each token. The picture is as high as its place, and its cells stay squares.
    """
    seen = np.asarray(cells, dtype=np.uint8)
    labels = labels or names(max(seen.shape), segments, (), numbered=True)
    text, hover = None, "query %{y}, key %{x}: %{z} (1 is open, 0 is closed)"
    if seen.size <= NAMED:
        looks, hover = ("may not look at", "may look at"), "%{text}"
        text = np.array([[f"{of} {looks[cell]} {at}" for at, cell in zip(labels, line, strict=False)]
                         for of, line in zip(labels, seen.tolist(), strict=False)])  # fmt: skip
    thin = 1 if max(seen.shape) <= 80 else 0
    heat = {
        "type": "heatmap",
        "z": seen,
        "zmin": 0,
        "zmax": 1,
        "colorscale": SCALE,
        "showscale": False,
        "text": text,
        "hovertemplate": f"{hover}<extra></extra>",
        "xgap": thin,
        "ygap": thin,
    }
    shapes = []
    for segment in segments[1:]:
        for line in (_across(segment.start - 0.5), _down(segment.start - 0.5)):
            shapes.append(line | {"line": {"color": EDGE, "width": 1.5}})
    ticks: dict[str, Any] = {"ticks": "", "tickfont": {"size": 15}, "constrain": "domain", **PLAIN}
    if segments:
        ticks["tickvals"] = [(segment.start + segment.stop - 1) / 2 for segment in segments]
        ticks["ticktext"] = spans(segments)
    square: dict[str, Any] = {"autorange": "reversed", "scaleanchor": "x", "constraintoward": "top"}
    layout: dict[str, Any] = {
        "xaxis": {"title": title("key: who is looked at"), **ticks},
        "yaxis": {"title": title("query: who looks"), **square, **ticks},
        "shapes": shapes,
        "margin": {"l": 8, "r": 20, "t": 14, "b": 8},
        "font": {"size": 15},
        **CLEAR,
    }
    return go.Figure(heat, layout if query is None else layout | marked(layout, query, seen.shape[1]))


def marked(layout: Mapping, query: int, keys: int) -> dict:
    """What the layout of a `matrix` of so many keys says where the row of a query has an outline and an arrow."""
    box = {"x0": -0.5, "x1": keys - 0.5, "y0": query - 0.5, "y1": query + 0.5}
    outline = {"type": "rect", **box, "line": {"color": MARK, "width": 1.5}}
    arrow = {"text": "", "ax": 18, "ay": 0, "arrowhead": 2, "arrowwidth": 2.5, "arrowcolor": MARK}
    place = {"x": 1, "xref": "x domain", "y": query, "yref": "y"}
    return {"shapes": [*layout.get("shapes", ()), outline], "annotations": [{**place, **arrow}]}


def _down(x: float, plot: str = "") -> dict:
    """A line from top to bottom of a plot, by its number."""
    return {"type": "line", "x0": x, "x1": x, "xref": f"x{plot}", "y0": 0, "y1": 1, "yref": f"y{plot} domain"}


def _across(y: float) -> dict:
    return {"type": "line", "x0": 0, "x1": 1, "xref": "x domain", "y0": y, "y1": y, "yref": "y"}


def row(before, mask, weights, segments: Sequence[Segment], labels: Sequence[str] = ()) -> go.Figure:
    """One query's row in three pictures over the same keys: scores before, the mask, weights after; `[S_k]` each.

    The highest weight has its key's name, and lines part the segments, as in `matrix`.
    """
    before, mask, weights = map(as_array, (before, mask, weights))
    keys = np.arange(len(before))
    labels = list(labels or names(len(keys), segments, (), numbered=True))[: len(keys)]
    open_keys = mask == 0
    above = ("scores before the mask", "the mask: 0 where open, −∞ where closed", "attention weights after it")
    if open_keys.all():
        above = ("scores", "every key is open to this query", "attention weights")
    colour = {"color": open_keys.astype(float), "cmin": 0, "cmax": 1, "colorscale": [[0, SHUT], [1, VISIBLE]]}
    hover = "%{customdata}: %{y:.3f}<extra></extra>"
    named = {"x": keys, "customdata": np.array(labels), "hovertemplate": hover}
    traces = [
        dict(type="bar", y=before, marker=colour, xaxis="x", yaxis="y", **named),
        {
            "type": "heatmap",
            "z": [open_keys.astype(float)],
            "x": keys,
            "zmin": 0,
            "zmax": 1,
            "colorscale": SCALE,
            "showscale": False,
            "text": np.array(
                [[f"{label}: {'0' if shown else '−∞'}" for label, shown in zip(labels, open_keys, strict=True)]]
            ),
            "hovertemplate": "%{text}<extra></extra>",
            "xaxis": "x2",
            "yaxis": "y2",
        },
        dict(type="bar", y=weights, marker={"color": stage_colour("attention")}, xaxis="x3", yaxis="y3", **named),
    ]
    third, second, first = bands(3, 0.11, [0.48, 0.1, 0.42])
    bare = {"domain": [0, 1], "ticks": "", **PLAIN}
    small = {"tickfont": {"size": 14}}
    top = int(np.argmax(weights))
    highest = {
        "x": top,
        "xref": "x3",
        "xanchor": ("left", "center", "right")[min(2, 3 * top // len(keys))],
        "y": weights[top],
        "yref": "y3",
        "yanchor": "bottom",
        "yshift": 5,
        "text": labels[top],
        "showarrow": False,
    }
    edges = [
        _down(segment.start - 0.5, plot) | {"line": {"color": EDGE, "width": 1}, "layer": "below"}
        for segment in segments[1:]
        for plot in ("", "2", "3")
    ]
    upto = 1.22 * (weights[top] or 1)
    return go.Figure(
        traces,
        {
            "xaxis": {"anchor": "y", "matches": "x3", "showticklabels": False, **bare},
            "xaxis2": {"anchor": "y2", "matches": "x3", "showticklabels": False, **bare},
            "xaxis3": {"anchor": "y3", "title": {"text": "key token"}, **bare, **small, **_ticks(labels)},
            "yaxis": {"anchor": "x", "domain": first, "title": {"text": "score"}, **small},
            "yaxis2": {"anchor": "x2", "domain": second, "visible": False},
            "yaxis3": {"anchor": "x3", "domain": third, "title": {"text": "weight"}, "range": [0, upto], **small},
            "annotations": [
                *(
                    heading(text, 0.5, band[1], yshift=5)
                    for text, band in zip(above, (first, second, third), strict=True)
                ),
                highest,
            ],
            "shapes": edges,
            "height": 540,
            "showlegend": False,
            "bargap": 0.1,
            "margin": {"l": 8, "r": 8, "t": 34, "b": 8},
            "font": {"size": 15},
            **CLEAR,
        },
    )


def _ticks(labels: Sequence[str]) -> dict:
    """Which keys are labelled: as many words as there is room for, at even steps; else numbers, by plotly."""
    if not any(": " in label for label in labels) or len(labels) > 64:
        return {}
    least = len(labels) * (max(map(len, labels)) + 1) / ACROSS
    each = next((step for step in STEPS if step >= least), len(labels))
    return {"tickvals": list(range(0, len(labels), each)), "ticktext": list(labels[::each]), "tickangle": 0}


def describe(cells, kind: str) -> str:
    """The text alternative of a mask: what kind it is, its size and how many cells are open."""
    seen = as_array(cells)
    size = f"{seen.shape[0]} queries × {seen.shape[1]} keys"
    return f"Mask ({kind}) of {size}; {int(seen.sum()):,} of {seen.size:,} cells are open."
