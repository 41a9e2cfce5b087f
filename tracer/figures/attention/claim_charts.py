"""Charts of the notes' claims: numbers block by block, the spread of products over the width, shares of a lookup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from tracer.figures.palette import STAGES
from tracer.figures.svg_layout import PLAIN_AXIS, TRANSPARENT_BACKGROUND, bands, heading, title

COLOURS = (STAGES["attention"], STAGES["mlp"], STAGES["norm"])
SCALE = [[0, "rgba(122, 132, 148, 0.2)"], [1, "#2589c7"]]
"""From nothing to the largest, on a light page and on a dark one."""
MAX_SPACED_ROWS = 32
"""Rows of a map above which its cells touch."""
MARGIN = {"l": 60, "r": 10, "t": 30, "b": 45}
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom"}


def by_block(lines: Mapping[str, Sequence[float]], what: str, single: bool = False) -> go.Figure:
    """Draw bars for each block, of each of the named `lines`; `single` marks the height 1."""
    data = [
        {
            "type": "bar", "name": name, "x": [f"block {at}" for at in range(1, len(values) + 1)], "y": list(values),
            "marker": {"color": colour}, "hovertemplate": "%{x}: %{y:.3g}<extra>" + name + "</extra>",
        }
        for (name, values), colour in zip(lines.items(), COLOURS[: len(lines)], strict=True)
    ]  # fmt: skip
    layout = {
        **TRANSPARENT_BACKGROUND,
        "height": 240,
        "margin": MARGIN,
        "yaxis": {"title": title(what, 14)},
        "legend": LEGEND,
    }
    layout |= {"showlegend": len(data) > 1, "barmode": "group"}
    if single:
        line = {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "y0": 1,
            "y1": 1,
            "line": {"dash": "dot", "width": 1},
        }
        layout["shapes"] = [line]
    return go.Figure({"data": data, "layout": layout}, skip_invalid=False)


def spreads(widths: Sequence[int], plain: Sequence[float], scaled: Sequence[float], chosen: int) -> go.Figure:
    """Draw the standard deviation of products of random vectors over the width, with and without the scale."""
    data = [
        {
            "type": "scatter", "mode": "lines+markers", "name": name, "x": list(widths), "y": list(values),
            "line": {"color": colour}, "hovertemplate": "d_k = %{x}: %{y:.3g}<extra>" + name + "</extra>",
            "marker": {"size": [14 if width == chosen else 6 for width in widths]},
        }
        for name, values, colour in zip(("q · k", "q · k / √d_k"), (plain, scaled), COLOURS[:2], strict=True)
    ]  # fmt: skip
    axis = {"type": "log", "dtick": 0.30103, "tickvals": list(widths)}
    layout = {
        **TRANSPARENT_BACKGROUND, "height": 280, "margin": MARGIN, "legend": LEGEND,
        "xaxis": {**axis, "title": title("d_k, numbers in a query", 14)},
        "yaxis": {"type": "log", "title": title("standard deviation", 14), "tickvals": [1, 2, 4, 8, 16, 32]},
    }  # fmt: skip
    return go.Figure({"data": data, "layout": layout}, skip_invalid=False)


def shares(values: Mapping[str, float]) -> go.Figure:
    """Draw the share of a soft lookup that each key gets."""
    bars = {
        "type": "bar", "orientation": "h", "y": list(values), "x": list(values.values()),
        "marker": {"color": COLOURS[0]}, "hovertemplate": "%{y}: %{x:.1%}<extra></extra>",
    }  # fmt: skip
    layout = {
        **TRANSPARENT_BACKGROUND, "height": 40 + 34 * len(values), "margin": {"l": 80, "r": 10, "t": 5, "b": 40},
        "xaxis": {"title": title("weight", 14), "range": [0, 1], "tickformat": ".0%"},
        "yaxis": {"autorange": "reversed"},
    }  # fmt: skip
    return go.Figure({"data": [bars], "layout": layout}, skip_invalid=False)


def grids(maps: Mapping[str, Sequence[Sequence[float]]], columns: int, axes: tuple[str, str]) -> go.Figure:
    """Draw small maps, each under its name, in rows of `columns`; `axes` name a row and a column of a map."""
    down = -(-len(maps) // columns)
    across, heights = bands(columns, 0.04), bands(down, 0.14)
    data, names = [], []
    layout: dict[str, Any] = {
        **TRANSPARENT_BACKGROUND,
        "height": 60 + 150 * down,
        "margin": {"l": 30, "r": 5, "t": 40, "b": 30},
        "annotations": names,
    }
    for at, (name, cells) in enumerate(maps.items()):
        row, column = divmod(at, columns)
        low, high = heights[down - 1 - row]
        left, right = across[column]
        key = "" if at == 0 else str(at + 1)
        largest, gap = max(max(cell) for cell in cells), int(len(cells) <= MAX_SPACED_ROWS)
        data.append({
            "type": "heatmap", "z": [list(cell) for cell in cells], "zmin": 0, "zmax": largest or 1, "showscale": False,
            "colorscale": SCALE, "xaxis": f"x{key}", "yaxis": f"y{key}", "xgap": gap, "ygap": gap,
            "hovertemplate": axes[0] + " %{y}, " + axes[1] + " %{x}: %{z:.3g}<extra>" + name + "</extra>",
        })  # fmt: skip
        axis = {**PLAIN_AXIS, "showticklabels": False, "ticks": ""}
        layout[f"xaxis{key}"] = {**axis, "domain": [left, right], "anchor": f"y{key}", "constrain": "domain"}
        layout[f"yaxis{key}"] = {
            **axis, "domain": [low, high], "anchor": f"x{key}", "autorange": "reversed", "scaleanchor": f"x{key}",
            "constrain": "domain",
        }  # fmt: skip
        if column == 0:
            layout[f"yaxis{key}"]["title"] = title(axes[0], 12)
        if row == down - 1:
            layout[f"xaxis{key}"]["title"] = title(axes[1], 12)
        names.append(heading(name, (left + right) / 2, high, 13))
    return go.Figure({"data": data, "layout": layout}, skip_invalid=False)
