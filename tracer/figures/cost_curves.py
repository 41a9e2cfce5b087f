"""Shares of a model's arithmetic over one of its sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10

import plotly.graph_objects as go

from tracer.figures.charts import axis, draw, upright_line
from tracer.figures.drawing import OTHER_COLOR, legend, stage_colour
from tracer.record.costs import ENDS, MLP, PROJECTIONS, SCORES, WEIGHTED_SUM
from tracer.symbols.notation import MEANINGS, size_html
from tracer.utils.text import amount, percent

COLOURS = {
    PROJECTIONS: stage_colour("embedding"),
    SCORES: stage_colour("attention"),
    WEIGHTED_SUM: stage_colour("position"),
    MLP: stage_colour("mlp"),
    ENDS: OTHER_COLOR,
}
MARK = 7
"""Points of a curve for each factor of 4."""
MARK_LINE = {"color": "#ffffff", "width": 2}
"""The line at a size that is marked."""


def places(now: int, most: int, step: int = 1) -> list[int]:
    """Return sizes from small to large, evenly on a logarithmic axis, multiples of `step`, with `now` among them."""
    ticks, at = {now}, float(max(step, 4))
    while at <= most:
        ticks.add(max(step, round(at / step) * step))
        at *= 4 ** (1 / MARK)
    return sorted(ticks)


def draw_shares(
    name: str, values: Sequence[int], flops: Mapping[str, Sequence[int]], now: int, meets: float | None
) -> go.Figure:
    """Draw the share of each part in all FLOPs over one size, stacked, on a logarithmic axis.

    The size `now` is marked, and the one at which attention `meets` the MLP, if that is known.
    """
    totals = [sum(column) or 1 for column in zip(*flops.values(), strict=True)]
    curves = [
        go.Scatter(
            x=list(values),
            y=[100 * value / total for value, total in zip(column, totals, strict=True)],
            name=part,
            stackgroup="one",
            mode="lines",
            line={"width": 0.5, "color": COLOURS[part]},
            fillcolor=COLOURS[part],
            customdata=[amount(value, "FLOP") for value in column],
            hovertemplate="%{y:.1f} %, %{customdata}",
        )
        for part, column in flops.items()
    ]
    marks, labels = [upright_line(now, **MARK_LINE, dash="solid")], [_label(now, "now", values)]
    if meets is not None and values[0] <= meets <= values[-1]:
        marks.append(upright_line(meets, **MARK_LINE, dash="dash"))
        labels.append(_label(meets, f"attention = MLP at {meets:,.0f}", values, low=True))
    font = {"size": 14}
    name_of_size = f"{size_html(name)}, {MEANINGS[name].partition(':')[0]}"
    across = axis(name_of_size, 16, type="log", tickfont=font, dtick=1, showgrid=False)
    up = axis("share of all FLOPs", 16, range=[0, 100], ticksuffix=" %", tickfont=font)
    look = {"height": 300, "font": font, "margin": {"l": 8, "r": 8, "t": 44, "b": 8}, "hovermode": "x unified"}
    return draw(curves, xaxis=across, yaxis=up, shapes=marks, annotations=labels, showlegend=False, **look)


def _label(at: float, text: str, values: Sequence[int], low: bool = False) -> dict:
    """Return the label above a marked size; at the edges it leans inwards."""
    share = log10(at / values[0]) / (log10(values[-1] / values[0]) or 1)
    anchor = "left" if share < 0.2 else "right" if share > 0.8 else "center"
    place = {"x": log10(at), "xanchor": anchor, "y": 1.09 if low else 1.0, "yref": "paper", "yanchor": "bottom"}
    return {"text": text, "showarrow": False, "font": {"size": 13}, **place}


def parts(flops: Mapping[str, Sequence[int]]) -> str:
    """Return the legend of `draw_shares`, in HTML."""
    return legend((COLOURS[part], part) for part in flops)


def describe_curves(name: str, flops: Mapping[str, Sequence[int]], values: Sequence[int], now: int) -> str:
    """Return the text alternative: the share of each part now."""
    at = values.index(now)
    total = sum(column[at] for column in flops.values()) or 1
    shares = ", ".join(f"{part} {percent(column[at] / total, 0)}" for part, column in flops.items())
    return f"Share of all FLOPs over {name}, at {name} = {now:,}: {shares}"
