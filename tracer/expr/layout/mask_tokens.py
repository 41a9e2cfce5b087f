"""Gathering tokens by their indices, and scattering them back among mask tokens (He et al. 2022, section 3)."""

from __future__ import annotations

import torch

from tracer.expr.index_sets import IndexSet, Term, indices_in, shape_of
from tracer.expr.node import Node, Shape, ShapeError, with_subscript
from tracer.expr.provenance_rules import BroadcastLeading, Copies


class Take(Copies, Node):
    """Chosen tokens of each sequence: `X[π]`, `[B, N, D]` and numbers `[B, n]` to `[B, n, D]`."""

    def _latex(self, printer) -> str:
        tokens, numbers = self.args
        return rf"{tokens.factor_latex(printer)}\left[{printer._print(numbers)}\right]"

    def infer(self, same, tokens, numbers) -> Shape:
        if len(tokens) != 3 or len(numbers) != 2 or not same(tokens[0], numbers[0]):
            raise ShapeError(f"{tokens} taken at {numbers}, expected [B, N, D] and [B, n]")
        return (*numbers, tokens[-1])

    def run(self, size, tokens, numbers) -> torch.Tensor:
        return torch.stack([row[chosen] for row, chosen in zip(tokens, numbers, strict=True)])

    def _dependencies(self, size, cells, tokens, numbers) -> tuple[IndexSet, ...]:
        shape, index_shape = shape_of(tokens), shape_of(numbers)
        batch, rows, width = cells.axes
        where = IndexSet.of(index_shape, (batch, rows))
        return IndexSet.of(shape, (batch, indices_in(where, numbers, shape[1]), width)), where


class Repeat(BroadcastLeading, Node):
    """One vector as every token: `Repeat(x, B, N)` is `[B, N, D]`."""

    def _latex(self, printer) -> str:
        token, count = printer._print(self.args[0]), printer._print(self.args[2])
        return rf"\left[{token}\ ;\ \dots\ ;\ {token}\right]_{{{count}}}"

    def infer(self, same, token) -> Shape:
        return (*self.args[1:], *token)

    def run(self, size, token) -> torch.Tensor:
        batch, count = (int(size(argument)) for argument in self.args[1:])
        return torch.stack([torch.stack([token] * count)] * batch)


class Put(Copies, Node):
    """Tokens at their places, others elsewhere: `Put(M, π, X)` has row i of X at place π_i, and M's rows else."""

    cells = "[j]"

    def _latex(self, printer) -> str:
        others, numbers, tokens = (operand.factor_latex(printer) for operand in self.operands)
        placed = rf"{with_subscript(tokens, '[i]')} & j = {with_subscript(numbers, 'i')}"
        return rf"\begin{{cases}} {placed} \\ {with_subscript(others, '[j]')} & \text{{else}} \end{{cases}}"

    def infer(self, same, others, numbers, tokens) -> Shape:
        if not all(map(same, (*numbers, others[-1]), tokens)):
            raise ShapeError(f"{tokens} put at {numbers} into {others}, expected one token for each number")
        return others

    def run(self, size, others, numbers, tokens) -> torch.Tensor:
        result = others.clone()
        for i, (places, values) in enumerate(zip(numbers, tokens, strict=True)):
            result[i, places] = values
        return result

    sources = 3

    def _dependencies(self, size, cells, others, numbers, tokens) -> tuple[IndexSet, ...]:
        """Return all indices of a sequence: any of them may select the cell."""
        shapes = [shape_of(operand) for operand in (others, numbers, tokens)]
        batch, rows, width = cells.axes
        where = IndexSet.of(shapes[1], (batch, None))
        if not hasattr(numbers, "tolist"):
            return IndexSet.of(shapes[0], cells.axes), where, IndexSet.of(shapes[2], (batch, None, width))
        placed = [numbers[b].tolist() for b in batch]
        slots = {i for row in placed for i, place in enumerate(row) if place in rows}
        stays = [j for j in rows if any(j not in row for row in placed)]
        return IndexSet.of(shapes[0], (batch, stays, width)), where, IndexSet.of(shapes[2], (batch, slots, width))

    def contributions(self, size, cell, *tensors) -> list[Term]:
        return [
            term._replace(share=None, factor=None, counted=False) if term.operand == 1 else term
            for term in super().contributions(size, cell, *tensors)
        ]
