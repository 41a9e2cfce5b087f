"""Horizontal bars in HTML: a row has a name, one or several coloured parts, and its number behind their end."""

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

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


def round_ticks(largest: float, most: int = 4) -> Iterator[float]:
    """Yield round numbers from 0 until one reaches `largest`.

    There are at most `most` steps, each 1, 2 or 5 times a power of ten.
    """
    unit = 10.0 ** math.floor(math.log10(largest)) / 10 if largest > 0 else 0.2
    step = next(times * unit for times in (1, 2, 5, 10, 20, 50, 100) if times * unit * most >= largest)
    return (number * step for number in range(max(1, math.ceil(largest / step)) + 1))
