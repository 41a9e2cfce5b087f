"""Factories: counted numbers, evenly spaced ones, and the identity."""

from __future__ import annotations

import sympy
import torch

from tracer.expr.function_call import _FunctionCall, setting_latex, whole
from tracer.expr.index_sets import IndexSet
from tracer.expr.node import Node, Shape
from tracer.expr.provenance_rules import Linear, through_broadcast


def range_latex(length: sympy.Expr, printer) -> str:
    """Return the LaTeX of the numbers of at least 0 to one less than a size."""
    return rf"\left(0, 1, \ldots, {printer._print(sympy.expand(length - 1))}\right)"


class Arange(Node):
    """Numbers `[T]` from 0 up to T - 1."""

    def _latex(self, printer) -> str:
        return range_latex(self.args[0], printer)

    def infer(self, same) -> Shape:
        return (self.args[0],)

    def run(self, size) -> torch.Tensor:
        return torch.arange(int(size(self.args[0])))


MAX_PRINTED = 3
"""Counted numbers that are all printed, at most."""


class ArangeFrom(Node):
    """Numbers `[n]` from a first one on, with a constant step: `ArangeFrom(n, 1, 1)` is
    1, 2, … n."""

    def __new__(cls, length, first, step):
        return super().__new__(cls, *map(sympy.sympify, (length, first, step)))

    def _latex(self, printer) -> str:
        length, first, step = self.args
        few = length.is_Integer and length <= MAX_PRINTED
        terms = [printer._print(sympy.expand(first + n * step)) for n in (range(length) if few else (0, 1, length - 1))]
        return r"\left({}\right)".format(", ".join(terms if few else (*terms[:2], r"\ldots", terms[2])))

    def infer(self, same) -> Shape:
        return (self.args[0],)

    def run(self, size) -> torch.Tensor:
        length, first, step = (int(size(bound)) for bound in self.args)
        return first + step * torch.arange(length)


class Identity(Node):
    r"""Matrix `[n, m]` with 1 on the diagonal, 0 elsewhere: `\mathbb{I}_{T}`, `\mathbb{I}_{S \times T}`."""

    def __new__(cls, rows, columns):
        return super().__new__(cls, *map(sympy.sympify, (rows, columns)))

    def _latex(self, printer) -> str:
        sides = self.args[:1] if self.args[0] == self.args[1] else self.args
        return r"\mathbb{I}_{" + r" \times ".join(map(printer._print, sides)) + "}"

    def infer(self, same) -> Shape:
        return self.args

    def run(self, size) -> torch.Tensor:
        return torch.eye(*(int(size(side)) for side in self.args), dtype=torch.float64)


class Linspace(Linear, _FunctionCall):
    """Evenly spaced numbers `[n]` from a first one to a last one: `Linspace(first, last, count=n)`."""

    word = r"\operatorname{linspace}"
    fields = ("count",)
    counted, alone = None, False

    def subscripts(self, printer) -> list[str]:
        return [setting_latex(self.get("count"), printer)]

    def infer(self, same, first, last) -> Shape:
        return (sympy.sympify(self.get("count")),)

    def run(self, size, first, last) -> torch.Tensor:
        return first + (last - first) * torch.linspace(0, 1, whole(self.get("count"), size), dtype=torch.float64)

    def _dependencies(self, size, cells, *ends) -> tuple[IndexSet, ...]:
        return tuple(through_broadcast(cells, ()) for _ in ends)


class Nonzero(_FunctionCall):
    """Places `[n, rank]` of all numbers but 0, row by row; `Nonzero(x, count=n)`."""

    word = r"\operatorname{nonzero}"
    fields = ("count",)

    def infer(self, same, shape) -> Shape:
        return sympy.sympify(self.get("count")), sympy.Integer(len(shape))

    def run(self, size, x) -> torch.Tensor:
        return x.nonzero()
