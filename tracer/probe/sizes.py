"""At which sizes a module is run to solve its dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

SIZES = (
    (9, 12, 11, 14),
    (24, 17, 25, 19),
    (31, 48, 37, 33),
    (36, 35, 29, 41),
    (13, 16, 10, 21),
    (47, 43, 61, 40),
    (53, 59, 49, 44),
    (8, 20, 18, 23),
)
"""By symbol, the sizes of three runs that solve and of one that is to be predicted. All sizes of a run differ, and the
runs leave several remainders of every stride up to 8; a test looks that no two expressions agree in them."""

TRIES = 12
"""How many ways to choose sizes are tried where a module does not run at the first."""


def probes(sizes: dict[str, int]) -> Iterator[list[dict[str, int]]]:
    """Sizes of four runs each, in the order in which they are to be tried: a module may not take any size.

    The first are those of `SIZES`; then some symbols, or all, stay below their size in the run (a table of positions
    has an end), or are multiples (what is halved five times has to be one of 32).
    """
    ways = sorted(product((_any, _multiples, _below), repeat=len(sizes)), key=lambda way: sum(map(ORDER.index, way)))
    for way in ways[:TRIES]:
        columns = [choose(size, i) for i, (choose, size) in enumerate(zip(way, sizes.values(), strict=True))]
        yield [dict(zip(sizes, row, strict=True)) for row in zip(*columns, strict=True)]


def _any(size: int, position: int) -> tuple[int, ...]:
    turn, row = divmod(position, len(SIZES))
    return tuple(value + turn for value in SIZES[row])


def _below(size: int, position: int) -> tuple[int, ...]:
    values = [size - 1, size // 2, size - 2, size // 2 + 1, size // 3]
    turned = values[position % 2 :] + values[: position % 2]
    return tuple(max(1, value) for value in turned[:4])


def _multiples(size: int, position: int) -> tuple[int, ...]:
    unit = size & -size
    times = [k for k in (2, 3, 5, 4, 7, 6, 9) if unit * k != size]
    turned = times[position % 3 :] + times[: position % 3]
    return tuple(unit * k for k in turned[:4])


ORDER = (_any, _below, _multiples)
