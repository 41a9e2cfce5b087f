"""Provenance rules: mixins that determine the operand cells from which a result cell is computed, and their
contributions.

A class takes one of these before its own base: `class Plus(LinearSum, Node)`. Each defines `Node._dependencies`
and `Node.contributions`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, inf, nan

import torch

from tracer.expr.index_sets import (
    IndexSet,
    Term,
    list_terms,
    plain,
    replace_axes,
    shape_of,
    through_broadcast,
    through_rearrange,
    through_slice,
)

Slices = Sequence[int | slice]
"""An index for each axis: a number, or a slice."""


class Elementwise:
    """Rule of an element-wise function: each cell depends on the operands' cells at its index, broadcast from the last
    axis.

    The first operand is counted with all of the cell, and the others are said with it, unless `shares` knows better.
    """

    def _dependencies(self, size, cells, *operands) -> tuple[IndexSet, ...]:
        return tuple(through_broadcast(cells, shape_of(operand)) for operand in operands)

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

    sources = 1
    """The number of operands that numbers are copied from; those behind them are indices or conditions."""

    def contributions(self, size, cell, *tensors) -> list[Term]:
        terms = list_terms(_read(self, size, cell, tensors), tensors)
        return [
            term._replace(share=term.value, factor=1.0) if term.operand < self.sources else term._replace(counted=False)
            for term in terms
        ]


class Layout(Copies):
    """Rule of a rearrangement: `pattern(size, shape)` returns its einops pattern and the sizes of its factors."""

    pattern: Callable[..., tuple[str, dict[str, int]]]

    def _dependencies(self, size, cells, operand) -> tuple[IndexSet, ...]:
        shape = shape_of(operand)
        text, sizes = self.pattern(size, shape)
        return (through_rearrange(cells, text, shape, sizes),)


class Indexing(Copies):
    """Rule of basic indexing: `slices(size, shape)` returns an index or a slice for each axis."""

    slices: Callable[..., Slices]

    def _dependencies(self, size, cells, operand) -> tuple[IndexSet, ...]:
        shape = shape_of(operand)
        return (through_slice(cells, shape, self.slices(size, shape)),)


class BroadcastLeading(Copies):
    """Rule of an operand repeated along new axes in front."""

    def _dependencies(self, size, cells, operand) -> tuple[IndexSet, ...]:
        shape = shape_of(operand)
        return (IndexSet.of(shape, cells.axes[len(cells.axes) - len(shape) :]),)


class RowWise:
    """Rule of a function of rows: each row of the first operand as a whole; vectors behind it are read at the cell's
    index."""

    def _dependencies(self, size, cells, x, *vectors) -> tuple[IndexSet, ...]:
        shape = shape_of(x)
        rows = replace_axes(through_broadcast(cells, shape), shape, {len(shape) - 1: None})
        return (rows, *(through_broadcast(cells, shape_of(vector)) for vector in vectors))


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
        raise NotImplementedError


def _read(node, size, cell, tensors) -> tuple[IndexSet, ...]:
    """Return the cells that one cell reads, for a tensor as small as possible."""
    return node.dependencies(size, IndexSet.single([i + 1 for i in cell], cell), *tensors)
