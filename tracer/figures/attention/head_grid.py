"""All heads at a glance: blocks × heads as one table of cells, coloured by a measure of each head."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tracer.figures.palette import DIVERGING_SCALE, SEQUENTIAL, table

MINUS = "\N{MINUS SIGN}"
STEPS = 256
"""Colours of a scale."""
MAX_DARK_LUMINANCE = 0.45
"""Luminance of a cell, 0 to 1, below which its number is white."""


class Measure(NamedTuple):
    """Measure of each head: its name, a table `[blocks, heads]`, and a number as text, short and in full.

    `signed` is True where 0 is the middle of the scale.
    """

    name: str
    values: np.ndarray
    short: Callable[[float], str]
    full: Callable[[float], str]
    signed: bool = False


def with_sign(value: float, digits: int = 1) -> str:
    """Return a number with its sign, `+0.4` or `−1.4`; 0 has none."""
    text = f"{abs(value):.{digits}f}"
    return text if not float(text) else f"{'+' if value > 0 else MINUS}{text}"


def grid(
    measure: Measure,
    layers: Sequence[int],
    flips: np.ndarray,
    more: Callable[[int, int], str] | None = None,
    chosen: tuple[int, int] | None = None,
) -> str:
    """Return the table as HTML: a row for each block, a button for each head, and the scale below.

    `layers` count from 0; `flips` are True where another answer becomes the most probable, and that cell is framed.
    `more(row, head)` is said behind a number. Where a (layer, head) is `chosen`, a click chooses another one, and does
    not open it in the attention map.
    """
    values, (first, last) = measure.values, ends(measure)
    heads = values.shape[1]
    head = "".join(f"<th scope=col>{number + 1}</th>" for number in range(heads))
    rows = "".join(
        f"<tr><th scope=row>{layer + 1}</th>"
        + "".join(
            _cell(
                measure,
                (first, last),
                (layer, at),
                float(values[row, at]),
                bool(flips[row, at]),
                more(row, at) if more else "",
                (layer, at) == chosen,
            )
            for at in range(heads)
        )
        + "</tr>"
        for row, layer in enumerate(layers)
    )
    stops = ", ".join(_colour(measure, share)[0] for share in np.linspace(0, 1, 9))
    bar = f"<i style='background:linear-gradient(to right, {stops})'></i>"
    scale = f"<p class=scale><span>{measure.short(first)}</span>{bar}<span>{measure.short(last)}</span></p>"
    name = html.escape(measure.name)
    return (
        f'<div class="head-grid" data-figure="All heads: {name}" style="--heads:{heads}"{" data-asks" * bool(chosen)}>'
        "<table>"
        f"<caption>{name}</caption><thead><tr><th scope=col>block</th>{head}</tr></thead><tbody>{rows}</tbody></table>"
        f"{scale}</div>"
    )


def ends(measure: Measure) -> tuple[float, float]:
    """Return the ends of the colour scale: 0 or the least value and the largest; symmetric around 0 where it is
    signed."""
    known = measure.values[np.isfinite(measure.values)]
    if measure.signed:
        most = float(np.abs(known).max(initial=0)) or 1.0
        return -most, most
    return 0.0, float(known.max(initial=0)) or 1.0


def _cell(
    measure: Measure,
    span: tuple[float, float],
    place: tuple[int, int],
    value: float,
    flips: bool,
    more: str,
    pressed: bool,
) -> str:
    if not np.isfinite(value):
        return "<td></td>"
    layer, head = place
    fill, ink = _colour(measure, (value - span[0]) / (span[1] - span[0]))
    tooltip = (
        f"Block {layer + 1}, head {head + 1}: {measure.full(value)}" + (", and another answer" if flips else "") + more
    )
    mark = " class=flips" * flips + ' aria-pressed="true"' * pressed
    return (
        f'<td><button type="button" data-layer="{layer}" data-head="{head}" title="{html.escape(tooltip)}" '
        f'aria-label="{html.escape(tooltip)}" style="background:{fill};color:{ink}"{mark}><span>{measure.short(value)}'
        "</span></button></td>"
    )


def _colour(measure: Measure, share: float) -> tuple[str, str]:
    """Return the colour of a cell and of the number in it."""
    scale = DIVERGING_SCALE if measure.signed else SEQUENTIAL
    at = 3 * round((STEPS - 1) * min(1.0, max(0.0, float(share))))
    red, green, blue = table(scale, STEPS)[at : at + 3]
    light = (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255
    return f"rgb({red}, {green}, {blue})", "#fff" if light < MAX_DARK_LUMINANCE else "#111"
