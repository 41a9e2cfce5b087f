"""Common parts of all charts: their background, axes, lines and headings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import plotly.graph_objects as go

from tracer.figures.drawing import STAGES

# A figure is built at once, from whole dictionaries: every update of an existing one goes through all of plotly's
# checks again, and a few of them take twenty times as long as building it. A server draws several for each page of each
# visitor.

TRANSPARENT_BACKGROUND = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)"}
"""The page shows through."""
PLAIN_AXIS = {"showgrid": False, "zeroline": False}
"""An axis without lines."""
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom"}
"""A legend above a plot."""
CURVES = {"margin": {"l": 75, "r": 10, "t": 10, "b": 50}, "legend": LEGEND}
"""The layout of a chart of curves: room for the names of its axes, and a legend above it."""


def draw(data: Sequence, **layout) -> go.Figure:
    """Return a figure on the background of the page."""
    return go.Figure(data, TRANSPARENT_BACKGROUND | layout)


def curve(name: str, x: Sequence, y: Sequence, stage: str, hover: str, mark: str = "", **line) -> dict:
    """Return a curve in the colour of a stage, with a mark of that form at each point, if any."""
    marks = {"mode": "lines+markers", "marker": {"size": 9, "symbol": mark}} if mark else {"mode": "lines"}
    line = {"color": STAGES[stage], "width": 3, **line}
    return {"type": "scatter", "x": list(x), "y": list(y), "name": name, "line": line, "hovertemplate": hover, **marks}


def axis(text: str, size: int = 14, **more) -> dict:
    """Return an axis with a title."""
    return {"title": title(text, size), **more}


def title(text: str, size: int = 16) -> dict:
    """Return the title of an axis."""
    return {"text": text, "font": {"size": size}}


def level_line(y: float, **line) -> dict:
    """Return a line across a plot at a height."""
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}


def upright_line(x: float, **line) -> dict:
    """Return a line from the lower edge of a plot to the upper one."""
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def heading(text: str, x: float, y: float, size: int = 16, **more) -> dict:
    """Return the heading of one of several plots: centred at `x` on the upper edge `y`, in shares of the figure."""
    place = {"x": x, "xanchor": "center", "xref": "paper", "y": y, "yanchor": "bottom", "yref": "paper"}
    return {"text": text, "showarrow": False, "font": {"size": size}, **place, **more}


def bands(count: int, gap: float) -> list[list[float]]:
    """Return the ends of `count` plots of one width side by side, 0 to 1, with a gap between."""
    width = (1 - gap * (count - 1)) / count
    starts = accumulate([width + gap] * (count - 1), initial=0.0)
    return [[start, start + width] for start in starts]
