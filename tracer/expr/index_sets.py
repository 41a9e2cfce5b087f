"""Sets of cells of a tensor, axis by axis, their path through layouts, and the terms of one cell.

A set is the product of one set per axis: nothing here lists the cells of a tensor. What is no such product, such as a
union of two cells on a diagonal, or the places `{(0, 1), (1, 0)}` of a row of joined heads, is widened to the smallest
product that holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp, inf, nan, prod
from typing import Any, NamedTuple

import torch

from tracer.symbols.axes import Axis, align_axes, factor_sizes, normalise_axis, parse_pattern, read_axes


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


def shape_of(operand) -> tuple[int, ...]:
    """Return the shape of a tensor; a shape is returned unchanged."""
    return tuple(int(n) for n in getattr(operand, "shape", operand))


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


def through_factors(cells: IndexSet, inputs, output, sizes, operands) -> tuple[IndexSet, ...]:
    """Return the cells of operands behind cells of a rearrangement or product of these, by the factors of their axes
    (`tracer.symbols.axes`); `sizes` are those of the factors."""
    shapes = [shape_of(operand) for operand in operands]
    read = read_axes(cells.axes, output, inputs, shapes, sizes)
    return tuple(map(IndexSet.of, shapes, read))


def through_pattern(cells: IndexSet, pattern: str, operands, sizes: dict[str, int]) -> tuple[IndexSet, ...]:
    """Return the cells of operands behind cells of a rearrangement or product of these, by a pattern.

    `through_pattern(cells, "... s (h d) -> ... h s d", [x], {"h": 2})`; `sizes` are those of the factors that the
    shapes do not determine. Along an axis `[n]`, the numbers that are read of the last operand are the places.
    """
    shapes = [shape_of(operand) for operand in operands]
    inputs, output = parse_pattern(pattern, (*map(len, shapes), len(cells.shape)))
    read = read_axes(cells.axes, output, inputs, shapes, factor_sizes(inputs, shapes, sizes))
    sets = list(map(IndexSet.of, shapes, read))
    for number, side in enumerate(inputs):
        if ("[n]",) in side:
            axis, shape = side.index(("[n]",)), shapes[number]
            sets[number] = replace_axes(sets[number], shape, {axis: indices_in(sets[-1], operands[-1], shape[axis])})
    return tuple(sets)


def narrow(cells: IndexSet, axis: int, start: int, count: int) -> IndexSet:
    """Return the cells at `count` indices from `start` on along an axis, counted from `start`."""
    places = cells.axes[axis]
    if isinstance(places, range) and places.step == 1:
        inside = range(max(places.start - start, 0), min(places.stop - start, count))
    else:
        inside = [i - start for i in places if start <= i < start + count]
    shape = (*cells.shape[:axis], count, *cells.shape[axis + 1 :])
    return replace_axes(cells, shape, {axis: inside})


def through_concat(cells: IndexSet, axis: int, operands) -> tuple[IndexSet, ...]:
    """Return the cells of operands behind cells of their concatenation along an axis, counted from the last, -1; an
    operand without that axis has one place of it."""
    sets, start = [], 0
    for shape in map(shape_of, operands):
        count = shape[axis] if len(shape) >= -axis else 1
        part = narrow(cells, len(cells.shape) + axis, start, count)
        sets.append(IndexSet.none(shape) if part.axes is None else IndexSet.of(shape, align_axes(part.axes, shape)))
        start += count
    return tuple(sets)


def windows(
    outputs: Axis, taps: Iterable[int], n: int, stride: int, padding: int, dilation: int
) -> tuple[list[int], list[int]]:
    """Return, along one axis of length n, the indices in the windows of these cells, by the taps of a window that are
    read, and those of the taps that fall on any index."""
    pairs = [(o * stride - padding + tap * dilation, tap) for o in outputs for tap in taps]
    pairs = [(place, tap) for place, tap in pairs if 0 <= place < n]
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


# Provenance rules: mixins that determine the operand cells from which a result cell is computed, and their
# contributions.
#
# A class takes one of these before its own base: `class Plus(LinearSum, Node)`. Each defines `Node._dependencies`
# and `Node.contributions`.

Slices = Sequence[int | slice]
"""An index for each axis: a number, or a slice."""

AxisReads = dict[int, Iterable[int] | None]
"""The indices that are read along some axes, None for all of an axis."""


class Elementwise:
    """Rule of an element-wise function: each cell depends on the operands' cells at its index, broadcast from the last
    axis.

    The first operand is counted with all of the cell, and the others are said with it, unless `shares` knows better.
    """

    reads = "... -> ..."

    def contributions(self, size, cell, *tensors) -> list[Term]:
        places = [next(iter(index_set)) for index_set in _read(self, size, cell, tensors)]
        numbers = [tensor[place] for tensor, place in zip(tensors, places, strict=True)]
        shares = self.shares(size, *numbers)
        return [
            Term(i, place, plain(number), *share)
            for i, (place, number, share) in enumerate(zip(places, numbers, shares, strict=True))
        ]

    run: Callable

    def shares(self, size, *numbers) -> list[tuple]:
        """(share, factor, counted) of each operand's number."""
        result = plain(self.run(size, *numbers))
        return [(result, None, i == 0) for i in range(len(numbers))]


class Linear:
    """Rule of a sum of terms, each with one number of a linear operand as a factor: the number's coefficient is the
    gradient of the cell."""

    linear: tuple[int, ...] | None = None
    """The operands that it is linear in, None for all; those of the others have a part in a cell, and no share."""
    counted: tuple[int, ...] | None = (0,)
    """The operands whose shares add up to the cell, None for all; the others are factors beside these in products."""
    alone = True
    """True if `run` on the numbers that a cell reads computes this cell."""
    run: Callable

    def contributions(self, size, cell, *tensors) -> list[Term]:
        read = _read(self, size, cell, tensors)
        terms = list_terms(read, tensors)
        selected = (
            [index_set.select(x) for index_set, x in zip(read, tensors, strict=True)] if self.alone else list(tensors)
        )
        linear = range(len(selected)) if self.linear is None else self.linear
        kind = torch.complex128 if any(x.is_complex() for x in selected) else torch.float64
        for i in linear:
            selected[i] = selected[i].to(kind, copy=True).requires_grad_()
        with torch.enable_grad():
            result = self.run(size, *selected).flatten()[-1] if self.alone else self.run(size, *selected)[cell]
        if not result.requires_grad:  # nothing is read
            return [term._replace(counted=False) for term in terms]
        by = torch.autograd.grad(result, [selected[i] for i in linear], torch.ones_like(result), materialize_grads=True)
        factors: list = []
        for i, index_set in enumerate(read):
            gradient = by[linear.index(i)].conj() if i in linear else None
            if gradient is None:
                factors += [None] * index_set.count
            else:
                factors += (gradient if self.alone else index_set.select(gradient)).flatten().tolist()
        return [
            term._replace(
                share=None if factor is None else factor * term.value,
                factor=factor,
                counted=self.counted is None or term.operand in self.counted,
            )
            for term, factor in zip(terms, factors, strict=True)
        ]


class LinearSum(Linear, Elementwise):
    """Rule of a sum of one number of each operand, times a factor that does not depend on it."""

    counted: tuple[int, ...] | None = None


class ElementwiseProduct(Linear, Elementwise):
    """Rule of a product of two: the first is counted, the second is listed with the same share."""


class SelectOne(LinearSum):
    """Rule of a selection: one of the operands' numbers; the others have no share."""

    def contributions(self, size, cell, *tensors) -> list[Term]:
        return [
            term._replace(share=0.0) if term.factor == 0 else term
            for term in super().contributions(size, cell, *tensors)
        ]


class Copies:
    """Rule of a copy: each cell is one number of the first operand that it reads; its other operands select the
    number."""

    sources: float = 1
    """The number of operands that numbers are copied from, inf for all; those behind them are indices or conditions."""

    def contributions(self, size, cell, *tensors) -> list[Term]:
        terms = list_terms(_read(self, size, cell, tensors), tensors)
        return [
            term._replace(share=term.value, factor=1.0) if term.operand < self.sources else term._replace(counted=False)
            for term in terms
        ]


class Layout(Copies):
    """Rule of a rearrangement: `pattern` returns its einops pattern and the sizes of its factors."""


class Indexing(Copies):
    """Rule of basic indexing: `slices(size, shape)` returns an index or a slice for each axis."""

    slices: Callable[..., Slices]

    def run(self, size, x) -> torch.Tensor:
        return x[tuple(self.slices(size, x.shape))]

    def _dependencies(self, size, cells, operand) -> tuple[IndexSet, ...]:
        shape = shape_of(operand)
        return (through_slice(cells, shape, self.slices(size, shape)),)


class AlongAxes:
    """Rule of a function along some axes of one operand: `read_along(size, shape, axes)` returns which indices along
    these are read, None for all, from those of the result; along the others, a cell reads its own."""

    read_along: Callable[..., AxisReads]

    def _dependencies(self, size, cells, operand) -> tuple[IndexSet, ...]:
        shape = shape_of(operand)
        return (replace_axes(cells, shape, self.read_along(size, shape, cells.axes)),)


class RowWise:
    """Rule of a function of rows: each row of the first operand as a whole; vectors behind it are read at the cell's
    index."""

    reads = "... k, ... d -> ... d"


class Standardisation:
    """Rule of `unit ⊙ γ + β`, with `unit` computed from all numbers of x that are read: the number at the cell's own
    index counts with `unit · γ`, and γ is listed with the same share; the others of x contribute to μ and σ only, with
    a share of 0."""

    has_weight = True
    """True if the first of the vectors is γ, False if it is β."""

    def unit(self, x) -> torch.Tensor:
        """All numbers of x, normalised together."""
        raise NotImplementedError

    def contributions(self, size, cell, x, *vectors) -> list[Term]:
        read, *places = _read(self, size, cell, (x, *vectors))
        block = read.select(x)
        unit = plain(self.unit(block)[tuple(axis.index(i) for axis, i in zip(read.axes, cell, strict=True))])
        numbers = [plain(place.select(vector)) for place, vector in zip(places, vectors, strict=True)]
        gamma = numbers[0] if numbers and self.has_weight else 1.0
        terms = [
            term._replace(share=unit * gamma if term.index == tuple(cell) else 0.0) for term in list_terms([read], [x])
        ]
        for operand, (place, number) in enumerate(zip(places, numbers, strict=True), 1):
            share = (unit * gamma, unit, False) if self.has_weight and operand == 1 else (number, 1.0)
            terms.append(Term(operand, next(iter(place)), number, *share))
        return terms


class OfAll:
    """Rule of a function of all numbers that are read of one operand. `parts(cell, indices, numbers)` returns their
    known shares."""

    def contributions(self, size, cell, x) -> list[Term]:
        terms = list_terms(_read(self, size, cell, (x,)), (x,))
        parts = self.parts(cell, [term.index for term in terms], [term.value for term in terms])
        return [term._replace(**part) for term, part in zip(terms, parts, strict=True)]

    def parts(self, cell, indices, numbers) -> list[dict]:
        return [{} for _ in numbers]


class SoftmaxShares(OfAll):
    """Rule of the shares `eˣ / Σ eˣ` of a row, of which the cell is one."""

    def parts(self, cell, indices, numbers) -> list[dict]:
        largest = max(numbers)
        powers = [exp(x - largest) if x > -inf else 0.0 for x in numbers]
        total = sum(powers) or nan
        own = tuple(cell)
        return [{"share": p / total, "counted": i == own} for i, p in zip(indices, powers, strict=True)]


class ArgSelect(OfAll):
    """Rule of an extremum: one of the numbers that are read, the first that equals it."""

    def contributions(self, size, cell, x) -> list[Term]:
        terms = super().contributions(size, cell, x)
        numbers = [term.value for term in terms]
        position = self.choose(cell, numbers)
        if position not in numbers or any(x != x for x in numbers):  # not a number among them: none can be singled out
            return terms
        chosen = numbers.index(position)
        return [
            term._replace(share=position, factor=1.0) if i == chosen else term._replace(share=0.0)
            for i, term in enumerate(terms)
        ]

    def choose(self, cell, numbers) -> float:
        """Return the extremum: the largest number, unless a subclass knows better."""
        return max(numbers)


def _read(node, size, cell, tensors) -> tuple[IndexSet, ...]:
    """Return the cells that one cell reads, for a tensor as small as possible."""
    return node.dependencies(size, IndexSet.single([i + 1 for i in cell], cell), *tensors)
