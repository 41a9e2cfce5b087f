"""Walk from a cell of an equation to the numbers that the equation names, through the nodes between."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import isfinite
from types import MappingProxyType
from typing import NamedTuple

import torch

from tracer.expr import Node, Tensor, execute, latex, tensors
from tracer.expr.index_sets import MAX_TERMS, IndexSet, Term, TooMany, plain
from tracer.shapes import value_of
from tracer.tracing.proofs.step_proof import Values


class RecomputedValues(Values):
    """Tensors of a run by their keys. One that was not kept is recomputed by the equations that lead to it."""

    HELD = 2

    def __init__(self, module, values, steps, lines, sizes):
        super().__init__(module, values, steps, lines, sizes)
        self.equations = {line.id: line.equation for line in lines}
        self._again: dict[str, torch.Tensor | None] = {}

    def size(self, expression) -> float:
        return value_of(str(expression), self._sizes)

    def __call__(self, key: str) -> torch.Tensor | None:
        tensor = self._hold(key)
        if tensor is None and key in self.equations:
            if key not in self._again:
                known = {key: tensor for key, tensor in self._again.items() if tensor is not None}
                recomputed = self.recompute([key], known).get(key)
                while len(self._again) >= self.HELD:
                    del self._again[next(iter(self._again))]
                self._again[key] = recomputed
            return self._again[key]
        return tensor

    def _hold(self, key: str) -> torch.Tensor | None:
        return None if self.fused_equation(key) is not None else super().__call__(key)

    def _unkept(self, keys, again=()) -> set[str]:
        """Return those of these steps that were not kept, with all their operands that were not kept, or are in
        `again`."""
        needed, ahead = set(), list(keys)
        while ahead:
            key = ahead.pop()
            if key not in needed and key not in again and key in self.equations and self._hold(key) is None:
                needed.add(key)
                ahead += [tensor.key for tensor in tensors(self.equations[key])]
        return needed

    def sources(self, keys) -> set[str]:
        """Return these keys, and those of all tensors that are read to recompute what was not kept of them."""
        unkept = self._unkept(keys)
        return {*keys, *(tensor.key for key in unkept for tensor in tensors(self.equations[key]))}

    def recompute(
        self, keys: Collection[str], known: Mapping[str, torch.Tensor] = MappingProxyType({})
    ) -> dict[str, torch.Tensor]:
        """Return those of these tensors that were not kept, from one pass over the equations that lead to them.

        A tensor that is missing on the way leaves out what is made of it. `known` are some that were recomputed before.
        """
        held, out = dict(known), {}
        needed = self._unkept(keys, known)
        order = [id for id in self.equations if id in needed]  # in which they ran
        reads = {id: {tensor.key for tensor in tensors(self.equations[id])} for id in order}
        last = {key: id for id in order for key in reads[id]}

        def exact(tensor: Tensor) -> torch.Tensor:
            operand = held[tensor.key] if tensor.key in held else self._hold(tensor.key)
            if operand is None:
                raise LookupError(tensor.key)
            return operand.double() if operand.is_floating_point() else operand

        with torch.no_grad():
            for id in order:
                try:
                    held[id] = execute(self.equations[id], exact, self.size)
                except LookupError:
                    continue
                if id in keys:
                    out[id] = held[id]
                for key in reads[id]:
                    if last[key] == id:
                        held.pop(key, None)
        return out


class Leaf(NamedTuple):
    """A number under its key, in the terms of a whole equation."""

    key: str
    index: tuple[int, ...]  # type: ignore[assignment]
    value: float | complex
    share: float | complex | None
    factor: float | complex | None
    counted: bool


class ProvenanceWalk:
    """Walk from a cell of an equation to the cells of the tensors that it names, through the nodes between."""

    def __init__(self, equation: Node, value: RecomputedValues):
        self.equation, self.size, self._value = equation, value.size, value
        self._tensors: dict[Node, torch.Tensor] = {}
        self._leaves: dict[tuple[Node, tuple[int, ...]], list[Leaf]] = {}
        self._count = 0

    def tensor(self, node: Node) -> torch.Tensor:
        """Return the value of a part of the equation, in float64."""
        if node not in self._tensors:
            if isinstance(node, Tensor):
                tensor = self._value.tensor(node.key)
                tensor = tensor.double() if tensor.is_floating_point() else tensor
                result = tensor.transpose(-2, -1) if node.transposed else tensor
            else:
                with torch.no_grad():
                    result = node.run(self.size, *map(self.tensor, node.operands))
            self._tensors[node] = result
        return self._tensors[node]

    def terms(self, node: Node, index: tuple[int, ...]) -> list[Term]:
        with torch.no_grad():
            return node.contributions(self.size, index, *map(self.tensor, node.operands))

    def compute(self, index: tuple[int, ...]) -> float | complex:
        """Return the cell as the sum of its terms; if these do not add up, execute the equation."""
        try:
            shares = [] if isinstance(self.equation, Tensor) else self._shares(index)
        except TooMany:
            shares = []
        return sum(shares) if shares and None not in shares else plain(self.tensor(self.equation)[index])

    def _shares(self, index) -> list:
        return [term.share for term in self.terms(self.equation, index) if term.counted]

    def numbers(self, node: Node, index: tuple[int, ...]) -> list[Leaf]:
        """Return the operands of a cell of a part of the equation. Raise TooMany for more than are listed."""
        if isinstance(node, Tensor) or not node.operands:
            number = plain(self.tensor(node)[index])
            return [Leaf(*_place(node, index), number, number, 1.0, True)]
        if (node, index) not in self._leaves:
            operands, numbers = node.operands, []
            for term in self.terms(node, index):
                operand = operands[term.operand]
                if isinstance(operand, Tensor):
                    numbers.append(
                        Leaf(*_place(operand, term.index), term.value, term.share, term.factor, term.counted)
                    )
                else:
                    numbers += _through(term, self.numbers(operand, term.index))
            self._count += len(numbers)
            if self._count > MAX_TERMS:
                raise TooMany(f"they are more than {MAX_TERMS:,}")
            self._leaves[node, index] = numbers
        return self._leaves[node, index]

    def read(self, node: Node, index: tuple[int, ...]) -> list[Leaf] | None:
        """Return all numbers that a cell reads, as sets along axes, without shares; None if they are too many."""
        cells_read: dict[Tensor, IndexSet] = {}

        def follow(node: Node, cells: IndexSet) -> None:
            if isinstance(node, Tensor):
                cells_read[node] = cells_read[node] | cells if node in cells_read else cells
                return
            operands = [self.tensor(operand) for operand in node.operands]
            for operand, read in zip(node.operands, node.dependencies(self.size, cells, *operands), strict=True):
                follow(operand, read)

        follow(node, IndexSet.single(self.tensor(node).shape, index))
        if sum(cells.count for cells in cells_read.values()) > MAX_TERMS:
            return None
        return [
            Leaf(*_place(tensor, at), plain(self.tensor(tensor)[at]), None, None, True)
            for tensor, cells in cells_read.items()
            for at in cells
        ]


def _through(term: Term, inner: list[Leaf]) -> list[Leaf]:
    """Scale the contributions to a term's cell to those of the whole cell: by its factor, or in proportion."""
    if term.factor == 1 and term.counted:
        return inner
    factor = term.factor
    if factor is not None:
        by = factor
    elif term.share is not None and term.value and isfinite(abs(term.value)):
        by = term.share / term.value
    else:
        by = 0.0 if term.share == 0 else None
    return [
        Leaf(
            leaf.key,
            leaf.index,
            leaf.value,
            None if by is None or leaf.share is None else leaf.share * by if by else 0.0,
            None if factor is None or leaf.factor is None else leaf.factor * factor,
            leaf.counted and term.counted,
        )
        for leaf in inner
    ]


def _place(node: Node, index: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Return the key of a number's tensor, and its index there."""
    if not isinstance(node, Tensor):
        return f"number {latex(node)}", index
    return node.key, (*index[:-2], index[-1], index[-2]) if node.transposed else index
