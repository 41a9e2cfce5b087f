"""Charts of the effect of positions on scores: a line for each head over the distance, and the changed outputs."""

import json
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from tracer.figures.palette import SEQUENTIAL, STAGES, table
from tracer.figures.svg_layout import TRANSPARENT_BACKGROUND, title
from tracer.figures.tensors.heatmap import pack_cells


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
    layout = {
        **TRANSPARENT_BACKGROUND,
        "height": 340,
        "margin": {"l": 60, "r": 10, "t": 10, "b": 50},
        "xaxis": {"title": title("i − j, from key to query", 14), "zeroline": True},
        "yaxis": {"title": title("score, same token everywhere", 14)},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "entrywidth": 64},
    }
    return go.Figure({"data": band + lines, "layout": layout}, skip_invalid=False)


def likeness(rows: int, columns: int, cosines: np.ndarray) -> bytes:
    """Return the cosines `[N, N]` between the positions of patches as bytes, for drawing in the browser.

    The bytes are the length of the header in four bytes, little end first, the JSON header, a colour scale of 256 RGB
    triples, then the cells.
    """
    facts = {"rows": rows, "columns": columns, "shape": cosines.shape, "low": float(cosines.min())}
    facts["start"] = rows // 2 * columns + columns // 2
    facts, cells = pack_cells(facts, cosines)
    text = json.dumps(facts).encode()
    text += b" " * (-len(text) % 4)
    return b"".join((len(text).to_bytes(4, "little"), text, table(SEQUENTIAL), cells))
