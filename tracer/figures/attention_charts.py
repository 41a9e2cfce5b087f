"""Charts of what heads do."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tracer.figures.charts import LEGEND, PLAIN_AXIS, axis, bands, draw, heading, level_line, title
from tracer.figures.drawing import OTHER_COLOR, SEQUENTIAL, STAGES, stage_colour, table
from tracer.figures.envelope import compress
from tracer.figures.tensors import ALL_BYTES, as_array, reduce
from tracer.utils.errors import shorten
from tracer.utils.text import scientific

# Charts of the notes' claims: numbers block by block, the spread of products over the width, shares of a lookup.

COLOURS = (STAGES["attention"], STAGES["mlp"], STAGES["norm"])
SCALE = [[0, "rgba(122, 132, 148, 0.2)"], [1, "#2589c7"]]
"""From nothing to the largest, on a light page and on a dark one."""
MAX_SPACED_ROWS = 32
"""Rows of a map above which its cells touch."""
MARGIN = {"l": 60, "r": 10, "t": 30, "b": 45}


def by_block(lines: Mapping[str, Sequence[float]], what: str, single: bool = False) -> go.Figure:
    """Draw bars for each block, of each of the named `lines`; `single` marks the height 1."""
    data = [
        {
            "type": "bar", "name": name, "x": [f"block {at}" for at in range(1, len(values) + 1)], "y": list(values),
            "marker": {"color": colour}, "hovertemplate": "%{x}: %{y:.3g}<extra>" + name + "</extra>",
        }
        for (name, values), colour in zip(lines.items(), COLOURS[: len(lines)], strict=True)
    ]  # fmt: skip
    shapes = [level_line(1, dash="dot", width=1)] if single else []
    look = {"legend": LEGEND, "showlegend": len(data) > 1, "barmode": "group", "shapes": shapes}
    return draw(data, height=240, margin=MARGIN, yaxis=axis(what), **look)


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
    across = axis("d_k, numbers in a query", type="log", dtick=0.30103, tickvals=list(widths))
    up = axis("standard deviation", type="log", tickvals=[1, 2, 4, 8, 16, 32])
    return draw(data, height=280, margin=MARGIN, legend=LEGEND, xaxis=across, yaxis=up)


def shares(values: Mapping[str, float]) -> go.Figure:
    """Draw the share of a soft lookup that each key gets."""
    bars = {
        "type": "bar", "orientation": "h", "y": list(values), "x": list(values.values()),
        "marker": {"color": COLOURS[0]}, "hovertemplate": "%{y}: %{x:.1%}<extra></extra>",
    }  # fmt: skip
    size = {"height": 40 + 34 * len(values), "margin": {"l": 80, "r": 10, "t": 5, "b": 40}}
    across = axis("weight", range=[0, 1], tickformat=".0%")
    return draw([bars], **size, xaxis=across, yaxis={"autorange": "reversed"})


def grids(maps: Mapping[str, Sequence[Sequence[float]]], columns: int, axes: tuple[str, str]) -> go.Figure:
    """Draw small maps, each under its name, in rows of `columns`; `axes` name a row and a column of a map."""
    down = -(-len(maps) // columns)
    across, heights = bands(columns, 0.04), bands(down, 0.14)
    data, names = [], []
    layout: dict[str, Any] = {"height": 60 + 150 * down, "margin": {"l": 30, "r": 5, "t": 40, "b": 30}}
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
        plain = {**PLAIN_AXIS, "showticklabels": False, "ticks": ""}
        layout[f"xaxis{key}"] = {**plain, "domain": [left, right], "anchor": f"y{key}", "constrain": "domain"}
        layout[f"yaxis{key}"] = {
            **plain, "domain": [low, high], "anchor": f"x{key}", "autorange": "reversed", "scaleanchor": f"x{key}",
            "constrain": "domain",
        }  # fmt: skip
        if column == 0:
            layout[f"yaxis{key}"]["title"] = title(axes[0], 12)
        if row == down - 1:
            layout[f"xaxis{key}"]["title"] = title(axes[1], 12)
        names.append(heading(name, (left + right) / 2, high, 13))
    return draw(data, **layout, annotations=names)


# Charts of the effect of positions on scores: a line for each head over the distance, and the changed outputs.


def distance_lines(
    distances: Sequence[int], mean: np.ndarray, low: np.ndarray, high: np.ndarray, head: int, causal: bool
) -> go.Figure:
    """Draw scores `[h, distances]` over i - j, a line for each head.

    `head` has a thick line and a band from its lowest to its highest score. Under a causal mask only keys that are not
    after the query are open.
    """
    open_ones = [at for at, distance in enumerate(distances) if distance >= 0 or not causal]
    x = [distances[at] for at in open_ones]
    colours = list(STAGES.values())[: len(mean)]
    band = [
        {
            "type": "scatter", "x": x + x[::-1], "y": [*high[head][open_ones], *low[head][open_ones][::-1]],
            "fill": "toself", "mode": "none", "fillcolor": f"{colours[head]}40",
            "hoverinfo": "skip", "showlegend": False,
        }
    ]  # fmt: skip
    lines = [
        {
            "type": "scatter", "mode": "lines", "x": x, "y": mean[number][open_ones], "name": f"head {number + 1}",
            "line": {"color": colours[number], "width": 4 if number == head else 1.5},
            "hovertemplate": "i − j = %{x}<br>score %{y:.3f}<extra>head " + str(number + 1) + "</extra>",
        }
        for number in range(len(mean))
    ]  # fmt: skip
    across, up = axis("i − j, from key to query", zeroline=True), axis("score, same token everywhere")
    legend = {**LEGEND, "entrywidth": 64}
    return draw(band + lines, height=340, margin=SURVEY_MARGIN, xaxis=across, yaxis=up, legend=legend)


def build_likeness(rows: int, columns: int, cosines: np.ndarray) -> dict[str, Any]:
    """Return the cosines `[N, N]` between the positions of patches for drawing in the browser."""
    return {
        "rows": rows,
        "columns": columns,
        "low": float(cosines.min()),
        "start": rows // 2 * columns + columns // 2,
        "cosines": compress(cosines),
        "colours": table(SEQUENTIAL),
    }


# Terms of a sum of matrices, as small maps on one scale, with their sum and the matrix of the run.

SUM, RAN = "their sum", "the scores that ran"


def difference(terms: Mapping[str, Any], scores) -> float:
    """Return max|sum of the terms - scores| / max|scores|, over the scores that a mask left finite.

    Terms of a run whose queries or keys are changed do not add up to its scores.
    """
    ran, total = as_array(scores), sum(map(as_array, terms.values()))
    finite = np.isfinite(ran)
    return float(np.abs(total - ran)[finite].max() / (np.abs(ran[finite]).max() or 1.0))


def build_terms(terms: Mapping[str, Any], scores, head: int = 0) -> dict[str, Any]:
    """Return terms and scores `[h, S_q, S_k]` for drawing in the browser.

    Each head has the maps of the terms, of their sum and of the scores, on one scale centred on 0: `cells` are `[which,
    names, rows, columns]`. All heads are sent if they are small, else `head` alone. `names` are those of the maps,
    `heads` their number, `which` of them are sent, `full` the size of a map before reduction, `edges` the ends of the
    scales, `largest` the largest term of each head by root mean square, and `error` that of the sum. Hidden scores are
    not finite.
    """
    panels: dict[str, Any] = {name: as_array(term) for name, term in terms.items()}
    panels |= {SUM: sum(panels.values()), RAN: as_array(scores)}
    maps = np.stack(list(panels.values()), axis=1)  # [h, 6, S_q, S_k]
    which = list(range(len(maps))) if 2 * maps.size <= ALL_BYTES else [min(max(head, 0), len(maps) - 1)]
    maps, full = maps[which], maps.shape[-2:]
    cells, box = reduce(maps)
    shares = [{name: float(np.square(panels[name][at]).mean()) for name in terms} for at in which]
    return {
        "names": list(panels),
        "heads": len(panels[RAN]),
        "which": which,
        "full": list(full),
        "box": list(box),
        "edges": [float(np.abs(cell[np.isfinite(cell)]).max()) for cell in cells],
        "largest": [max(share, key=share.__getitem__) for share in shares],
        "error": scientific(difference(terms, scores)),
        "cells": compress(cells),
    }


# Charts of a survey: one head over all photos, all heads over the depth, and the hiding test.

MAX_PHOTOS = 16
"""Photos that are drawn one by one; more are counted."""
BINS = 30
"""The most columns of a histogram."""
SURVEY_MARGIN = {"l": 60, "r": 10, "t": 10, "b": 50}


def distribution(values: np.ndarray, names: Sequence[str], measure: str) -> go.Figure:
    """Draw the numbers of a head, `[photos]`: a bar for each of a few photos, else a histogram.

    `measure` names the numbers; NaN are left out.
    """
    known = np.flatnonzero(np.isfinite(values))
    colour = {"color": stage_colour("attention")}
    layout = {"height": 300, "margin": SURVEY_MARGIN, "xaxis": axis(measure)}
    if len(known) <= MAX_PHOTOS:
        order = known[np.argsort(values[known])]
        labels = [shorten(names[at], 24) for at in order]
        bars = {
            "type": "bar", "orientation": "h", "x": values[order].tolist(), "y": list(range(len(order))),
            "marker": colour, "customdata": list(map(html.escape, labels)),
            "hovertemplate": "%{customdata}: %{x:.3g}<extra></extra>",
        }  # fmt: skip
        ticks: dict[str, Any] = {"tickvals": list(range(len(order))), "ticktext": list(map(html.escape, labels))}
        return draw([bars], **layout, yaxis=axis("photo", automargin=True, **ticks), bargap=0.3)
    counts, edges = np.histogram(values[known], bins=min(BINS, 2 + int(np.sqrt(len(known)))))
    bars = {
        "type": "bar", "x": ((edges[1:] + edges[:-1]) / 2).tolist(), "y": counts.tolist(),
        "width": np.diff(edges).tolist(), "marker": colour,
        "customdata": np.stack([edges[:-1], edges[1:]], axis=-1).tolist(),
        "hovertemplate": "%{customdata[0]:.3g} to %{customdata[1]:.3g}: %{y} photos<extra></extra>",
    }  # fmt: skip
    return draw([bars], **layout, yaxis=axis("photos"), bargap=0.05)


def over_depth(
    mean: np.ndarray, spread: np.ndarray, layers: Sequence[int], chosen: tuple[int, int], measure: str
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
    size = {"height": 300, "margin": {**SURVEY_MARGIN, "t": 30}}
    across = axis("block", dtick=1 if len(layers) <= 24 else 4)
    return draw([dots, point], **size, xaxis=across, yaxis=axis(measure), legend=LEGEND)


def draw_hiding_test(means: Mapping[str, float], spreads: Mapping[str, float], measure: str) -> go.Figure:
    """Draw the mean effect of hiding patches, a bar for each way to choose them, with its spread as a line."""
    bars = {
        "type": "bar", "x": list(means), "y": list(means.values()),
        "marker": {"color": [stage_colour("attention"), OTHER_COLOR, OTHER_COLOR][: len(means)]},
        "error_y": {"type": "data", "array": list(spreads.values()), "color": stage_colour("norm")},
        "hovertemplate": "%{x}: %{y:.3g}<extra></extra>",
    }  # fmt: skip
    axes = {"xaxis": axis("patches that are hidden"), "yaxis": axis(measure)}
    return draw([bars], height=280, margin=SURVEY_MARGIN, bargap=0.5, **axes)


def photo_card(picture: str, number: str, lines: Sequence[str]) -> str:
    """Return a small photo with its number and more lines below it, as HTML; `picture` is a `data:` address, or
    empty."""
    image = f'<img src="{html.escape(picture)}" alt="" draggable="false">' if picture else "<i></i>"
    more = "".join(f"<br>{html.escape(line)}" for line in lines)
    return f'<figure class="photo-card">{image}<figcaption><b>{html.escape(number)}</b>{more}</figcaption></figure>'
