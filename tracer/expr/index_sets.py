"""Sets of cells of a tensor, axis by axis, their path through layouts, and the terms of one cell.

A set is the product of one set per axis: nothing here lists the cells of a tensor. What is no such product, such as a
union of two cells on a diagonal, or the places `{(0, 1), (1, 0)}` of a row of joined heads, is widened to the smallest
product that holds it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod
from typing import Any, NamedTuple

import torch

Axis = range | tuple[int, ...]
"""Places along one axis: a range, `range(n)` for all of it, or ascending numbers that are none."""


class Term(NamedTuple):
    """One term of a cell: the number at `index` of operand `operand`, from 0.

    `share` is what it contributes to the cell; the shares of all terms that are `counted` add up to the cell. Those of
    the other factor of a product, or of the rest of a softmax's row, are said but not counted. None: it
    contributes to the cell, but not by a single number. `factor` is share / value where the cell is proportional to it.
    """

    operand: int
    index: tuple[int, ...]  # type: ignore[assignment]
    value: float | complex
    share: float | complex | None = None
    factor: float | complex | None = None
    counted: bool = True


class TooMany(ValueError):
    """Error for more terms than are listed."""


MAX_TERMS = 2**16
"""Terms of one cell that are listed at most."""


@dataclass(frozen=True, slots=True)
class IndexSet:
    """Some cells of a tensor of this shape: those whose index along each axis is in `axes`, an `Axis` each; None for no
    cell."""

    shape: tuple[int, ...]
    axes: Any

    @classmethod
    def of(cls, shape: Sequence[int], axes: Iterable[Iterable[int] | None]) -> IndexSet:
        """Build the set from `axes`: the indices along each axis, in any order, None for all of them."""
        shape = tuple(int(n) for n in shape)
        ranges = tuple(range(n) if axis is None else normalise_axis(axis) for axis, n in zip(axes, shape, strict=True))
        return cls(shape, None if any(not len(axis) for axis in ranges) else ranges)

    @classmethod
    def all(cls, shape: Sequence[int]) -> IndexSet:
        return cls.of(shape, [None] * len(shape))

    @classmethod
    def none(cls, shape: Sequence[int]) -> IndexSet:
        return cls(tuple(int(n) for n in shape), None)

    @classmethod
    def single(cls, shape: Sequence[int], index: Sequence[int]) -> IndexSet:
        return cls.of(shape, [(i,) for i in index])

    @property
    def count(self) -> int:
        return 0 if self.axes is None else prod(map(len, self.axes))

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """Yield the indices of the cells, the last axis fastest."""
        return iter(()) if self.axes is None else product(*self.axes)

    def __contains__(self, index) -> bool:
        return self.axes is not None and all(i in axis for i, axis in zip(index, self.axes, strict=True))

    def __or__(self, cells: IndexSet) -> IndexSet:
        """Return the smallest product of index sets that contains both."""
        if self.axes is None or cells.axes is None:
            return cells if self.axes is None else self
        return IndexSet.of(self.shape, ({*a, *b} for a, b in zip(self.axes, cells.axes, strict=True)))

    def select(self, tensor) -> torch.Tensor:
        """Return the numbers of a tensor in these cells, in order, with the rank of the tensor."""
        if self.axes is None:
            return tensor.flatten()[:0]
        for axis, places in enumerate(self.axes):
            if len(places) < self.shape[axis]:
                tensor = tensor.index_select(axis, torch.tensor(list(places)))
        return tensor


def normalise_axis(places: Iterable[int]) -> Axis:
    """Return indices along an axis as a range where they are one, else ascending."""
    if isinstance(places, range) and places.step > 0:
        return places
    ordered = sorted(set(places))
    step = ordered[1] - ordered[0] if len(ordered) > 1 else 1
    whole = ordered and len(ordered) == (ordered[-1] - ordered[0]) // step + 1
    whole = whole and all(b - a == step for a, b in pairwise(ordered))
    return range(ordered[0], ordered[-1] + 1, step) if whole else tuple(ordered)


def shape_of(operand) -> tuple[int, ...]:
    """Return the shape of a tensor; a shape is returned unchanged."""
    return tuple(int(n) for n in getattr(operand, "shape", operand))


def through_broadcast(cells: IndexSet, shape: Sequence[int]) -> IndexSet:
    """Return the cells of an operand of that shape that an element-wise operation reads, aligned at the last axis."""
    return IndexSet.of(shape, align_axes(cells.axes, shape))


def align_axes(axes: Sequence[Axis], shape: Sequence[int]) -> list[Axis]:
    """Return the indices along the axes of an operand of that shape, from those of the shape that it is broadcast
    to."""
    axes = axes[len(axes) - len(shape) :]
    return [range(1) if n == 1 else axis for axis, n in zip(axes, shape, strict=True)]


def through_channel_broadcast(cells: IndexSet, shape: Sequence[int]) -> IndexSet:
    """Return the cells of a vector along the channels (axis 1); a vector of length 1 is broadcast."""
    return IndexSet.of(shape, [cells.axes[1] if shape[0] > 1 else None] if shape else [])


def replace_axes(cells: IndexSet, shape: Sequence[int], axes: dict[int, Iterable[int] | None]) -> IndexSet:
    """Return the cells with other indices along some axes, None for all of them, in a tensor of that shape and rank."""
    replaced: list = list(cells.axes)
    for axis, places in axes.items():
        replaced[axis] = places
    return IndexSet.of(shape, replaced)


def through_slice(cells: IndexSet, shape: Sequence[int], entries: Sequence[int | slice]) -> IndexSet:
    """Return the cells of x behind cells of `x[entries]`, with one entry for each axis."""
    axes = iter(cells.axes)
    operand_axes: list[Axis] = []
    for n, entry in zip(shape, entries, strict=True):
        if isinstance(entry, slice):
            start, _, step = entry.indices(n)
            places = next(axes)
            if isinstance(places, range):
                operand_axes.append(range(start + step * places.start, start + step * places.stop, step * places.step))
            else:
                operand_axes.append(tuple(start + step * i for i in places))
        else:
            operand_axes.append((entry % n,))
    return IndexSet.of(shape, operand_axes)


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


def through_permute(cells: IndexSet, counts: Sequence[int], left, right) -> IndexSet:
    """Return the cells of the input behind cells of a rearrangement.

    `left[k]` and `right[k]` list the factors of axis k before and after it, outer to inner; `counts` are the sizes of
    the factors. A factor of `right` alone is repeated, one of `left` alone has size 1.
    """
    shape = [prod(counts[atom] for atom in axis) for axis in left]
    permuted: dict[int, Axis] = {}
    for axis, atoms in zip(cells.axes, right, strict=True):
        permuted |= zip(atoms, split_axis(axis, [counts[atom] for atom in atoms]), strict=True)
    whole = [[permuted.get(atom, range(counts[atom])) for atom in axis] for axis in left]
    return IndexSet.of(shape, (merge_axes(w, [counts[a] for a in axis]) for w, axis in zip(whole, left, strict=True)))


def through_rearrange(cells: IndexSet, pattern: str, shape: Sequence[int], sizes: dict[str, int]) -> IndexSet:
    """Return the cells of x behind cells of its rearrangement by an einops pattern.

    `through_rearrange(cells, "... s (h d) -> ... h s d", x.shape, {"h": 2})`; `sizes` are those of the atoms that the
    shape does not determine.
    """
    sides = [re.findall(r"\([^)]*\)|\S+", side) for side in pattern.split("->")]
    rest = [f"_{i}" for i in range(len(shape) - len(sides[0]) + 1)]
    left, right = (
        [
            atoms
            for token in side
            for atoms in ([[operand] for operand in rest] if token == "..." else [token.strip("()").split()])
        ]
        for side in sides
    )
    sizes = dict(sizes)
    for n, atoms in zip(shape, left, strict=True):
        known = prod(sizes[atom] for atom in atoms if atom in sizes)
        sizes |= {atom: n // known for atom in atoms if atom not in sizes}
    names = list(sizes)

    def number_factors(side):
        return [[names.index(atom) for atom in atoms] for atoms in side]

    return through_permute(cells, [sizes[name] for name in names], number_factors(left), number_factors(right))


def narrow(cells: IndexSet, axis: int, start: int, count: int) -> IndexSet:
    """Return the cells at `count` indices from `start` on along an axis, counted from `start`."""
    places = cells.axes[axis]
    if isinstance(places, range) and places.step == 1:
        inside = range(max(places.start - start, 0), min(places.stop - start, count))
    else:
        inside = [i - start for i in places if start <= i < start + count]
    shape = (*cells.shape[:axis], count, *cells.shape[axis + 1 :])
    return replace_axes(cells, shape, {axis: inside})


def windows(outputs: Axis, starts: Callable[[int], int], taps: Sequence[int], n: int) -> tuple[list[int], list[int]]:
    """Return, along one axis of length n, the indices in the windows of these cells, `starts(cell) + tap` each, and the
    taps that fall on any index."""
    pairs = [(start + tap, i) for start in map(starts, outputs) for i, tap in enumerate(taps) if 0 <= start + tap < n]
    return sorted({place for place, _ in pairs}), sorted({i for _, i in pairs})


def indices_in(where: IndexSet, numbers, count: int) -> list[int] | None:
    """Return the indices along an axis of `count` that are stored in these cells of an index tensor; None, for all,
    if only its shape is known."""
    if not hasattr(numbers, "flatten"):
        return None
    return [int(i) % count for i in where.select(numbers).flatten().tolist()]


def real(x) -> torch.Tensor:
    """Return whole numbers as float64, the precision in which equations run; anything else unchanged."""
    return x.double() if isinstance(x, torch.Tensor) and not (x.is_floating_point() or x.is_complex()) else x


def plain(number) -> float | complex:
    """Return a tensor of one number as a Python number."""
    scalar = number.item() if hasattr(number, "item") else number
    return scalar if isinstance(scalar, complex) else float(scalar)


def list_terms(cells: Sequence[IndexSet], tensors, first: int = 0) -> list[Term]:
    """Return a term without a share for each of these cells of each operand. Raise TooMany above `MAX_TERMS`."""
    if sum(index_set.count for index_set in cells) > MAX_TERMS:
        raise TooMany(f"more than {MAX_TERMS:,} cells are read")
    return [
        Term(operand, index, plain(value))
        for operand, (index_set, tensor) in enumerate(zip(cells, tensors, strict=True), first)
        for index, value in zip(index_set, index_set.select(tensor).flatten().tolist(), strict=True)
    ]
