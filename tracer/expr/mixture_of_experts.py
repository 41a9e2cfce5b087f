r"""A mixture of experts: a sum over the chosen ones, `\sum_{e \in \mathbf{e}} \mathbf{g}_{e}\,\left(…\right)`, or over
all, `\sum_{e < 5}`, counted from 0.

Each token has k experts of its own and a gate for each of them (Shazeer et al. 2017, equation 1). What an expert does
is an equation of its own, on the token and on the expert's share of the weights, `\mathbf{W}_{[e,\,:,\,:]}`.
"""

from __future__ import annotations

from typing import Any

import torch

from tracer.expr.index_sets import IndexSet, Term, plain, shape_of
from tracer.expr.node import Node, Shape, ShapeError, Tensor, execute, infer, with_subscript

TOKEN = "expert token"
"""The key of the token in an expert's equation; its weights are `expert 0`, `expert 1` … in order."""


class _Mixture(Node):
    """A sum over experts: the result of `body` for a token, times a gate; the gates are operand number 1."""

    needs_parens = True

    @property
    def body(self) -> Node:
        """Return the output of one expert for one token, as expression."""
        return self.args[0]

    def _expert_output(self, x, expert: int, weights, size):
        """Return the output of one expert for tokens `[…, D]`."""
        values = {TOKEN: x} | {f"expert {n}": stack[expert] for n, stack in enumerate(weights)}
        return execute(self.body, lambda tensor: values[tensor.key], size)

    def _routes(self, rest):
        """Return, from the operands behind the gates, a function that gives the expert of a gate, and the weights."""
        return lambda index: index[-1], rest

    def contributions(self, size, cell, x, gates, *rest) -> list[Term]:
        """Return the contribution of each gate, with the result of its expert for the token as its factor."""
        terms, (expert, weights) = [], self._routes(rest)
        for term in super().contributions(size, cell, x, gates, *rest):
            if term.operand == 1:
                output = self._expert_output(x[cell[:-1]][None], expert(term.index), weights, size)
                factor = plain(output[0, cell[-1]].item())
                terms.append(term._replace(share=factor * term.value, factor=factor))
            else:
                terms.append(term._replace(counted=False))
        return terms


class Experts(_Mixture):
    """`Experts(body, x, gates, chosen, *weights)`: x `[…, D]`, a row for each token; gates and chosen `[N, k]`, a row
    for each of these tokens, in order; weights `[E, …]`, one part for each expert."""

    @property
    def operands(self) -> tuple[Node, ...]:
        return self.args[1:]

    def _latex(self, printer) -> str:
        gates, chosen = (printer._print(operand) for operand in self.args[2:4])
        body = printer._print(self.body)
        return rf"\sum_{{e \in {chosen}}} {with_subscript(gates, 'e')}\,\left({body}\right)"

    def infer(self, same, x, gates, chosen, *weights) -> Shape:
        if len(gates) != 2 or len(gates) != len(chosen) or not all(map(same, gates, chosen)):
            raise ShapeError(f"gates {gates} and chosen experts {chosen} don't fit")
        return infer(self.body, same)

    def run(self, size, x, gates, chosen, *weights) -> torch.Tensor:
        mixed: Any = None
        rows = x.reshape(-1, x.shape[-1])
        for expert in chosen.unique().tolist():
            tokens, places = (chosen == expert).nonzero(as_tuple=True)
            output = self._expert_output(rows[tokens], expert, weights, size)
            if mixed is None:
                mixed = torch.zeros(len(rows), output.shape[-1], dtype=output.dtype)
            mixed.index_add_(0, tokens, output * gates[tokens, places, None])
        return mixed.reshape(*x.shape[:-1], mixed.shape[-1])

    def _dependencies(self, size, cells, x, gates, chosen, *weights) -> tuple[IndexSet, ...]:
        """Return the cells that are read: the whole token, and of the weights those of its experts."""
        shapes = [shape_of(operand) for operand in (x, gates, chosen, *weights)]
        rows, experts = [0], None
        for places, count in zip(cells.axes[:-1], shapes[0][:-1], strict=True):
            rows = [row * count + place for row in rows for place in (range(count) if places is None else places)]
        if hasattr(chosen, "tolist"):
            experts = sorted({expert for row in rows for expert in chosen[row].tolist()})
        routes = (IndexSet.of(shape, (rows, None)) for shape in shapes[1:3])
        parts = (IndexSet.of(shape, (experts, *(None,) * (len(shape) - 1))) for shape in shapes[3:])
        return IndexSet.of(shapes[0], (*cells.axes[:-1], None)), *routes, *parts

    def _routes(self, rest):
        return lambda index: rest[0][index].item(), rest[1:]


class AllExperts(_Mixture):
    """`AllExperts(body, E, x, gates, *weights)`: x `[…, D]`; gates `[…, E]`, a share of each token for every expert;
    weights `[E, …]`, one part for each expert."""

    reads = "... k, ... e, * -> ... d"

    @property
    def operands(self) -> tuple[Node, ...]:
        return self.args[2:]

    def _latex(self, printer) -> str:
        body, count, _, gates, *_ = (printer._print(operand) for operand in self.args)
        return rf"\sum_{{e < {count}}} {with_subscript(gates, 'e')}\,\left({body}\right)"

    def infer(self, same, x, gates, *weights) -> Shape:
        if len(gates) != len(x) or not all(map(same, gates[:-1], x[:-1])):
            raise ShapeError(f"tokens {x} and the shares {gates} of their experts don't fit")
        if not all(same(self.args[1], size) for size in (gates[-1], *(weight[0] for weight in weights))):
            raise ShapeError(f"there are {self.args[1]} experts, but shares {gates} and parts of weights {weights}")
        return infer(self.body, same)

    def run(self, size, x, gates, *weights) -> torch.Tensor:
        return sum(gates[..., e, None] * self._expert_output(x, e, weights, size) for e in range(gates.shape[-1]))


def part(weight: Tensor, number: int) -> Tensor:
    """Return the placeholder for one expert's part of an operand, printed with the index e."""
    rest = r",\,:" * (len(weight.shape) - 1)
    name = rf"{{{weight.name}}}_{{[e{rest}]}}"
    return Tensor(name, weight.shape[1:], f"expert {number}")
