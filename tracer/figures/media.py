"""Pictures of inputs that are no photo: points, series, sound and clips."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from PIL import Image
from plotly.colors import sample_colorscale

from tracer.figures.charts import PLAIN_AXIS, axis, draw, level_line, upright_line
from tracer.figures.drawing import OTHER_COLOR, SEQUENTIAL, stage_colour
from tracer.figures.tensors import data_uri, svg
from tracer.inputs.audio import RATE

NARROW = {"l": 8, "r": 8, "t": 8, "b": 8}
"""The margin of a chart whose axes make room for their own names."""

# Point clouds that can be rotated: the groups of neighbours, and their codes.

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
    return _point_figure(lines)


def draw_point_codes(points: np.ndarray, centres: np.ndarray, ids: np.ndarray, count: int, chosen: int) -> go.Figure:
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
    return _point_figure(lines)


def _colour_scale(ids: np.ndarray, count: int) -> dict:
    return {"color": ids, "colorscale": IDS, "cmin": 0, "cmax": count}


def _cloud(points: np.ndarray, name: str, size: int, colour, caption: str = "", data=None, symbol="circle"):
    marker = {"size": size, "symbol": symbol, **(colour if isinstance(colour, dict) else {"color": colour})}
    marker["line"] = {"width": 4 if symbol == "circle-open" else 0}
    hover = {"hovertemplate": f"{caption}<extra></extra>", "customdata": data} if caption else {"hoverinfo": "skip"}
    return go.Scatter3d(**_axes(points), mode="markers", name=name, marker=marker, **hover)


def _axes(points: np.ndarray) -> dict:
    return {axis: np.round(points[:, place], 3) for place, axis in enumerate("xyz")}


def _point_figure(lines: list) -> go.Figure:
    plain = {"showbackground": False, "gridcolor": OTHER_COLOR, "zeroline": False, "nticks": 4}
    scene = {
        **{f"{name}axis": {"title": {"text": name}, **plain} for name in "xyz"},
        "aspectmode": "data",
        "camera": {"eye": {"x": 1.2, "y": 1.0, "z": 1.5}},
        "dragmode": "orbit",
    }
    return draw(lines, scene=scene, height=380, margin={"l": 0, "r": 0, "t": 0, "b": 0}, showlegend=False)


# Charts of a time series: cut to patches, and as the bins of its values.

BANDS = 40
"""Bins whose edges are drawn at most: more would be one grey field."""

TICKS = 8
"""Ticks of the axis of time steps at most, besides the first."""


def draw_patches(series: np.ndarray, side: int, chosen: int) -> go.Figure:
    """Draw a series `[M]` with the edges of patches of `side` values; the `chosen` one, from 0, is marked."""
    first = len(series) % side
    edges = [first + side * number + 0.5 for number in range(len(series) // side + 1)]
    shapes = [upright_line(edge, color=OTHER_COLOR, width=1) for edge in edges]
    marked = {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "x0": edges[chosen], "x1": edges[chosen + 1]}
    shade = {**marked, "fillcolor": stage_colour("attention"), "opacity": 0.3, "line": {"width": 0}}
    return _series_figure(len(series), [_values(series)], [*shapes, shade])


def draw_bins(series: np.ndarray, read_back: np.ndarray, middles: np.ndarray, chosen: int) -> go.Figure:
    """Draw a series `[M]` with the decoded values of its bins and all bins' middles; the `chosen` value, from 0, is
    marked."""
    shown = middles[(middles >= series.min() - np.ptp(series) / 5) & (middles <= series.max() + np.ptp(series) / 5)]
    few = shown if len(shown) <= BANDS else shown[:0]
    shapes = [{**level_line(y, color=OTHER_COLOR, width=1), "layer": "below", "opacity": 0.4} for y in few]
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
    return _series_figure(len(series), [_values(series), steps, point], shapes)


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


def _series_figure(count: int, lines: list[go.Scatter], shapes: list[dict]) -> go.Figure:
    across, up = axis("time step", tickvals=ticks(count), **PLAIN_AXIS), axis("value", **PLAIN_AXIS)
    look = {"showlegend": len(lines) > 1, "legend": {"orientation": "h", "y": 1, "yanchor": "bottom", "x": 0}}
    return draw(lines, xaxis=across, yaxis=up, height=320, margin=NARROW, shapes=shapes, **look)


# Charts of a sound: its wave, its spectrogram, and the codes of its frames.

POINTS = 500
"""Points of a wave that is drawn: of more samples the lowest and the highest of each stretch."""
"""The scale of codes: they have no order."""
LOUD = sample_colorscale(SEQUENTIAL, 16)
"""The scale of loudness, as colours that are not hexadecimal: Streamlit takes the darkest of those for its own."""
BETWEEN = "#4d4d55"
"""The colour between two frames."""
UPPER_DOMAIN, LOWER_DOMAIN = [0.8, 1.0], [0.0, 0.72]
"""Positions of the two plots of a figure, in shares of its height."""


def draw_spectrogram(sound: np.ndarray, logs: np.ndarray, window: int, hop: int, chosen: int) -> go.Figure:
    """Draw the wave of a sound `[M]` with the chosen frame, over the log power of its frames `[n, K]`."""
    times, heights = envelope(sound)
    wave = go.Scatter(x=times, y=heights, mode="lines", line={"color": stage_colour("patches"), "width": 1}, yaxis="y2")
    start, stop = chosen * hop / RATE, (chosen * hop + window) / RATE
    frame = {"type": "rect", "x0": start, "x1": stop, "yref": "y2 domain", "y0": 0, "y1": 1, "line": {"width": 0}}
    shade = {**frame, "fillcolor": stage_colour("attention"), "opacity": 0.45}
    upper = axis("amplitude", 13, range=[-1, 1], tickvals=[-1, 0, 1], **PLAIN_AXIS)
    return _sound_figure([wave], logs, window, hop, chosen, upper, [shade])


def draw_sound_codes(ids: np.ndarray, rows: np.ndarray, count: int, window: int, hop: int, chosen: int) -> go.Figure:
    """Draw the codes `[n]` of frames, of `count`, over their rows of the codebook `[n, K]`."""
    strip = go.Heatmap(
        z=ids[None],
        x=_centres(len(ids), window, hop),
        zmin=0,
        zmax=count,
        colorscale=IDS,
        showscale=False,
        xgap=1,
        yaxis="y2",
        hovertemplate="frame at %{x:.3f} s: code %{z}<extra></extra>",
    )
    upper = axis("code", 13, showticklabels=False, **PLAIN_AXIS)
    return _sound_figure([strip], rows, window, hop, chosen, upper, [])


def _sound_figure(upper, logs, window: int, hop: int, chosen: int, upper_axis: dict, shapes: list[dict]) -> go.Figure:
    centres = _centres(len(logs), window, hop)
    frequencies = np.linspace(0, RATE / 2000, logs.shape[1])
    grid = go.Heatmap(
        z=np.round(logs.T, 1),
        x=centres,
        y=np.round(frequencies, 4),
        colorscale=LOUD,
        zmin=-9,
        zmax=9,
        xgap=1,
        colorbar={"title": {"text": "ln power", "side": "right"}, "thickness": 12, "len": 0.72, "y": 0.36},
        hovertemplate="%{x:.3f} s, %{y:.2f} kHz: %{z}<extra></extra>",
    )
    half = hop / 2 / RATE
    box = {"type": "rect", "x0": centres[chosen] - half, "x1": centres[chosen] + half, "yref": "y domain"}
    framed = {**box, "y0": 0, "y1": 1, "line": {"color": stage_colour("attention"), "width": 3}}
    end = (hop * (len(logs) - 1) + window) / RATE
    between = {**box, "x0": half, "x1": end - half, "y0": 0, "y1": 1, "layer": "below", "line": {"width": 0}}
    axes = {
        "xaxis": axis("time in s", 13, range=[0, end], **PLAIN_AXIS),
        "yaxis": axis("frequency in kHz", 13, domain=LOWER_DOMAIN, **PLAIN_AXIS),
        "yaxis2": {"domain": UPPER_DOMAIN, **upper_axis},
    }
    shapes = [{**between, "fillcolor": BETWEEN}, *shapes, framed]
    return draw([*upper, grid], **axes, height=400, margin=NARROW, shapes=shapes, showlegend=False)


def _centres(count: int, window: int, hop: int) -> np.ndarray:
    """Return the middle of each frame in s."""
    return np.round((hop * np.arange(count) + window / 2) / RATE, 5)


def envelope(sound: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return times in s and heights of a line through the wave's lowest and highest points."""
    step = max(1, -(-2 * len(sound) // POINTS))
    whole = np.pad(sound, (0, -len(sound) % step), mode="edge").reshape(-1, step)
    heights = np.stack([whole.min(1), whole.max(1)], axis=1).ravel() if step > 1 else sound
    times = np.arange(len(heights)) * step / (2 if step > 1 else 1) / RATE
    return np.round(times, 4), np.round(heights, 3)


# A video as SVG: its frames side by side with the grid of tokens, and the frames one after the other.

COLUMNS = 4
"""Frames in a row."""
GAP, HEAD = 6, 9
"""Between frames, and above each for its number, in pixels of the video."""
SECONDS = 0.25
"""Duration of each frame."""
STROKE = 'fill="none" vector-effect="non-scaling-stroke"'


def sheet(frames: np.ndarray, side: int, depth: int, chosen: int, what: str) -> str:
    """Draw all frames `[F, H, W, 3]` of a video, each with the grid of patches of `side` pixels.

    A token is a patch of `depth` frames in a row, in the order of time, then row by row; names count from 1. The
    `chosen` one, from 0, is framed, all others are dimmed, and the token under the pointer is marked in every frame.
    `what` names the tokens.
    """
    count, height, width = frames.shape[:3]
    across, down = width // side, height // side
    rows = -(-count // COLUMNS)
    whole = COLUMNS * (width + GAP) - GAP, rows * (height + HEAD + GAP) - GAP
    elements = []
    for number, frame in enumerate(frames):
        left, top = (width + GAP) * (number % COLUMNS), (height + HEAD + GAP) * (number // COLUMNS) + HEAD
        first = number // depth * across * down
        cells = "".join(
            f'<rect data-patch="{what} {first + place + 1}" x="{left + side * (place % across)}" '
            f'y="{top + side * (place // across)}" width="{side}" height="{side}" fill="#000" '
            f'fill-opacity="{0 if first + place == chosen else 0.45}"><title>{what} {first + place + 1}</title></rect>'
            for place in range(across * down)
        )
        lines = "".join(f"M{left + side * i} {top}v{height}" for i in range(1, across))
        lines += "".join(f"M{left} {top + side * i}h{width}" for i in range(1, down))
        elements.append(
            f'<text x="{left}" y="{top - 2}">frame {number + 1}</text>'
            f'<image href="{data_uri(Image.fromarray(frame), "PNG")}" x="{left}" y="{top}" width="{width}" '
            f'height="{height}" style="image-rendering:pixelated"/>{cells}'
            f'<path d="{lines}" stroke="#fff" stroke-opacity="0.6" stroke-width="1" pointer-events="none" {STROKE}/>'
        )
        if 0 <= chosen - first < across * down:
            place = chosen - first
            box = f'x="{left + side * (place % across)}" y="{top + side * (place // across)}"'
            colour = f'stroke="{stage_colour("attention")}" stroke-width="3" pointer-events="none"'
            elements.append(f'<rect {box} width="{side}" height="{side}" {colour} {STROKE}/>')
    label = f"{count} frames cut to {count // depth * across * down} tokens; {what} {chosen + 1} is framed"
    inside = f'<g fill="currentColor" font-size="6.5">{"".join(elements)}</g>'
    return svg(whole, label, inside, style="max-height:34rem;overflow:hidden")


def player(frames: np.ndarray, playing: bool) -> str:
    """Draw the frames `[F, H, W, 3]` in one place, one after the other if they are `playing`.

    The first frame alone is shown if they are not, or if the reader's system asks for less motion.
    """
    count, height, width = frames.shape[:3]
    strip = data_uri(Image.fromarray(np.concatenate(list(frames), axis=1)), "PNG")
    style = (
        f"<style>@media (prefers-reduced-motion: no-preference) {{ .strip {{ animation: play {count * SECONDS:g}s "
        f"steps({count}) infinite; }} }} @keyframes play {{ to {{ transform: translateX({-count * width}px); }} }}"
        "</style>"
    )
    image = f'<image href="{strip}" width="{count * width}" height="{height}" style="image-rendering:pixelated"/>'
    label = "The video, a red circle that goes past a blue square"
    inside = f'{style if playing else ""}<g class="strip">{image}</g>'
    return svg((width, height), label, inside, style="max-height:14rem;overflow:hidden")
