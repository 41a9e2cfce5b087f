"""The answer: the most probable classes as horizontal bars."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from tracer.figures.colours import OTHER, stage_colour
from tracer.figures.layout import CLEAR

SMALL = 0.05
"""Probabilities below this are no bar on an axis of 0 to 100 %."""
TOP = 5
"""Bars that are drawn, of however many classes."""


def bars(classes: Sequence[str], probabilities: Sequence[float], top: int = TOP, axis: str = "class") -> go.Figure:
    """The `top` classes with their probabilities, the most probable first; the first bar has the head's colour.

    The axis goes to 100 %, unless no bar would be seen on it: then to the largest. `axis` says what a bar is.
    """
    ranked = ranking(classes, probabilities)[:top]
    names, shares = [name for name, _ in ranked], [share for _, share in ranked]
    bar = {
        "type": "bar",
        "x": shares,
        "y": names,
        "orientation": "h",
        "text": [percent(share) for share in shares],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": [stage_colour("head")] + [OTHER] * (len(ranked) - 1), "cornerradius": 3},
        "hovertemplate": "%{y}: %{x:.4f}<extra></extra>",
    }
    largest = max(shares, default=0)
    if largest < SMALL:
        ticks = {"range": [0, 1.25 * (largest or SMALL)], "nticks": 4, "tickformat": ".2~%"}
    else:
        ticks = {"range": [0, 1.25], "tickvals": [0, 0.25, 0.5, 0.75, 1], "tickformat": ".0%"}
    return go.Figure(
        bar,
        {
            "xaxis": {"title": {"text": "probability"}, "tickfont": {"size": 14}, **ticks},
            "yaxis": {
                "title": {"text": axis},
                "tickfont": {"size": 16},
                "autorange": "reversed",
                "ticklabelstandoff": 6,
            },
            "height": 60 + 38 * len(ranked),
            "bargap": 0.35,
            "font": {"size": 16},
            "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
            **CLEAR,
        },
    )


def answer(result: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[float]] | None:
    """(classes, probabilities) of a run's result, or None where it has none, such as after a model of text."""
    names, shares = result.get("classes"), result.get("probabilities")
    known = isinstance(names, Sequence) and isinstance(shares, Sequence) and names and len(names) == len(shares)
    return (names, shares) if known else None


def ranking(classes: Sequence[str], probabilities: Sequence[float]) -> list[tuple[str, float]]:
    """(class, probability), the most probable first; equal ones in the model's order."""
    pairs = zip(classes, map(float, probabilities), strict=True)
    return sorted(pairs, key=lambda pair: -pair[1])


def percent(share: float) -> str:
    """A probability in per cent with what digits it needs: `97.3 %`, `0.04 %`, `< 0.01 %`, `> 99.9 %`."""
    if 0 < share < 0.0001:
        return "< 0.01 %"
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    return f"{100 * share:.{1 if share >= 0.01 or share == 0 else 2}f} %"


def describe(classes: Sequence[str], probabilities: Sequence[float], top: int = TOP) -> str:
    """The text alternative of the bars."""
    return "Most probable classes: " + ", ".join(f"{n} {percent(p)}" for n, p in ranking(classes, probabilities)[:top])


def drawn(probabilities: Sequence[float], what: str, count: int | None, top: int = TOP) -> str:
    """What the bars show; where they leave some out, how many of how many are there and what they sum to.

    `what` names the classes in the plural; `count` is how many the model knows, where the run says so.
    """
    shares = sorted(map(float, probabilities), reverse=True)[:top]
    if count is not None and count <= len(shares):
        return "Softmax of the logits."
    known = "" if count is None else f"of {count:,} "
    return f"Softmax of the logits; the {len(shares)} likeliest {known}{what}, together {percent(sum(shares))}."
