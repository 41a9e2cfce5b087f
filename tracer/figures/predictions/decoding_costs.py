"""Arithmetic of each token of a text, with a cache and without, over the length of the text."""

from collections.abc import Sequence

import plotly.graph_objects as go

from tracer.figures.palette import OTHER_COLOR, STAGES
from tracer.figures.svg_layout import CURVES, title

MAX_POWERS = 4
"""Powers of ten on an axis that has room for ticks between them."""


def per_token(lengths: Sequence[int], without: Sequence[int], cached: Sequence[int], here: int) -> go.Figure:
    """Draw the FLOPs of the token at each length, without a cache and with one, on a logarithmic scale; the length of
    the run, `here`, is marked."""
    lines = [
        {
            "type": "scatter", "mode": "lines", "x": list(lengths), "y": list(values), "name": name,
            "line": {"color": STAGES[stage], "width": 3, "dash": dash},
            "hovertemplate": "token %{x}: %{y:.3s}FLOP<extra></extra>",
        }
        for name, values, stage, dash in (
            ("reads the whole text again", without, "attention", "solid"),
            ("reads one token, with the cache", cached, "patches", "dash"),
        )
    ]  # fmt: skip
    layout = {
        **CURVES,
        "height": 340,
        "xaxis": {"title": title("T: number of the token, from 1", 14)},
        "yaxis": {
            "title": title("FLOP for this token", 14),
            "type": "log",
            "tickvals": ticks(*without, *cached),
            "tickformat": "~s",
        },
        "shapes": [
            {
                "type": "line",
                "x0": here,
                "x1": here,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"dash": "dot", "color": OTHER_COLOR},
            }
        ],
    }
    return go.Figure({"data": lines, "layout": layout}, skip_invalid=False)


def ticks(*values: int) -> list[int]:
    """Return the ticks of a logarithmic axis over values: powers of ten, and 2 and 5 between where there is room."""
    least, most = min(values), max(values)
    powers = range(len(str(least)) - 1, len(str(most)) + 1)
    digits = (1, 2, 5) if len(powers) <= MAX_POWERS else (1,)
    return [digit * 10**power for power in powers for digit in digits if least <= digit * 10**power <= most]
