"""Colours with a meaning: one per stage of the forward pass, and the scales of heatmaps.

Stage colours have a contrast of at least 3 : 1 on the light and on the dark page, so that one value serves both.
Scales are perceptually uniform (van der Walt and Smith 2015; Nuñez et al. 2018; Thyng et al. 2016).
"""

from functools import cache

from plotly import colors

STAGES = {
    "patches": "#2589c7",
    "embedding": "#8467d7",
    "position": "#c9741d",
    "attention": "#d8486b",
    "mlp": "#2a9461",
    "norm": "#7a8494",
    "head": "#a3820f",
    "decoder": "#159a9c",
    "convolution": "#2589c7",
    "recurrence": "#c9741d",
    "experts": "#2a9461",
}
OTHER_COLOR = "#7a8494"
UNLISTED_COLOR = "#8f7a6a"
"""The colour of a stage that is not in the list: not that of norms."""

STREAMLIT = {  # the same stages in the colour names of Streamlit's markdown and badges
    "patches": "blue",
    "embedding": "violet",
    "position": "orange",
    "attention": "red",
    "mlp": "green",
    "norm": "gray",
    "head": "yellow",
    "decoder": "primary",
    "convolution": "blue",
    "recurrence": "orange",
    "experts": "green",
}

SEQUENTIAL = "inferno"
DIVERGING_SCALE = "balance"
AMBER = (255, 176, 0)
"""The colour of attention weights: of the largest one in a matrix, on a photo and in a text."""
ATTENTION: list[list[float | str]] = [[0.0, "rgb(12, 12, 14)"], [1.0, f"rgb{AMBER}"]]
"""Scale of attention weights."""
MASK = ("#7a8494", "#2589c7")
"""Closed and open positions of a mask."""


def stage_colour(stage: str) -> str:
    """Return the colour of a stage, or the default colour if the stage is not in the list."""
    return STAGES.get(stage, UNLISTED_COLOR)


def tables() -> bytes:
    """Return the scales "sequential", "diverging" and "attention", one after the other, as the browser reads them."""
    return table(SEQUENTIAL) + table(DIVERGING_SCALE) + table(ATTENTION)


def table(scale: str | list[list[float | str]] = SEQUENTIAL, steps: int = 256) -> bytes:
    """Return a colour scale as `steps` RGB triples, for drawing in the browser."""
    return _sample(scale if isinstance(scale, str) else tuple(map(tuple, scale)), steps)


@cache
def _sample(scale: str | tuple[tuple[float | str, ...], ...], steps: int) -> bytes:
    shares = [index / (steps - 1) for index in range(steps)]
    stops = scale if isinstance(scale, str) else [list(stop) for stop in scale]
    samples = colors.sample_colorscale(stops, shares, colortype="tuple")
    return bytes(round(255 * channel) for colour in samples for channel in colour)
