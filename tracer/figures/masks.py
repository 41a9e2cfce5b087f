"""Pictures of a mask: which query may look at which key, in named segments, and what it does to one query's row."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tracer.attention import segments as of_part
from tracer.figures.answers import shown
from tracer.figures.budget import NAMED
from tracer.figures.colours import stage_colour
from tracer.figures.tensors import as_array
from tracer.record import Segment, Trace

VISIBLE, HIDDEN, MARK, EDGE = "#2589c7", "rgba(122,132,148,0.22)", "#e8710a", "#7a8494"
ACROSS = 40
"""Characters of tick labels that fit below the keys, also on a phone."""
STEPS = (1, 2, 3, 4, 5, 10, 15, 20, 25, 50)
"""Distances between labelled keys that are easy to count in."""
SCALE = [[0, HIDDEN], [0.5, HIDDEN], [0.5, VISIBLE], [1, VISIBLE]]
CLEAR = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)"}


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
        hover = "%{text}"
        text = [[f"{labels[i]} {'may' if seen[i, j] else 'may not'} look at {labels[j]}" for j in range(seen.shape[1])]
                for i in range(seen.shape[0])]  # fmt: skip
    figure = go.Figure(
        go.Heatmap(
            z=seen,
            zmin=0,
            zmax=1,
            colorscale=SCALE,
            showscale=False,
            text=text,
            hovertemplate=f"{hover}<extra></extra>",
            xgap=1 if max(seen.shape) <= 80 else 0,
            ygap=1 if max(seen.shape) <= 80 else 0,
        )
    )
    for segment in segments[1:]:
        edge = segment.start - 0.5
        figure.add_hline(y=edge, line={"color": EDGE, "width": 1.5})
        figure.add_vline(x=edge, line={"color": EDGE, "width": 1.5})
    if query is not None:
        box = {"x0": -0.5, "x1": seen.shape[1] - 0.5, "y0": query - 0.5, "y1": query + 0.5}
        figure.add_shape(type="rect", **box, line={"color": MARK, "width": 1.5})
        arrow = {"text": "", "ax": 18, "ay": 0, "arrowhead": 2, "arrowwidth": 2.5, "arrowcolor": MARK}
        figure.add_annotation(x=1, xref="x domain", y=query, yref="y", **arrow)
    ticks = {"showgrid": False, "zeroline": False, "ticks": "", "tickfont": {"size": 15}, "title_font_size": 16}
    if segments:
        ticks["tickvals"] = [(segment.start + segment.stop - 1) / 2 for segment in segments]
        ticks["ticktext"] = spans(segments)
    figure.update_xaxes(title="key: who is looked at", constrain="domain", **ticks)
    figure.update_yaxes(
        title="query: who looks",
        autorange="reversed",
        scaleanchor="x",
        constrain="domain",
        constraintoward="top",
        **ticks,
    )
    figure.update_layout(margin={"l": 8, "r": 20, "t": 14, "b": 8}, font={"size": 15}, **CLEAR)
    return figure


def row(before, mask, weights, segments: Sequence[Segment], labels: Sequence[str] = ()) -> go.Figure:
    """One query's row in three pictures over the same keys: scores before, the mask, weights after; `[S_k]` each.

    The highest weight has its key's name, and lines part the segments, as in `matrix`.
    """
    before, mask, weights = map(as_array, (before, mask, weights))
    keys = list(range(len(before)))
    labels = list(labels or names(len(keys), segments, (), numbered=True))[: len(keys)]
    open_keys = mask == 0
    figure = make_subplots(
        rows=3,
        cols=1,
        shared_xaxes=True,
        row_heights=[0.42, 0.1, 0.48],
        vertical_spacing=0.11,
        subplot_titles=(
            ("scores", "every key is open to this query", "attention weights")
            if open_keys.all()
            else ("scores before the mask", "the mask: 0 where open, −∞ where closed", "attention weights after it")
        ),
    )
    colour = np.where(open_keys, VISIBLE, "rgba(122,132,148,0.6)")
    hover = "%{customdata}: %{y:.3f}<extra></extra>"
    figure.add_bar(x=keys, y=before, marker_color=colour, customdata=labels, hovertemplate=hover, row=1, col=1)
    figure.add_trace(
        go.Heatmap(
            z=[open_keys.astype(float)],
            x=keys,
            zmin=0,
            zmax=1,
            colorscale=SCALE,
            showscale=False,
            text=[[f"{label}: {'0' if shown else '−∞'}" for label, shown in zip(labels, open_keys, strict=True)]],
            hovertemplate="%{text}<extra></extra>",
        ),
        row=2,
        col=1,
    )
    attention = stage_colour("attention")
    figure.add_bar(x=keys, y=weights, marker_color=attention, customdata=labels, hovertemplate=hover, row=3, col=1)
    top = int(np.argmax(weights))
    figure.add_annotation(
        x=top,
        y=weights[top],
        text=labels[top],
        xanchor=("left", "center", "right")[min(2, 3 * top // len(keys))],
        yanchor="bottom",
        showarrow=False,
        row=3,
        col=1,
    )
    figure.update_annotations(yshift=5)
    figure.update_yaxes(title_text="score", row=1, col=1, tickfont_size=14)
    figure.update_yaxes(visible=False, row=2, col=1)
    figure.update_yaxes(title_text="weight", row=3, col=1, range=[0, 1.22 * (weights[top] or 1)], tickfont_size=14)
    figure.update_xaxes(showgrid=False, zeroline=False, ticks="")
    figure.update_xaxes(title_text="key token", row=3, col=1, tickfont_size=14, **_ticks(labels))
    for segment in segments[1:]:
        figure.add_vline(x=segment.start - 0.5, line={"color": EDGE, "width": 1}, layer="below")
    figure.update_layout(
        height=540, showlegend=False, bargap=0.1, margin={"l": 8, "r": 8, "t": 34, "b": 8}, font={"size": 15}, **CLEAR
    )
    return figure


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
