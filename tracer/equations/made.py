"""What a run makes of nothing: numbers that are counted up."""

from __future__ import annotations

import sympy
import torch

from tracer.equations.node import Node


class Counted(Node):
    """The numbers `[T]` from 0 up to T - 1."""

    def __new__(cls, length):
        return super().__new__(cls, sympy.sympify(length))

    def _latex(self, printer):
        return rf"\left(0, 1, \ldots, {printer._print(self.args[0])} - 1\right)"

    def infer(self, same):
        return (self.args[0],)

    def run(self, size):
        return torch.arange(int(size(self.args[0])))
