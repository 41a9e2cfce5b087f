"""Parts that layouts share.

A figure is made at once, of whole dictionaries: every update of one that is there goes through all of plotly's checks
again, and a few of them take twenty times as long as making it. A server draws several for each page of each visitor.
"""

CLEAR = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)"}
"""The page shows through."""
PLAIN = {"showgrid": False, "zeroline": False}
"""An axis without lines."""


def title(text: str, size: int = 16) -> dict:
    """The title of an axis."""
    return {"text": text, "font": {"size": size}}


def heading(text: str, x: float, y: float, size: int = 16, **more) -> dict:
    """What stands above one of several plots: centred at `x` on the upper edge `y`, in shares of the figure."""
    place = {"x": x, "xanchor": "center", "xref": "paper", "y": y, "yanchor": "bottom", "yref": "paper"}
    return {"text": text, "showarrow": False, "font": {"size": size}, **place, **more}


def bands(count: int, gap: float, shares: list[float] | None = None) -> list[list[float]]:
    """The ends of `count` plots beside each other, 0 to 1, with a gap between; `shares` of the room, else alike."""
    shares = shares or [1.0] * count
    room, ends, start = (1 - gap * (count - 1)) / sum(shares), [], 0.0
    for share in shares:
        ends.append([start, start + share * room])
        start += share * room + gap
    return ends
