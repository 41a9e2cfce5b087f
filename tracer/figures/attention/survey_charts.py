"""Charts of a survey: one head over all photos, all heads over the depth, and the hiding test."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from tracer.figures.palette import OTHER_COLOR, stage_colour
from tracer.figures.svg_layout import TRANSPARENT_BACKGROUND, title
from tracer.utils.error_text import shorten

MAX_PHOTOS = 16
"""Photos that are drawn one by one; more are counted."""
BINS = 30
"""The most columns of a histogram."""
MARGIN = {"l": 60, "r": 10, "t": 10, "b": 50}


def distribution(values: np.ndarray, names: Sequence[str], axis: str) -> go.Figure:
    """Draw the numbers of a head, `[photos]`: a bar for each of a few photos, else a histogram.

    `axis` names the numbers; NaN are left out.
    """
    known = np.flatnonzero(np.isfinite(values))
    colour = {"color": stage_colour("attention")}
    layout = {
        **TRANSPARENT_BACKGROUND,
        "height": 300,
        "margin": MARGIN,
        "bargap": 0.05,
        "xaxis": {"title": title(axis, 14)},
    }
    if len(known) <= MAX_PHOTOS:
        order = known[np.argsort(values[known])]
        labels = [shorten(names[at], 24) for at in order]
        bars = {
            "type": "bar", "orientation": "h", "x": values[order].tolist(), "y": list(range(len(order))),
            "marker": colour, "customdata": list(map(html.escape, labels)),
            "hovertemplate": "%{customdata}: %{x:.3g}<extra></extra>",
        }  # fmt: skip
        ticks = {"tickvals": list(range(len(order))), "ticktext": list(map(html.escape, labels))}
        layout |= {"yaxis": {"title": title("photo", 14), "automargin": True, **ticks}, "bargap": 0.3}
        return go.Figure({"data": [bars], "layout": layout}, skip_invalid=False)
    counts, edges = np.histogram(values[known], bins=min(BINS, 2 + int(np.sqrt(len(known)))))
    bars = {
        "type": "bar", "x": ((edges[1:] + edges[:-1]) / 2).tolist(), "y": counts.tolist(),
        "width": np.diff(edges).tolist(), "marker": colour,
        "customdata": np.stack([edges[:-1], edges[1:]], axis=-1).tolist(),
        "hovertemplate": "%{customdata[0]:.3g} to %{customdata[1]:.3g}: %{y} photos<extra></extra>",
    }  # fmt: skip
    layout["yaxis"] = {"title": title("photos", 14)}
    return go.Figure({"data": [bars], "layout": layout}, skip_invalid=False)


def over_depth(
    mean: np.ndarray, spread: np.ndarray, layers: Sequence[int], chosen: tuple[int, int], axis: str
) -> go.Figure:
    """Draw the mean of each head, `[blocks, heads]`, over its block, as figure 7 of Dosovitskiy et al. 2021 does.

    The `chosen` (row, head) has another colour, and a line as long as its spread to both sides. `layers` count from 0.
    """
    rows, heads = np.nonzero(np.isfinite(mean))
    block = np.array(layers)[rows] + 1
    others = (rows != chosen[0]) | (heads != chosen[1])
    dots = {
        "type": "scatter", "mode": "markers", "x": block[others].tolist(), "y": mean[rows, heads][others].tolist(),
        "marker": {"color": OTHER_COLOR, "size": 9, "opacity": 0.8}, "name": "other heads",
        "customdata": (heads[others] + 1).tolist(),
        "hovertemplate": "block %{x}, head %{customdata}: %{y:.3g}<extra></extra>",
    }  # fmt: skip
    point = {
        "type": "scatter", "mode": "markers", "x": [layers[chosen[0]] + 1], "y": [float(mean[chosen])],
        "marker": {"color": stage_colour("attention"), "size": 13}, "name": f"head {chosen[1] + 1}",
        "error_y": {"type": "data", "array": [float(spread[chosen])], "color": stage_colour("attention")},
        "hovertemplate": "block %{x}, head " + str(chosen[1] + 1) + ": %{y:.3g}<extra></extra>",
    }  # fmt: skip
    layout = {
        **TRANSPARENT_BACKGROUND, "height": 300, "margin": {**MARGIN, "t": 30},
        "xaxis": {"title": title("block", 14), "dtick": 1 if len(layers) <= 24 else 4},
        "yaxis": {"title": title(axis, 14)}, "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    }  # fmt: skip
    return go.Figure({"data": [dots, point], "layout": layout}, skip_invalid=False)


def draw_hiding_test(means: Mapping[str, float], spreads: Mapping[str, float], axis: str) -> go.Figure:
    """Draw the mean effect of hiding patches, a bar for each way to choose them, with its spread as a line."""
    bars = {
        "type": "bar", "x": list(means), "y": list(means.values()),
        "marker": {"color": [stage_colour("attention"), OTHER_COLOR, OTHER_COLOR][: len(means)]},
        "error_y": {"type": "data", "array": list(spreads.values()), "color": stage_colour("norm")},
        "hovertemplate": "%{x}: %{y:.3g}<extra></extra>",
    }  # fmt: skip
    layout = {
        **TRANSPARENT_BACKGROUND,
        "height": 280,
        "margin": MARGIN,
        "bargap": 0.5,
        "yaxis": {"title": title(axis, 14)},
    }
    layout["xaxis"] = {"title": title("patches that are hidden", 14)}
    return go.Figure({"data": [bars], "layout": layout}, skip_invalid=False)


def photo_card(picture: str, number: str, lines: Sequence[str]) -> str:
    """Return a small photo with its number and more lines below it, as HTML; `picture` is a `data:` address, or
    empty."""
    image = f'<img src="{html.escape(picture)}" alt="" draggable="false">' if picture else "<i></i>"
    more = "".join(f"<br>{html.escape(line)}" for line in lines)
    return f'<figure class="photo-card">{image}<figcaption><b>{html.escape(number)}</b>{more}</figcaption></figure>'
