"""Charts of a sound: its wave, its spectrogram, and the codes of its frames."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from tracer.figures.palette import SEQUENTIAL, stage_colour
from tracer.figures.svg_layout import PLAIN_AXIS, TRANSPARENT_BACKGROUND, title
from tracer.inputs.audio import RATE

POINTS = 500
"""Points of a wave that is drawn: of more samples the lowest and the highest of each stretch."""
IDS = "phase"
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
    axis = {"title": title("amplitude", 13), "range": [-1, 1], "tickvals": [-1, 0, 1], **PLAIN_AXIS}
    return _figure([wave], logs, window, hop, chosen, axis, [shade], "log power of each frame")


def draw_codes(ids: np.ndarray, rows: np.ndarray, count: int, window: int, hop: int, chosen: int) -> go.Figure:
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
    axis = {"title": title("code", 13), "showticklabels": False, **PLAIN_AXIS}
    return _figure([strip], rows, window, hop, chosen, axis, [], "the codebook’s rows in their place")


def _figure(upper, logs, window: int, hop: int, chosen: int, axis: dict, shapes: list[dict], what: str) -> go.Figure:
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
    layout = {
        "xaxis": {"title": title("time in s", 13), "range": [0, end], **PLAIN_AXIS},
        "yaxis": {"title": title("frequency in kHz", 13), "domain": LOWER_DOMAIN, **PLAIN_AXIS},
        "yaxis2": {"domain": UPPER_DOMAIN, **axis},
        "height": 400,
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "shapes": [{**between, "fillcolor": BETWEEN}, *shapes, framed],
        "showlegend": False,
        **TRANSPARENT_BACKGROUND,
    }
    return go.Figure([*upper, grid], layout)


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
