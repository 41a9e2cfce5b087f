"""The terms of a sum of matrices, as small maps on one scale, with their sum and what ran beside it."""

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tracer.figures.colours import DIVERGING
from tracer.figures.tensors import as_array

SUM, RAN = "their sum", "the scores that ran"


def difference(terms: Mapping[str, object], scores) -> float:
    """max|sum of the terms - scores| / max|scores|, over the scores that a mask left finite."""
    ran, total = as_array(scores), sum(map(as_array, terms.values()))
    seen = np.isfinite(ran)
    return float(np.abs(total - ran)[seen].max() / np.abs(ran[seen]).max())


def maps(terms: Mapping[str, object], scores) -> go.Figure:
    """Two maps a row, `[S_q, S_k]` each: the terms by their names, their sum, the scores; one scale centred on 0.

    Scores that a mask hid stay empty.
    """
    panels = {name: as_array(term) for name, term in terms.items()}
    panels |= {SUM: sum(panels.values()), RAN: as_array(scores)}
    panels = {name: np.where(np.isfinite(values), values, np.nan) for name, values in panels.items()}
    edge = max(float(np.nanmax(np.abs(values))) for values in panels.values())
    rows = -(-len(panels) // 2)
    figure = make_subplots(
        rows=rows,
        cols=2,
        subplot_titles=list(panels),
        shared_xaxes=True,
        shared_yaxes=True,
        horizontal_spacing=0.06,
        vertical_spacing=0.07,
    )
    for index, (name, values) in enumerate(panels.items()):
        hover = f"{name}, query %{{y}}, key %{{x}}: %{{z:.3g}}<extra></extra>"
        figure.add_heatmap(z=values, coloraxis="coloraxis", hovertemplate=hover, row=index // 2 + 1, col=index % 2 + 1)
    figure.update_xaxes(showgrid=False, zeroline=False)
    figure.update_yaxes(showgrid=False, zeroline=False, autorange="reversed")
    figure.update_xaxes(title_text="key token", row=rows)
    figure.update_yaxes(title_text="query token", col=1)
    figure.update_annotations(font_size=15)
    bar = {"orientation": "h", "y": -0.1, "yanchor": "top", "title": {"text": "score", "side": "bottom"}}
    bar |= {"thickness": 12, "outlinewidth": 0, "tickfont": {"size": 14}}
    figure.update_layout(
        height=240 * rows + 60,
        coloraxis={"colorscale": DIVERGING, "cmin": -edge, "cmax": edge, "colorbar": bar},
        font={"size": 15},
        margin={"l": 8, "r": 8, "t": 32, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    return figure
