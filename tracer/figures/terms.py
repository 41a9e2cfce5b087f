"""The terms of a sum of matrices, as small maps on one scale, with their sum and what ran beside it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tracer.figures.colours import DIVERGING
from tracer.figures.layout import CLEAR, PLAIN, bands, heading
from tracer.figures.tensors import as_array

SUM, RAN = "their sum", "the scores that ran"


def difference(terms: Mapping[str, Any], scores) -> float:
    """max|sum of the terms - scores| / max|scores|, over the scores that a mask left finite."""
    ran, total = as_array(scores), sum(map(as_array, terms.values()))
    seen = np.isfinite(ran)
    return float(np.abs(total - ran)[seen].max() / np.abs(ran[seen]).max())


def maps(terms: Mapping[str, Any], scores) -> go.Figure:
    """Two maps a row, `[S_q, S_k]` each: the terms by their names, their sum, the scores; one scale centred on 0.

    Scores that a mask hid stay empty.
    """
    panels: dict[str, Any] = {name: as_array(term) for name, term in terms.items()}
    panels |= {SUM: sum(panels.values()), RAN: as_array(scores)}
    panels = {name: np.where(np.isfinite(values), values, np.nan) for name, values in panels.items()}
    edge = max(float(np.nanmax(np.abs(values))) for values in panels.values())
    rows = -(-len(panels) // 2)
    across, down = bands(2, 0.06), bands(rows, 0.07)[::-1]
    traces, layout, names = [], {}, []
    for index, (name, values) in enumerate(panels.items()):
        row, column, number = index // 2, index % 2, str(index + 1) if index else ""
        low, left = index >= len(panels) - 2, column == 0
        hover = f"{name}, query %{{y}}, key %{{x}}: %{{z:.3g}}<extra></extra>"
        place = {"xaxis": f"x{number}", "yaxis": f"y{number}"}
        traces.append(go.Heatmap(z=values, coloraxis="coloraxis", hovertemplate=hover, **place))
        below = {"title": {"text": "key token"}} if low else {"matches": f"x{2 * rows - 1 + column}"}
        beside = {"title": {"text": "query token"}} if left else {"matches": f"y{index if row else ''}"}
        layout[f"xaxis{number}"] = {
            "anchor": f"y{number}",
            "domain": across[column],
            "showticklabels": low,
            **PLAIN,
            **below,
        }
        layout[f"yaxis{number}"] = {
            "anchor": f"x{number}",
            "domain": down[row],
            "showticklabels": left,
            "autorange": "reversed",
            **PLAIN,
            **beside,
        }
        names.append(heading(name, sum(across[column]) / 2, down[row][1], 15))
    bar = {"orientation": "h", "y": -0.1, "yanchor": "top", "title": {"text": "score", "side": "bottom"}}
    bar |= {"thickness": 12, "outlinewidth": 0, "tickfont": {"size": 14}}
    return go.Figure(
        traces,
        {
            **layout,
            "annotations": names,
            "height": 240 * rows + 60,
            "coloraxis": {"colorscale": DIVERGING, "cmin": -edge, "cmax": edge, "colorbar": bar},
            "font": {"size": 15},
            "margin": {"l": 8, "r": 8, "t": 32, "b": 8},
            **CLEAR,
        },
    )
