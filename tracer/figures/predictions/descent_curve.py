"""Loss after one step of training over the learning rate, as measured and as the slope predicts it."""

from collections.abc import Sequence

import plotly.graph_objects as go

from tracer.figures.palette import STAGES
from tracer.figures.svg_layout import CURVES, title


def losses(rates: Sequence[float], after: Sequence[float], predictions: Sequence[float], before: float) -> go.Figure:
    """Draw both curves on a logarithmic axis of rates. The loss `before` is a dotted line, and the axis of losses ends
    where the measured ones do: no loss is below 0."""
    lines = [
        {
            "type": "scatter", "mode": "lines+markers", "x": list(rates), "y": list(values), "name": name,
            "line": {"color": STAGES[stage], "width": 3, "dash": dash}, "marker": {"size": 9, "symbol": mark},
            "hovertemplate": "η = %{x}: %{y:.4g}<extra></extra>",
        }
        for name, values, stage, dash, mark in (
            ("measured", after, "patches", "solid", "circle"),
            ("predicted: L − η‖∇L‖²", predictions, "attention", "dash", "square"),
        )
    ]  # fmt: skip
    lowest, highest = min(*after, before), max(*after, before)
    room = 0.08 * (highest - lowest)
    layout = {
        **CURVES,
        "height": 340,
        "xaxis": {
            "title": title("η: the learning rate", 14), "type": "log", "tickvals": list(rates),
            "ticktext": [f"{rate:g}" for rate in rates],
        },
        "yaxis": {
            "title": title("loss after the step", 14), "range": [lowest - room, highest + room],
            "exponentformat": "power",
        },
        "shapes": [
            {
                "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": before, "y1": before,
                "line": {"dash": "dot", "color": "#7a8494"},
            }
        ],
    }  # fmt: skip
    return go.Figure({"data": lines, "layout": layout}, skip_invalid=False)
