"""Most probable classes as horizontal bars, in HTML."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tracer.figures.html_bars import Bar, BarPart
from tracer.figures.html_bars import bars as drawn_bars
from tracer.figures.palette import OTHER_COLOR, stage_colour

MIN_BAR = 0.05
"""Probabilities below this are not drawn as a bar on an axis of 0 to 100 %."""
TOP = 5
"""Bars that are drawn, of however many classes."""


def bars(classes: Sequence[str], probabilities: Sequence[float], top: int = TOP, axis: str = "class") -> str:
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
    return drawn_bars(rows, ticks, (axis, "probability"), caption, f"The probability of each {axis}")


def comparison(
    before: tuple[Sequence[str], Sequence[float]],
    after: tuple[Sequence[str], Sequence[float]],
    axis: str,
    top: int = TOP,
    value: str = "probability",
) -> str:
    """Return the likeliest classes of two results as pairs of bars in HTML, before and after a change; `value` says
    what the numbers are.

    Each bar after it has an arrow with the change in percentage points. A class that one of the results does not name
    has no bar there.
    """
    shares = [dict(zip(names, map(float, each), strict=True)) for names, each in (before, after)]
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
    return drawn_bars(rows, ticks, (axis, value), tooltip, figure, keys)


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


def percent(share: float) -> str:
    """Return a probability in per cent with as many digits as it needs: `97.3 %`, `0.04 %`, `< 0.01 %`, `> 99.9 %`.

    Its blanks do not break, so a sign never begins a line.
    """
    if 0 < share < 0.0001:
        return "<\N{NO-BREAK SPACE}0.01\N{NO-BREAK SPACE}%"
    if 0.9995 <= share < 1:
        return ">\N{NO-BREAK SPACE}99.9\N{NO-BREAK SPACE}%"
    return f"{100 * share:.{1 if share >= 0.01 or share == 0 else 2}f}\N{NO-BREAK SPACE}%"


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
