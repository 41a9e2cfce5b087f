"""Point clouds that can be rotated: the groups of neighbours, and their codes."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from tracer.figures.palette import OTHER_COLOR, stage_colour
from tracer.figures.svg_layout import TRANSPARENT_BACKGROUND

IDS = "phase"
"""The scale of codes: they have no order."""


def draw_group(points: np.ndarray, centres: np.ndarray, group: np.ndarray, chosen: int) -> go.Figure:
    """Draw a cloud `[M, 3]` with the indices of its centres `[n]` and of the points of one group `[k]`.

    `chosen` is the number of that group's centre, from 0; on screen they count from 1.
    """
    ray = np.full((3 * len(group), 3), np.nan)
    ray[0::3], ray[1::3] = points[centres[chosen]], points[group]
    spokes = go.Scatter3d(
        **_axes(ray),
        mode="lines",
        line={"color": stage_colour("attention"), "width": 4},
        name="to its neighbours",
        hoverinfo="skip",
        showlegend=False,
    )
    numbers = np.arange(1, len(centres) + 1)
    lines = [
        _cloud(points, "points", 2, OTHER_COLOR),
        _cloud(points[centres], "centres", 5, stage_colour("patches"), "centre %{customdata}", numbers),
        _cloud(points[group], "the chosen group", 5, stage_colour("attention")),
        spokes,
    ]
    return _figure(lines)


def draw_codes(points: np.ndarray, centres: np.ndarray, ids: np.ndarray, count: int, chosen: int) -> go.Figure:
    """Draw a cloud `[M, 3]`, each centre in the colour of the code `[n]` of its group, of `count` codes.

    The points have the colour of their nearest centre.
    """
    apart = ((points[:, None] - points[centres]) ** 2).sum(axis=2)
    near = ids[apart.argmin(axis=1)]
    lines = [
        _cloud(points, "points", 3, _colour_scale(near, count), "code %{customdata}", near),
        _cloud(points[centres], "centres", 6, _colour_scale(ids, count), "code %{customdata}", ids),
        _cloud(points[centres[[chosen]]], "the chosen one", 16, stage_colour("attention"), symbol="circle-open"),
    ]
    return _figure(lines)


def _colour_scale(ids: np.ndarray, count: int) -> dict:
    return {"color": ids, "colorscale": IDS, "cmin": 0, "cmax": count}


def _cloud(points: np.ndarray, name: str, size: int, colour, caption: str = "", data=None, symbol="circle"):
    marker = {"size": size, "symbol": symbol, **(colour if isinstance(colour, dict) else {"color": colour})}
    marker["line"] = {"width": 4 if symbol == "circle-open" else 0}
    hover = {"hovertemplate": f"{caption}<extra></extra>", "customdata": data} if caption else {"hoverinfo": "skip"}
    return go.Scatter3d(**_axes(points), mode="markers", name=name, marker=marker, **hover)


def _axes(points: np.ndarray) -> dict:
    return {axis: np.round(points[:, place], 3) for place, axis in enumerate("xyz")}


def _figure(lines: list) -> go.Figure:
    axis = {"showbackground": False, "gridcolor": OTHER_COLOR, "zeroline": False, "nticks": 4}
    layout = {
        "scene": {
            **{f"{name}axis": {"title": {"text": name}, **axis} for name in "xyz"},
            "aspectmode": "data",
            "camera": {"eye": {"x": 1.2, "y": 1.0, "z": 1.5}},
            "dragmode": "orbit",
        },
        "height": 380,
        "margin": {"l": 0, "r": 0, "t": 0, "b": 0},
        "showlegend": False,
        **TRANSPARENT_BACKGROUND,
    }
    return go.Figure(lines, layout)
