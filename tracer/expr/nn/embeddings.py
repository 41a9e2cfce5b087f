"""Two encoders' outputs made comparable: read at one token, normalised to unit length, scaled (Radford et al. 2021)."""

from __future__ import annotations

import torch

from tracer.expr.index_sets import IndexSet, indices_in, plain, shape_of
from tracer.expr.node import Node, Shape, ShapeError, with_subscript
from tracer.expr.provenance_rules import Copies, Elementwise, RowWise, Standardisation


class FirstOf(Node):
    """Index of the first occurrence of a token number in each row: `[K, T]` to `[K]`, from 0; 0 if there is
    none."""

    def _latex(self, printer) -> str:
        tokens = printer._print(self.args[0])
        return rf"\min\left\{{ j : {with_subscript(tokens, 'j')} = {printer._print(self.args[1])} \right\}}"

    def infer(self, same, shape) -> Shape:
        return shape[:-1]

    def run(self, size, tokens) -> torch.Tensor:
        wanted = int(self.args[1])
        positions = [row.index(wanted) if wanted in row else 0 for row in tokens.tolist()]
        return torch.tensor(positions, dtype=tokens.dtype)

    def _dependencies(self, size, cells, tokens) -> tuple[IndexSet, ...]:
        shape = shape_of(tokens)
        return (IndexSet.of(shape, (*cells.axes, None)),)


class RowsAt(Copies, Node):
    """One token of each sequence: `[K, T, D]` at places `[K]` is `[K, D]`."""

    def _latex(self, printer) -> str:
        tokens, places = self.args
        return rf"{{{tokens.factor_latex(printer)}}}_{{[\,{printer._print(places)}\,]}}"

    def infer(self, same, tokens, places) -> Shape:
        if len(tokens) != 3 or len(places) != 1 or not same(tokens[0], places[0]):
            raise ShapeError(f"{tokens} taken at {places}, expected [K, T, D] and [K]")
        return (tokens[0], tokens[-1])

    def run(self, size, tokens, places) -> torch.Tensor:
        return torch.stack([row[place] for row, place in zip(tokens, places.tolist(), strict=True)])

    def _dependencies(self, size, cells, tokens, places) -> tuple[IndexSet, ...]:
        shape, index_shape = shape_of(tokens), shape_of(places)
        batch, width = cells.axes
        where = IndexSet.of(index_shape, (batch,))
        return IndexSet.of(shape, (batch, indices_in(where, places, shape[1]), width)), where


class UnitLength(Standardisation, RowWise, Node):
    """`x / ‖x‖₂`, each vector on its own."""

    def _latex(self, printer) -> str:
        x = self.args[0].factor_latex(printer)
        return rf"\frac{{{x}}}{{\left\lVert {x} \right\rVert_2}}"

    def infer(self, same, shape) -> Shape:
        return shape

    def run(self, size, x) -> torch.Tensor:
        return x / (x * x).sum(dim=-1, keepdim=True).sqrt()

    def unit(self, x) -> torch.Tensor:
        return x / (x * x).sum().sqrt()


class ScaledBy(Elementwise, Node):
    """`e^τ X`: a tensor times the power of a learned number; `ScaledBy(τ, X)`."""

    def _latex(self, printer) -> str:
        power, x = self.args
        return rf"e^{{{printer._print(power)}}}\,{x.factor_latex(printer)}"

    def infer(self, same, power, x) -> Shape:
        if power:
            raise ShapeError(f"{power} is not a single number")
        return x

    def run(self, size, power, x) -> torch.Tensor:
        return power.exp() * x

    def shares(self, size, power, x) -> list[tuple]:
        factor = plain(power.exp())
        return [(factor * plain(x), None, False), (factor * plain(x), factor)]
