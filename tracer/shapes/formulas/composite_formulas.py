"""Formulas beyond products of named sizes: offsets, multiples, sums, and rounded quotients.

No candidates are listed. The quotient of a dimension and a product of sizes determines which number is to be added to a
size, or multiplied by it. So any whole number is possible, and it has to fit every run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations, combinations_with_replacement
from math import gcd

STRIDES = (2, 3, 4, 5, 6, 7, 8, 12, 14, 16, 32)
"""Divisors of sizes that are tried if no op's arguments have one."""

MIN_VALUES = 3
"""Fewest different values of a size from which two numbers are determined."""

SEVERAL = 4
"""Fewest different values of a size if it is rounded, too."""

ROUNDING_FUNCTION = re.compile("floor|ceiling")

KnownFormulas = list[tuple[str, tuple[int, ...]]]
"""Sizes as (formula, values in the runs)."""


def find_composites(vector: tuple[int, ...], known: KnownFormulas) -> list[str]:
    """Return all formulas with these values that are a product of sizes times one of three forms.

    These are `m·x + c` for a product x of sizes, `⌊(a + c)/k⌋`, and `±a ± b + c` for two sizes. Those without a factor
    come first.
    """
    if min(vector) < 1:
        return []
    products = known + [
        (f"({a})*({b})", tuple(x * y for x, y in zip(first, second, strict=True)))
        for (a, first), (b, second) in combinations_with_replacement(known, 2)
    ]
    for rounds in (False, True):  # what needs no rounding is not rounded
        formulas = list(_find_unscaled(vector, known, products, rounds))
        for factor, values in products:
            if any(v % x for v, x in zip(vector, values, strict=True) if x) or 0 in values:
                continue
            rest = tuple(v // x for v, x in zip(vector, values, strict=True))
            if len(set(rest)) == 1:
                formulas.append(f"{rest[0]}*({factor})")
            else:
                formulas += [f"({factor})*({text})" for text in _find_unscaled(rest, known, products, rounds)]
        if formulas:
            return formulas
    return []


def _find_unscaled(vector, known: KnownFormulas, products: KnownFormulas, rounds: bool) -> Iterator[str]:
    """Yield formulas without a factor; with `rounds` also those that round."""
    if len(set(vector)) < MIN_VALUES:
        return
    for text, values in products:
        line = _fit_line(vector, values)
        if line is not None:
            m, c = line
            yield f"{m}*({text}) + {c}"
    yield from _find_quotients(vector, known, rounds)
    summed = (
        known
        if rounds and len(set(vector)) >= SEVERAL
        else [addend for addend in known if not ROUNDING_FUNCTION.search(addend[0])]
    )
    for (a, addend), (b, right) in combinations(summed, 2):
        for first, second in ((1, 1), (1, -1), (-1, 1)):
            left = {v - first * x - second * y for v, x, y in zip(vector, addend, right, strict=True)}
            if len(left) == 1:
                yield f"{first}*({a}) + {second}*({b}) + {left.pop()}"


def _find_quotients(vector, known: KnownFormulas, rounds: bool) -> Iterator[str]:
    """Yield quotients of a size and their multiples; rounded ones only if none is exact in every run.

    A module that takes other sizes runs at others, too.
    """
    exact = []
    for text, values in known:
        for stride in STRIDES:
            if len(set(values)) >= MIN_VALUES and all(v * stride == x for v, x in zip(vector, values, strict=True)):
                exact.append(f"({text})/{stride}")
    yield from exact
    if exact or not rounds:
        return
    common = gcd(*vector)
    for times in {1, common}:
        quotient = [v // times for v in vector]
        for text, values in known:
            if len(set(values)) < SEVERAL or len(set(quotient)) < SEVERAL:
                continue
            for stride in STRIDES:
                low = max(stride * q - x for q, x in zip(quotient, values, strict=True))
                high = min(stride * q - x for q, x in zip(quotient, values, strict=True)) + stride - 1
                yield from (f"{times}*floor((({text}) + {c})/{stride})" for c in range(low, high + 1))


def _fit_line(vector, values) -> tuple[int, int] | None:
    """Return integers m and c with vector = m·values + c; None if there are none, or too few values."""
    if len(set(values)) < MIN_VALUES:
        return None
    x, v = values[0], vector[0]
    differing = next(i for i, value in enumerate(values) if value != x)
    m, left = divmod(vector[differing] - v, values[differing] - x)
    if left or m == 0:
        return None
    c = v - m * x
    return (m, c) if all(m * x + c == v for v, x in zip(vector, values, strict=True)) else None
