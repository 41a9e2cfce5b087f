"""Sizes of the probes of a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tracer.shapes import Vocabulary

SIZES = (
    (15, 20, 8, 25, 9),
    (20, 10, 33, 27, 18),
    (17, 47, 61, 24, 43),
    (19, 45, 36, 26, 54),
    (37, 44, 51, 9, 25),
    (50, 21, 16, 35, 60),
    (11, 37, 30, 16, 47),
    (40, 59, 15, 45, 8),
)
"""By symbol, the sizes of four probes that solve and of one that is predicted. Divided by 2, 3 and 4 they leave 0, 1
and one less; a test checks that no two expressions agree in them."""

SMALL_SIZES = (2, 3, 4, 5)
"""By symbol, a size below those of all probes: what changes at a threshold in between shows there."""

LARGE_SIZES = (67, 71, 73, 79)
"""By symbol, a size above those of all probes; two are as large in one run, and a batch is of two."""

HEAVY_SIZES = ((3, 5, 2, 7, 4), (5, 2, 9, 4, 7), (7, 4, 11, 6, 3), (4, 7, 3, 10, 9), (9, 11, 6, 3, 5))
"""The same for modules whose probes are slow and need real values."""

Choice = Callable[[int, int], tuple[int, ...]]


def choose_sizes(sizes: dict[str, int], ways: dict[str, Choice] | None = None) -> list[dict[str, int]]:
    """Return the sizes of all probes, each symbol's chosen in its own way, by default from `SIZES`."""
    columns = [((ways or {}).get(name, _any))(size, i) for i, (name, size) in enumerate(sizes.items())]
    return [dict(zip(sizes, row, strict=True)) for row in zip(*columns, strict=True)]


def candidate_probes(
    vocabulary: Vocabulary, sizes: dict[str, int], heavy: bool = False
) -> Iterator[tuple[Vocabulary, list[dict[str, int]]]]:
    """Yield ways to choose sizes, in order of preference: a module may not run at all sizes.

    After `SIZES`, each symbol has the first of three kinds at which the module runs while all other sizes stay: any;
    near its size, since a size that is halved five times can't be small, and a table of positions has an end; or
    multiples of its largest power of two, of 3 or of 5, since patches have to fit. A size at which it runs at none of
    these stays, and is not a symbol. A heavy module runs at `HEAVY_SIZES` only.
    """
    if heavy:
        yield vocabulary, choose_sizes(sizes, dict.fromkeys(sizes, _few))
        return
    yield replace(vocabulary, beyond=(small_sizes(sizes), (large_sizes(sizes),))), choose_sizes(sizes)
    ways = {name: _first_that_runs(vocabulary, sizes, name, i) for i, name in enumerate(sizes)}
    if set(ways.values()) == {_any}:
        return
    left = [name for name, choose in ways.items() if choose is _same]
    if len(left) < len(ways):
        names = tuple(name for name in vocabulary.names if name not in left)
        note = f"no symbols for {', '.join(left)}: the model did not run at the other sizes tried" if left else ""
        least = {name: min(choose(size, 0)) for (name, size), choose in zip(sizes.items(), ways.values(), strict=True)}
        free = [name for name, choose in ways.items() if choose is _any]
        small = tuple({**least, **{name: at[name] for name in free}} for at in small_sizes(sizes)[: len(free)])
        yield replace(vocabulary, names=names, note=note, beyond=(small,)), choose_sizes(sizes, ways)


def small_sizes(sizes: dict[str, int]) -> tuple[dict[str, int], ...]:
    """Return sizes below those of `SIZES`, in order of preference: the smallest, and half of those of the run."""
    least = {name: SMALL_SIZES[i % len(SMALL_SIZES)] for i, name in enumerate(sizes)}
    return least, {name: max(size // 2, least[name]) for name, size in sizes.items()}


def large_sizes(sizes: dict[str, int]) -> dict[str, int]:
    """Return sizes above those of `SIZES` and of the run, at a small batch."""
    small = small_sizes(sizes)[0] | {"B": 2}
    long = [name for name in sizes if name != "B"][-2:] or [*sizes]
    large = {name: max(LARGE_SIZES[i], sizes[name] + i + 1) for i, name in enumerate(long)}
    return {name: large.get(name, small[name]) for name in sizes}


def _first_that_runs(vocabulary: Vocabulary, sizes: dict[str, int], name: str, position: int) -> Choice:
    for choose in (_any, _near, _multiples, _larger_multiples, _threes, _fives):
        column = choose(sizes[name], position)
        try:
            for size in sorted({*column}, key=lambda size: (size not in (min(column), max(column)), size)):
                vocabulary.probe({**sizes, name: size}, primitives=False)
        except Exception:  # a size that the module does not take: others it may
            continue
        return choose
    return _same


def _same(size: int, position: int) -> tuple[int, ...]:
    return (size,) * 5


def _any(size: int, position: int) -> tuple[int, ...]:
    turn, row = divmod(position, len(SIZES))
    return tuple(value + turn for value in SIZES[row])


def _few(size: int, position: int) -> tuple[int, ...]:
    turn, row = divmod(position, len(HEAVY_SIZES))
    return tuple(value + turn for value in HEAVY_SIZES[row])


def _near(size: int, position: int) -> tuple[int, ...]:
    low = size // 2
    values = (size - 1, low + 1, size - 2, low + low // 2, size - 3, low + 2, low)
    turn = position % 3
    return tuple(max(1, value) for value in values[turn : turn + 5])


def _multiples(size: int, position: int, most: int = 16) -> tuple[int, ...]:
    return _multiples_of(min(size & -size, most), size, position)


def _threes(size: int, position: int) -> tuple[int, ...]:
    return _multiples_of(3, size, position)


def _fives(size: int, position: int) -> tuple[int, ...]:
    return _multiples_of(5, size, position)


def _multiples_of(unit: int, size: int, position: int) -> tuple[int, ...]:
    """Return multiples of a unit, never the unit itself, where one part would run other ops."""
    times = [k for k in (2, 3, 5, 4, 7, 6, 9, 8) if unit * k != size]
    turn = position % 3
    return tuple(unit * k for k in times[turn : turn + 5])


def _larger_multiples(size: int, position: int) -> tuple[int, ...]:
    return _multiples(size, position, most=64)
