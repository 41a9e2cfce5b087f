"""What all pictures share: colours, bars, panels, and the positions of boxes."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from plotly import colors

from tracer.record import AttentionRecord, Trace
from tracer.utils.text import percent

# Colours with a meaning: one per stage of the forward pass, and the scales of heatmaps.
#
# Stage colours have a contrast of at least 3 : 1 on the light and on the dark page, so that one value serves both.
# Scales are perceptually uniform (van der Walt and Smith 2015; Nuñez et al. 2018; Thyng et al. 2016).

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


SCALES: dict[str, str | list[list[float | str]]] = {
    "sequential": SEQUENTIAL,
    "diverging": DIVERGING_SCALE,
    "attention": ATTENTION,
}
"""Colour scales that the browser draws matrices in, by name."""


def tables(names: Iterable[str] = SCALES, steps: int = 256) -> dict[str, bytes]:
    """Return the colour scales of these names, those of no scale left out."""
    return {name: table(SCALES[name], steps) for name in sorted({*names} & SCALES.keys())}


def table(scale: str | list[list[float | str]] = SEQUENTIAL, steps: int = 256) -> bytes:
    """Return a colour scale as `steps` RGB triples, for drawing in the browser."""
    return _sample(scale if isinstance(scale, str) else tuple(map(tuple, scale)), steps)


@cache
def _sample(scale: str | tuple[tuple[float | str, ...], ...], steps: int) -> bytes:
    shares = [index / (steps - 1) for index in range(steps)]
    stops = scale if isinstance(scale, str) else [list(stop) for stop in scale]
    samples = colors.sample_colorscale(stops, shares, colortype="tuple")
    return bytes(round(255 * channel) for colour in samples for channel in colour)


# Limits on what a page computes and sends for one picture; a run beyond them is shown in part.
#
# All that one page sends stays below `PAGE`, so each picture has a share of it. The rest is in the file and on the
# command line, and the page says so.

PAGE = 4_000_000
"""Bytes that one page sends at most."""
CELLS = 1 << 24
"""Attention weights that are computed at once, over all heads and inputs of the batch: 64 MB."""
SIDE = 1400
"""Tokens of a mask that is drawn cell by cell, one byte each."""
MAX_NAMED_CELLS = 10_000
"""Cells of a mask that each show the names of their tokens."""
ROWS = 2000
"""Rows of a table, or choices of a list."""
LINES = 2000
"""Lines between the steps of a pipeline."""
VALUES = 1 << 23
"""Values of a matrix that is drawn."""


def can_draw(trace: Trace, record: AttentionRecord) -> bool:
    """Return whether all weights of one attention can be computed and its mask drawn."""
    batch = trace.values[record.q].shape[:-2].numel() if record.q in trace.values else record.heads
    cells = record.queries * record.keys
    return max(record.queries, record.keys) <= SIDE and max(batch, record.heads) * cells <= CELLS


# Horizontal bars in HTML: a row has a name, one or several coloured parts, and its number behind their end.

MAX_SPACED_ROWS = 12
"""Number of rows from which on they are closer together."""
LONG_NUMBER = 9
"""Letters of a number from which on it is a sentence, which needs more room behind its bar, and may break."""


class BarPart(NamedTuple):
    """A part of a bar: its length on the axis, its colour, and its text under the pointer."""

    size: float
    colour: str
    tooltip: str


class Bar(NamedTuple):
    """A bar: its name, its parts from left to right, and the number behind them."""

    name: str
    parts: Sequence[BarPart]
    number: str


def bars(
    rows: Sequence[Bar], ticks: Mapping[float, str], axes: tuple[str, str], caption: str, figure: str, keys=()
) -> str:
    """Return rows over an axis that ends at the last of `ticks`, {position: label}, as HTML.

    `axes` names a bar and the counted quantity, `caption` is the alternative text, `figure` the name under which the
    drawing is downloaded; `keys` are pairs (colour, meaning), above the bars.
    """
    end = max(ticks) or 1
    small = "".join(
        f'<small style="left:{100 * at / end:g}%">{html.escape(text)}</small>' for at, text in ticks.items()
    )
    looks = (" many" if len(rows) > MAX_SPACED_ROWS else "") + (
        " wordy" if any(len(row.number) > LONG_NUMBER for row in rows) else ""
    )
    return (
        legend(keys) + f'<div class="bars{looks}" role="img" '
        f'aria-label="{html.escape(caption)}" '
        f'data-figure="{html.escape(figure)}"><small>{html.escape(axes[0])}</small><small>{html.escape(axes[1])}</small>'
        + "".join(_row(row, end) for row in rows)
        + f"<div>{small}</div></div>"
    )


def legend(keys: Iterable[tuple[str, str]]) -> str:
    """Return the legend of pairs (colour, name) as HTML, or "" if there are none."""
    rows = "".join(f'<li><i style="background:{colour}"></i>{html.escape(name)}</li>' for colour, name in keys)
    return rows and f'<ul class="keys">{rows}</ul>'


def _row(row: Bar, end: float) -> str:
    bar = "".join(_part(part, end) for part in row.parts if part.size or len(row.parts) == 1)
    return f"<b>{html.escape(row.name)}</b><span>{bar}<em>{html.escape(row.number)}</em></span>"


def _part(part: BarPart, end: float) -> str:
    width = f"width:{100 * part.size / end:.2f}%"
    return f'<i title="{html.escape(part.tooltip)}" style="{width};background:{part.colour}"></i>'


def round_ticks(largest: float) -> Iterator[float]:
    """Yield round numbers from 0 until one reaches `largest`.

    There are at most four steps, each 1, 2 or 5 times a power of ten.
    """
    unit = 10.0 ** math.floor(math.log10(largest)) / 10 if largest > 0 else 0.2
    step = next(times * unit for times in (1, 2, 5, 10, 20, 50, 100) if times * unit * 4 >= largest)
    return (number * step for number in range(max(1, math.ceil(largest / step)) + 1))


# Most probable classes as horizontal bars, in HTML.

MIN_BAR = 0.05
"""Probabilities below this are not drawn as a bar on an axis of 0 to 100 %."""
TOP = 5
"""Bars that are drawn, of however many classes."""
MAX_WHOLE = 10
"""Classes that are all drawn before and after a change."""


def class_bars(classes: Sequence[str], probabilities: Sequence[float], top: int = TOP, axis: str = "class") -> str:
    """Return the `top` classes with their probabilities, the most probable first, as bars in HTML.

    The first bar has the head's colour. The axis goes to 100 %, unless no bar could be seen on it: then little further
    than the largest. `axis` names a bar.
    """
    ranked = ranking(classes, probabilities)[:top]
    end = scale_end(max((share for _, share in ranked), default=0))
    count = 4 if end == 1 else 2
    rows = [
        Bar(
            name,
            [BarPart(share, OTHER_COLOR if place else stage_colour("head"), f"{name}: {share:.4f}")],
            percent(share),
        )
        for place, (name, share) in enumerate(ranked)
    ]
    ticks = {at: _tick(at) for at in (end * step / count for step in range(count + 1))}
    caption = describe(classes, probabilities, top)
    return bars(rows, ticks, (axis, "probability"), caption, f"The probability of each {axis}")


def comparison(
    before: tuple[Sequence[str], Sequence[float]],
    after: tuple[Sequence[str], Sequence[float]],
    axis: str,
    top: int = TOP,
    value: str = "probability",
) -> str:
    """Return the `top` likeliest classes of two results, or all of few, as pairs of bars in HTML, before and after a
    change; `value` says what the numbers are.

    Each bar after it has an arrow with the change in percentage points. A class that one of the results does not name
    has no bar there.
    """
    shares = [dict(zip(names, map(float, each), strict=True)) for names, each in (before, after)]
    top = MAX_WHOLE if axis == "class" and max(map(len, shares)) <= MAX_WHOLE else top
    ranked = [name for pair in (after, before) for name, _ in ranking(*pair)[:top]]
    names = list(dict.fromkeys(ranked))[: top + 1]
    end = scale_end(max((each.get(name, 0) for each in shares for name in names), default=0))
    rows = []
    for name in names:
        old, new = (each.get(name) for each in shares)
        number = "not among the likeliest" if new is None else f"{percent(new)} {arrow(old, new)}".strip()
        tooltip = f"{name}: {old or 0:.4f} before, {new or 0:.4f} after"
        rows += [
            Bar(name, [BarPart(old or 0, OTHER_COLOR, tooltip)], "" if old is None else percent(old)),
            Bar("", [BarPart(new or 0, stage_colour("head"), tooltip)], number),
        ]
    ticks = {at: _tick(at) for at in (end * step / 4 for step in range(5))}
    tooltip = "Before and after: " + "; ".join(_pair_text(name, *shares) for name in names)
    keys = ((OTHER_COLOR, "before"), (stage_colour("head"), "after"))
    figure = f"The {value} of each {axis}, before and after"
    return bars(rows, ticks, (axis, value), tooltip, figure, keys)


def _pair_text(name: str, before: Mapping[str, float], after: Mapping[str, float]) -> str:
    old, new = (percent(each[name]) if name in each else "not among the likeliest" for each in (before, after))
    return f"{name} {old}, then {new}"


def arrow(before: float | None, after: float) -> str:
    """Return the change of a probability in percentage points, with an arrow up or down; "" if it is unknown.

    Words say that both are written alike.
    """
    if before is None:
        return ""
    change_in_points = points(before, after)
    if percent(before) == percent(after):
        return "hardly changed" if after != before else "unchanged"
    sign = "\N{UPWARDS ARROW}" if after > before else "\N{DOWNWARDS ARROW}"
    size = abs(change_in_points)
    change = f"{size:.1f}" if size >= 0.05 else f"{size:.2f}" if size >= 0.01 else "<\N{NO-BREAK SPACE}0.1"
    return f"{sign}\N{NO-BREAK SPACE}{change}"


def points(before: float, after: float) -> float:
    """Return the change of a probability in percentage points: the difference of both as `percent` prints them, so that
    the displayed numbers add up."""
    first, second = (_printed_percent(share) for share in (before, after))
    return 100 * (after - before) if first is None or second is None else round(second - first, 2)


def _printed_percent(share: float) -> float | None:
    """Return the number that `percent` prints; None for a bound, as in `> 99.9 %`."""
    number = percent(share).split("\N{NO-BREAK SPACE}")[0]
    return None if number in "<>" else float(number)


def scale_end(largest: float) -> float:
    """Return the end of the bars' axis: 1, or a round number from the largest up if that is small."""
    if largest >= MIN_BAR or largest <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(largest))
    return next(step * unit for step in (1, 2, 4, 6, 8, 10) if step * unit >= largest)


def _tick(share: float) -> str:
    return f"{100 * share:.3g}\N{NO-BREAK SPACE}%"


def answer(result: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[float]] | None:
    """Return (classes, probabilities) of a run's result, or None if it has none, such as that of a text model."""
    names, shares = result.get("classes"), result.get("probabilities")
    if isinstance(names, Sequence) and isinstance(shares, Sequence) and names and len(names) == len(shares):
        return names, shares
    return None


def ranking(classes: Sequence[str], probabilities: Sequence[float]) -> list[tuple[str, float]]:
    """Return (class, probability), the most probable first; equal ones in the model's order."""
    pairs = zip(classes, map(float, probabilities), strict=True)
    return sorted(pairs, key=lambda pair: -pair[1])


def describe(classes: Sequence[str], probabilities: Sequence[float], top: int = TOP) -> str:
    """Return the text alternative of the bars."""
    return "Most probable: " + ", ".join(f"{n} {percent(p)}" for n, p in ranking(classes, probabilities)[:top])


def caption(probabilities: Sequence[float], what: str, count: int | None, top: int | None = TOP) -> str:
    """Return a sentence on the bars; if some classes are left out, with their number and the sum of the bars.

    `what` names the classes in the plural; `count` is the number of classes that the model knows, if the run says so.
    Without `top`, the sentence does not say how many bars there are.
    """
    if top is None:
        return f"The bars are the softmax of the logits{'' if count is None else f' over {count:,} {what}'}."
    shares = sorted(map(float, probabilities), reverse=True)[:top]
    if count is not None and count <= len(shares):
        return "The bars are the softmax of the logits."
    known = "" if count is None else f"of {count:,} "
    bars = f"the {len(shares)} likeliest {known}{what}, {percent(sum(shares))} in all"
    return f"The bars are the softmax of the logits: {bars}."
