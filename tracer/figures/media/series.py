"""Charts of a time series: cut to patches, and as the bins of its values."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from tracer.figures.palette import OTHER_COLOR, stage_colour
from tracer.figures.svg_layout import PLAIN_AXIS, TRANSPARENT_BACKGROUND, title

BANDS = 40
"""Bins whose edges are drawn at most: more would be one grey field."""

TICKS = 8
"""Ticks of the axis of time steps at most, besides the first."""


def draw_patches(series: np.ndarray, side: int, chosen: int) -> go.Figure:
    """Draw a series `[M]` with the edges of patches of `side` values; the `chosen` one, from 0, is marked."""
    first = len(series) % side
    edges = [first + side * number + 0.5 for number in range(len(series) // side + 1)]
    line = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "line": {"color": OTHER_COLOR, "width": 1}}
    shapes = [{**line, "x0": edge, "x1": edge} for edge in edges]
    marked = {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "x0": edges[chosen], "x1": edges[chosen + 1]}
    shade = {**marked, "fillcolor": stage_colour("attention"), "opacity": 0.3, "line": {"width": 0}}
    return _figure(len(series), [_values(series)], [*shapes, shade])


def draw_bins(series: np.ndarray, read_back: np.ndarray, middles: np.ndarray, chosen: int) -> go.Figure:
    """Draw a series `[M]` with the decoded values of its bins and all bins' middles; the `chosen` value, from 0, is
    marked."""
    shown = middles[(middles >= series.min() - np.ptp(series) / 5) & (middles <= series.max() + np.ptp(series) / 5)]
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "layer": "below"}
    few = shown if len(shown) <= BANDS else shown[:0]
    shapes = [{**line, "y0": y, "y1": y, "line": {"color": OTHER_COLOR, "width": 1}, "opacity": 0.4} for y in few]
    steps = go.Scatter(
        x=np.arange(1, len(series) + 1),
        y=np.round(read_back, 4),
        mode="lines",
        name="what the ids stand for",
        line={"color": stage_colour("attention"), "width": 2, "shape": "hvh"},
        hovertemplate="value %{x}: %{y}<extra></extra>",
    )
    point = go.Scatter(
        x=[chosen + 1],
        y=[float(read_back[chosen])],
        mode="markers",
        marker={"size": 13, "color": "rgba(0,0,0,0)", "line": {"color": stage_colour("attention"), "width": 3}},
        showlegend=False,
        hoverinfo="skip",
    )
    return _figure(len(series), [_values(series), steps, point], shapes)


def _values(series: np.ndarray) -> go.Scatter:
    return go.Scatter(
        x=np.arange(1, len(series) + 1),
        y=np.round(series.astype(float), 4),
        mode="lines+markers",
        name="the series",
        marker={"size": 4},
        line={"color": stage_colour("patches"), "width": 1.5},
        hovertemplate="value %{x}: %{y}<extra></extra>",
    )


def ticks(count: int) -> list[int]:
    """Return the ticks of an axis of `count` values, which count from 1: the first, and multiples of a round number."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if count <= TICKS * step or step == 1000)
    return [1, *range(max(step, 2), count + 1, step)]


def _figure(count: int, lines: list[go.Scatter], shapes: list[dict]) -> go.Figure:
    layout = {
        "xaxis": {"title": title("time step", 14), "tickvals": ticks(count), **PLAIN_AXIS},
        "yaxis": {"title": title("value", 14), **PLAIN_AXIS},
        "height": 320,
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "legend": {"orientation": "h", "y": 1, "yanchor": "bottom", "x": 0},
        "showlegend": len(lines) > 1,
        "shapes": shapes,
        **TRANSPARENT_BACKGROUND,
    }
    return go.Figure(lines, layout)
