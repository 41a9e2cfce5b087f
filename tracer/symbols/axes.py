"""Axes as their factors, outer to inner: what a reshape, a permutation or a product does to them.

A layout splits axes to factors, permutes and repeats these, and merges them to the axes of its result (Rogozhnikov
2022). A pattern says it in the words of einops, `... s (h d) -> ... h s d`. With several operands it also says which
axes of a product are summed over: those that the result lacks, as `k` in `... i k, ... k j -> ... i j`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from math import prod
from operator import mul
from typing import Any, NamedTuple

Axis = range | tuple[int, ...]
"""Places along one axis: a range, `range(n)` for all of it, or ascending numbers that are none."""

Side = tuple[tuple[Any, ...], ...]
"""The axes of one tensor of a pattern, each as the names of its factors, outer to inner."""


class AxisFactor(NamedTuple):
    """A factor of an axis: its size, and the product of the factors inside of it; None for the outermost factor, whose
    steps are as long as the axis allows."""

    axis: int
    size: int
    inner: int | None


# Reshapes: the factors that two shapes share. An axis ends at a boundary, the product of the lengths up to it.


def first_crossing(before: Sequence[Any], after: Sequence[Any], divides: Callable[[Any, Any], bool]) -> int | None:
    """Return the place of the first of the boundaries `after` that lies inside an axis of a tensor with the boundaries
    `before`, and does not split it evenly; None if there is none. `divides(part, whole)` says whether a boundary is a
    multiple of another."""
    axes = [*pairwise([1, *before])]
    for place, boundary in enumerate(after):
        if boundary not in (1, *before) and not any(
            divides(start, boundary) and divides(boundary, end) for start, end in axes
        ):
            return place
    return None


@lru_cache(maxsize=4096)
def common_factors(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[tuple[int, ...], Side, Side] | None:
    """Return the factors of a reshape from one shape to another of as many elements: their sizes, none of them 1, and
    those of the axes of both by their number; None if the axes cut across each other."""
    ends = [*accumulate(before, mul)], [*accumulate(after, mul)]
    if prod(before) != prod(after) or not prod(before):
        return None
    if first_crossing(*ends, divides=lambda part, whole: whole % part == 0) is not None:
        return None
    cuts = sorted({1, *ends[0], *ends[1]})
    left, right = (
        tuple(tuple(range(cuts.index(start), cuts.index(end))) for start, end in pairwise((1, *side))) for side in ends
    )
    return tuple(end // start for start, end in pairwise(cuts)), left, right


# Patterns.


@lru_cache(maxsize=4096)
def parse_pattern(pattern: str, ranks: tuple[int, ...]) -> tuple[tuple[Side, ...], Side]:
    """Return the axes of the operands and of the result of a pattern, for tensors of these ranks, the result's last.

    `...` are axes that are aligned at the last of them, `*` are axes that are read as a whole. A tensor with fewer axes
    than are named has the last of these. The last operand that is named stands for all that follow.
    """
    left, _, right = pattern.partition("->")
    operands, (*inputs, output) = left.split(","), ranks
    named = [operands[min(number, len(operands) - 1)] for number in range(len(inputs))]
    return tuple(map(_parse_side, named, inputs)), _parse_side(right, output)


def _parse_side(text: str, rank: int) -> Side:
    tokens, axes = re.findall(r"\([^)]*\)|\S+", text), []
    for token in tokens:
        if token in ("...", "*"):
            axes += [(token + str(place),) for place in range(rank - len(tokens) + 1, 0, -1)]
        else:
            axes.append(tuple(token.strip("()").split()))
    return tuple(axes[max(len(axes) - rank, 0) :])


def parse_einsum(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the letters of the axes of each operand and of the result of an Einstein sum over operands of these ranks;
    axes of an ellipsis are digits."""
    left, arrow, output = equation.replace(" ", "").partition("->")
    operands = left.split(",")
    counts = [rank - len(text) + 3 if "..." in text else 0 for text, rank in zip(operands, ranks, strict=True)]
    dots = "0123456789"[: max(counts)]
    operands = [text.replace("...", dots[len(dots) - n :]) for text, n in zip(operands, counts, strict=True)]
    if not arrow:
        once = Counter("".join(operands))
        output = "..." + "".join(sorted(letter for letter, n in once.items() if n == 1 and letter.isalpha()))
    return operands, output.replace("...", dots)


def name_axes(rank: int, axes: Iterable[int] = (), name: str = "") -> str:
    """Return the axes of a tensor for a pattern: `a0 a1 …`, and some of them by another name."""
    named = dict.fromkeys(axes, name)
    return " ".join(named.get(axis, f"a{axis}") for axis in range(rank))


def factor_sizes(sides: Iterable[Side], shapes: Iterable[Sequence[int]], sizes: Mapping[Any, int]) -> dict[Any, int]:
    """Return the sizes of the factors of operands, from those that their shapes do not determine; an axis of size 1 is
    broadcast."""
    sizes = dict(sizes)
    for side, shape in zip(sides, shapes, strict=True):
        for factors, n in zip(side, shape, strict=True):
            unknown = [factor for factor in factors if factor not in sizes]
            if len(factors) == 1 and sizes.get(factors[0], 1) == 1:
                sizes[factors[0]] = n
            elif len(unknown) == 1:
                sizes[unknown[0]] = n // prod(sizes[factor] for factor in factors if factor != unknown[0])
    return sizes


# Places along axes.


def normalise_axis(places: Iterable[int]) -> Axis:
    """Return indices along an axis as a range where they are one, else ascending."""
    if isinstance(places, range) and places.step > 0:
        return places
    ordered = sorted(set(places))
    step = ordered[1] - ordered[0] if len(ordered) > 1 else 1
    whole = ordered and len(ordered) == (ordered[-1] - ordered[0]) // step + 1
    whole = whole and all(b - a == step for a, b in pairwise(ordered))
    return range(ordered[0], ordered[-1] + 1, step) if whole else tuple(ordered)


def align_axes(axes: Sequence[Axis], shape: Sequence[int]) -> list[Axis]:
    """Return the indices along the axes of an operand of that shape, from those of the shape that it is broadcast
    to."""
    axes = axes[len(axes) - len(shape) :]
    return [range(1) if n == 1 else axis for axis, n in zip(axes, shape, strict=True)]


def split_axis(axis: Axis, counts: Sequence[int]) -> list[Axis]:
    """Split indices along an axis to those of its factors, outer to inner."""
    factors: list[Axis] = []
    inner, whole = prod(counts), len(axis) == prod(counts)
    for count in counts:
        inner //= count
        if whole or count == 1:
            factors.append(range(count))
        elif isinstance(axis, range) and axis.step == 1:
            first, last = axis.start // inner, axis[-1] // inner
            factors.append(
                range(count) if last - first + 1 >= count else normalise_axis(i % count for i in range(first, last + 1))
            )
        else:
            factors.append(normalise_axis(i // inner % count for i in axis))
    return factors


def merge_axes(axes: Sequence[Axis], counts: Sequence[int]) -> Axis:
    """Merge indices of several axes to those of the flattened axis, outer to inner."""
    merged: Axis = range(1)
    for axis, count in zip(axes, counts, strict=True):
        if len(axis) == count and isinstance(merged, range) and merged.step == 1:
            merged = range(merged.start * count, merged.stop * count)
        else:
            merged = normalise_axis([i * count + j for i in merged for j in axis])
    return merged


def read_axes(
    axes: Sequence[Axis],
    output: Side,
    inputs: Sequence[Side],
    shapes: Sequence[Sequence[int]],
    sizes: Mapping[Any, int],
) -> list[list[Axis]]:
    """Return the places along the axes of each operand that these places along the axes of the result depend on.

    A factor that the result lacks is read as a whole; an axis of size 1 is broadcast.
    """
    whole, known = dict(zip(output, axes, strict=True)), {}
    for factors, axis in whole.items():
        split = [axis] if len(factors) == 1 else split_axis(axis, [sizes[factor] for factor in factors])
        known |= zip(factors, split, strict=True)

    def read(factors: tuple[Any, ...], n: int) -> Axis:
        if n == 1:
            return range(1)
        if factors in whole:
            return whole[factors]
        if len(factors) == 1:
            return known.get(factors[0], range(n))
        counts = [sizes[factor] for factor in factors]
        return merge_axes([known.get(f, range(count)) for f, count in zip(factors, counts, strict=True)], counts)

    return [list(map(read, side, shape)) for side, shape in zip(inputs, shapes, strict=True)]
