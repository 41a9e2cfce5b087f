"""Masks as they are added to the scores: 0 where a query may look, -∞ where it may not."""

from __future__ import annotations

import sympy
import torch

from tracer.expr.index_sets import IndexSet, shape_of, through_broadcast
from tracer.expr.node import Node, Shape, ShapeError
from tracer.expr.provenance_rules import Copies
from tracer.symbols.notation import number


class CausalMask(Node):
    """`M_ij = 0` for `j ≤ i`, else `-∞`; `[S, S]` (Vaswani et al. 2017, section 3.2.3).

    `CausalMask(S, lowest)` has another number than -∞: some libraries add the lowest one of float32.
    """

    cells = "ij"

    def __new__(cls, length, *lowest):
        return super().__new__(cls, sympy.sympify(length), *map(sympy.Float, lowest))

    def _latex(self, printer) -> str:
        lowest = r"-\infty" if len(self.args) == 1 else number(float(self.args[1]))
        return rf"\begin{{cases}} 0 & j \le i \\ {lowest} & j > i \end{{cases}}"

    def infer(self, same) -> Shape:
        return (self.args[0], self.args[0])

    def run(self, size) -> torch.Tensor:
        length = int(size(self.args[0]))
        lowest = float(self.args[1]) if len(self.args) > 1 else float("-inf")
        i, j = torch.arange(length)[:, None], torch.arange(length)
        return torch.zeros(length, length, dtype=torch.float64).masked_fill(j > i, lowest)


class CausalMaskBetween(CausalMask):
    """`M_ij = 0` for `j ≤ i`, else `-∞`, where there are not as many keys as queries; `[S_q, S_k]`.

    Both are counted from the first, as `scaled_dot_product_attention(is_causal=True)` does.
    """

    def __new__(cls, queries, keys):
        return Node.__new__(cls, queries, keys)

    def _latex(self, printer) -> str:
        return r"\begin{cases} 0 & j \le i \\ -\infty & j > i \end{cases}"

    def infer(self, same) -> Shape:
        return (self.args[0], self.args[1])

    def run(self, size) -> torch.Tensor:
        queries, keys = (int(size(argument)) for argument in self.args)
        i, j = torch.arange(queries)[:, None], torch.arange(keys)
        return torch.zeros(queries, keys, dtype=torch.float64).masked_fill(j > i, float("-inf"))


class Provided(Copies, Node):
    """A mask that the code uses only if a number that it checked is 1; otherwise nothing is known of it."""

    @property
    def cells(self) -> str:
        return self.args[0].cells

    def _latex(self, printer) -> str:
        mask, condition = map(printer._print, self.args)
        return rf"{mask} \quad \text{{since }} {condition} = 1"

    def infer(self, same, mask, condition) -> Shape:
        if condition:
            raise ShapeError(f"a mask is taken by one number, not by {condition}")
        return mask

    def run(self, size, mask, condition) -> torch.Tensor:
        return mask if condition == 1 else mask * float("nan")

    def _dependencies(self, size, cells, mask, condition) -> tuple[IndexSet, ...]:
        shape = shape_of(condition)
        return through_broadcast(cells, shape_of(mask)), IndexSet.all(shape)


class PrefixMask(Node):
    """`M_ij = 0` for `j ≤ i` or `j < n`, else `-∞`: the first n tokens see each other fully; `[S, S]`.

    Source: Raffel et al. 2020, section 3.2.1. `PrefixMask(S, n)`.
    """

    cells = "ij"

    def _latex(self, printer) -> str:
        prefix = printer._print(self.args[1])
        return rf"\begin{{cases}} 0 & j \le i \text{{ or }} j < {prefix} \\ -\infty & \text{{else}} \end{{cases}}"

    def infer(self, same) -> Shape:
        return (self.args[0], self.args[0])

    def run(self, size) -> torch.Tensor:
        length, prefix = (int(size(argument)) for argument in self.args)
        i, j = torch.arange(length)[:, None], torch.arange(length)
        return torch.zeros(length, length, dtype=torch.float64).masked_fill((j > i) & (j >= prefix), float("-inf"))
