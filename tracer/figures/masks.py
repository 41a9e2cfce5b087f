"""Pictures of a mask: which query may look at which key, in named segments, and what it does to one query's row."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tracer.attention import segments as of_part
from tracer.figures.answers import shown
from tracer.figures.colours import stage_colour
from tracer.figures.tensors import as_array
from tracer.record import Segment, Trace

VISIBLE, HIDDEN, MARK, EDGE = "#2589c7", "rgba(122,132,148,0.22)", "#e8710a", "#7a8494"
ACROSS = 40
"""Characters of tick labels that fit below the keys, also on a phone."""
SCALE = [[0, HIDDEN], [0.5, HIDDEN], [0.5, VISIBLE], [1, VISIBLE]]
CLEAR = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)"}


def labels(trace: Trace, part: str | None, tokens: int) -> list[str]:
    """A name for each of the first `tokens` positions of a tower, by the words and the visible patches of the run."""
    visible = trace.result.get("visible", ())
    return names(tokens, of_part(trace, part), [shown(word) for word in trace.words], visible)


def names(tokens: int, segments: Sequence[Segment], words: Sequence[str], visible: Sequence[int] = ()) -> list[str]:
    """A name for each of `tokens` positions: its word where it is one, else its segment and place in it, from 0.

    `visible` has the places in the image of the patches that are in a segment of that name.
    """
    found = [str(position) for position in range(tokens)]
    for segment in segments:
        for position in range(segment.start, min(segment.stop, tokens)):
            place = position - segment.start
            if segment.name == "text" and place < len(words):
                found[position] = f"{position}: {words[place]!r}"
            elif segment.name == "visible" and place < len(visible):
                found[position] = f"image {visible[place]}"
            else:
                found[position] = segment.name if segment.stop - segment.start == 1 else f"{segment.name} {place}"
    return found


def matrix(cells, segments: Sequence[Segment], labels: Sequence[str] = (), query: int | None = None) -> go.Figure:
    """The mask bool `[S_q, S_k]` as a picture: filled where the query (row) may look at the key (column).

    Segments are named on both axes with their sizes and separated by lines; row `query` is framed. `labels` names
    each token.
    """
    seen = as_array(cells)
    labels = labels or names(max(seen.shape), segments, ())
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
            hovertemplate="%{text}<extra></extra>",
            xgap=1 if max(seen.shape) <= 80 else 0,
            ygap=1 if max(seen.shape) <= 80 else 0,
        )
    )
    for segment in segments[1:]:
        edge = segment.start - 0.5
        figure.add_hline(y=edge, line={"color": EDGE, "width": 2})
        figure.add_vline(x=edge, line={"color": EDGE, "width": 2})
    if query is not None:
        box = {"x0": -0.5, "x1": seen.shape[1] - 0.5, "y0": query - 0.5, "y1": query + 0.5}
        figure.add_shape(type="rect", **box, line={"color": MARK, "width": 3})
    ticks = {
        "tickvals": [(segment.start + segment.stop - 1) / 2 for segment in segments],
        "ticktext": [f"{segment.name}, {segment.stop - segment.start}" for segment in segments],
        "showgrid": False,
        "zeroline": False,
        "tickfont": {"size": 15},
        "title_font_size": 16,
    }
    figure.update_xaxes(title="key: who is looked at", constrain="domain", **ticks)
    figure.update_yaxes(
        title="query: who looks",
        autorange="reversed",
        scaleanchor="x",
        constrain="domain",
        constraintoward="top",
        **ticks,
    )
    figure.update_layout(height=470, margin={"l": 8, "r": 8, "t": 8, "b": 8}, font={"size": 15}, **CLEAR)
    return figure


def row(before, mask, weights, segments: Sequence[Segment], labels: Sequence[str] = ()) -> go.Figure:
    """One query's row in three pictures over the same keys: scores before, the mask, weights after; `[S_k]` each."""
    before, mask, weights = map(as_array, (before, mask, weights))
    keys = list(range(len(before)))
    labels = list(labels or names(len(keys), segments, ()))[: len(keys)]
    open_keys = mask == 0
    figure = make_subplots(
        rows=3,
        cols=1,
        shared_xaxes=True,
        row_heights=[0.42, 0.12, 0.46],
        vertical_spacing=0.06,
        subplot_titles=(
            *(
                ("scores", "no mask: every key is open", "attention weights")
                if open_keys.all()
                else ("scores before the mask", "the mask: 0 where open, −∞ where closed", "attention weights after it")
            ),
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
    figure.update_yaxes(title_text="score", row=1, col=1, tickfont_size=14)
    figure.update_yaxes(showticklabels=False, row=2, col=1, showgrid=False)
    figure.update_yaxes(title_text="weight", row=3, col=1, rangemode="tozero", tickfont_size=14)
    named = any(": " in label for label in labels) and len(keys) <= 64
    text = [
        label.split(": ", 1)[-1].strip("'\"") if named else str(key) for key, label in zip(keys, labels, strict=True)
    ]
    each = max(1, -(-sum(len(word) + 1 for word in text) // ACROSS))
    figure.update_xaxes(
        title_text="key token",
        row=3,
        col=1,
        tickfont_size=13,
        **({"tickvals": keys[::each], "ticktext": text[::each], "tickangle": 0} if named else {}),
    )
    for segment in segments[1:]:
        figure.add_vline(x=segment.start - 0.5, line={"color": EDGE, "width": 2, "dash": "dot"}, layer="below")
    figure.update_layout(
        height=520, showlegend=False, bargap=0.1, margin={"l": 8, "r": 8, "t": 28, "b": 8}, font={"size": 15}, **CLEAR
    )
    return figure


def describe(cells, kind: str) -> str:
    """The text alternative of a mask: what kind it is, its size and how many cells are open."""
    seen = as_array(cells)
    size = f"{seen.shape[0]} queries × {seen.shape[1]} keys"
    return f"A {kind} mask of {size}; {int(seen.sum()):,} of {seen.size:,} cells are open."
