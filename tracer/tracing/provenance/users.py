"""Cells that read one number, in the lines whose equations name its tensor."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from math import prod

from tracer.expr import Node, Tensor, tensors
from tracer.expr.index_sets import IndexSet, normalise_axis
from tracer.record.trace import Cell, Trace, User
from tracer.tracing.provenance.walk import ProvenanceWalk, RecomputedValues

MAX_CELLS = 64
"""Cells of a set that are asked one by one whether they read the number."""


def users(cell: Cell) -> tuple[User, ...]:
    """Return, for each line that reads this cell, the cells of it that do."""
    trace: Trace = cell.trace
    value = trace.later.values(RecomputedValues) if trace.later else None
    if value is None:
        return ()
    readers = []
    for step in trace.steps:
        equation = value.equations.get(step.id)
        if equation is None or cell.id not in {tensor.key for tensor in tensors(equation)}:
            continue
        if any(value(tensor.key) is None for tensor in tensors(equation)):
            continue
        cells, exact = _Reading(ProvenanceWalk(equation, value), cell).cells(step.shape)
        if cells.count:
            readers.append(User(step.id, tuple(tuple(axis) for axis in cells.axes), exact))
    return tuple(readers)


class _Reading:
    """Query for the cells of one equation that read one cell of a tensor that it names."""

    def __init__(self, walk: ProvenanceWalk, cell: Cell):
        self.walk, self.cell = walk, cell

    def reads(self, cells: IndexSet) -> bool:
        """Return whether any of these cells of the result reads the cell, by sets along axes."""
        return self._reads(self.walk.equation, cells)

    def _reads(self, node: Node, cells: IndexSet) -> bool:
        if isinstance(node, Tensor):
            index = self.cell.index
            stored = (*index[:-2], index[-1], index[-2]) if node.transposed else index
            return node.key == self.cell.id and stored in cells
        if cells.axes is None or self.cell.id not in {tensor.key for tensor in tensors(node)}:
            return False
        operands = [self.walk.tensor(operand) for operand in node.operands]
        read = node.dependencies(self.walk.size, cells, *operands)
        return any(self._reads(operand, part) for operand, part in zip(node.operands, read, strict=True))

    def cells(self, shape: tuple[int, ...]) -> tuple[IndexSet, bool]:
        """Return the smallest product of indices along the axes that holds all cells that read the number, and whether
        each tested cell of it does."""
        everything = IndexSet.all(shape)
        if not self.reads(everything):
            return IndexSet.none(shape), True
        axes = list(everything.axes)
        for axis in range(len(shape)):
            axes[axis] = normalise_axis(self._places(axes, shape, axis, range(shape[axis])))
        cells = IndexSet.of(shape, axes)
        return cells, all(self.reads(IndexSet.single(shape, index)) for index in _sample(cells))

    def _places(self, axes: list, shape: tuple[int, ...], axis: int, places: range) -> Iterator[int]:
        """Yield the indices along one axis at which some cell reads the number, by bisection."""
        if not self.reads(IndexSet.of(shape, [*axes[:axis], places, *axes[axis + 1 :]])):
            return
        if len(places) == 1:
            yield places[0]
            return
        middle = len(places) // 2
        for half in (places[:middle], places[middle:]):
            yield from self._places(axes, shape, axis, half)


def _sample(cells: IndexSet) -> Iterator[tuple[int, ...]]:
    """Yield all cells of a small set, else some of them."""
    if cells.count <= MAX_CELLS:
        yield from cells
        return
    draw = random.Random(prod(map(len, cells.axes)))
    yield from product(*({axis[0]: None, axis[-1]: None} for axis in cells.axes[-4:])) if len(cells.axes) <= 4 else ()
    for _ in range(MAX_CELLS):
        yield tuple(draw.choice(axis) for axis in cells.axes)
