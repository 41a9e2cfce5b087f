"""Shared parts of plotly layouts.

A figure is built at once, from whole dictionaries: every update of an existing one goes through all of plotly's checks
again, and a few of them take twenty times as long as building it. A server draws several for each page of each visitor.
"""

TRANSPARENT_BACKGROUND = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)"}
"""The page shows through."""
PLAIN_AXIS = {"showgrid": False, "zeroline": False}
"""An axis without lines."""
CURVES = {
    **TRANSPARENT_BACKGROUND,
    "margin": {"l": 75, "r": 10, "t": 10, "b": 50},
    "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
}
"""The layout of a chart of curves: room for the names of its axes, and a legend above it."""


def title(text: str, size: int = 16) -> dict:
    """Return the title of an axis."""
    return {"text": text, "font": {"size": size}}


def heading(text: str, x: float, y: float, size: int = 16, **more) -> dict:
    """Return the heading of one of several plots: centred at `x` on the upper edge `y`, in shares of the figure."""
    place = {"x": x, "xanchor": "center", "xref": "paper", "y": y, "yanchor": "bottom", "yref": "paper"}
    return {"text": text, "showarrow": False, "font": {"size": size}, **place, **more}


def bands(count: int, gap: float, shares: list[float] | None = None) -> list[list[float]]:
    """Return the ends of `count` plots side by side, 0 to 1, with a gap between, as wide as `shares` or all alike."""
    shares = shares or [1.0] * count
    room, ends, start = (1 - gap * (count - 1)) / sum(shares), [], 0.0
    for share in shares:
        ends.append([start, start + share * room])
        start += share * room + gap
    return ends
