"""What a run makes of nothing: numbers that are counted up."""

from __future__ import annotations

import sympy
import torch

from tracer.equations.node import Node


def counted(length: sympy.Expr, printer) -> str:
    """The numbers from 0 up to one less than a size, as they are printed."""
    return rf"\left(0, 1, \ldots, {printer._print(sympy.expand(length - 1))}\right)"


class Counted(Node):
    """The numbers `[T]` from 0 up to T - 1."""

    def __new__(cls, length):
        return super().__new__(cls, sympy.sympify(length))

    def _latex(self, printer):
        return counted(self.args[0], printer)

    def infer(self, same):
        return (self.args[0],)

    def run(self, size):
        return torch.arange(int(size(self.args[0])))


FEW = 3
"""How many counted numbers are all printed."""


class CountedFrom(Node):
    """The numbers `[n]` from a first one on, each so much larger than the one before: `CountedFrom(n, 1, 1)` is
    1, 2, … n."""

    def __new__(cls, length, first, step):
        return super().__new__(cls, *map(sympy.sympify, (length, first, step)))

    def _latex(self, printer):
        length, first, step = self.args
        few = length.is_Integer and length <= FEW
        said = [printer._print(sympy.expand(first + n * step)) for n in (range(length) if few else (0, 1, length - 1))]
        return r"\left({}\right)".format(", ".join(said if few else (*said[:2], r"\ldots", said[2])))

    def infer(self, same):
        return (self.args[0],)

    def run(self, size):
        length, first, step = (int(size(one)) for one in self.args)
        return first + step * torch.arange(length)
