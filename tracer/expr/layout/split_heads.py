"""Splitting the width into heads, and joining the heads again (Vaswani et al. 2017, section 3.2.2)."""

from __future__ import annotations

import sympy
import torch

from tracer.expr.node import Node, Shape, ShapeError
from tracer.expr.provenance_rules import Layout
from tracer.symbols.notation import symbol


class SplitHeads(Layout, Node):
    """`[B, S, h·d_k]` to `[B, h, S, d_k]`: head i takes columns i·d_k to (i+1)·d_k."""

    def _latex(self, printer) -> str:
        return rf"\operatorname{{heads}}_{{{printer._print(self.args[1])}}}\left({printer._print(self.args[0])}\right)"

    def infer(self, same, shape) -> Shape:
        if len(shape) < 2:
            raise ShapeError(f"{shape} has no sequence and width to split into heads")
        return (*shape[:-2], self.args[1], shape[-2], sympy.cancel(shape[-1] / self.args[1]))

    def run(self, size, tensor) -> torch.Tensor:
        return tensor.unflatten(-1, (int(size(self.args[1])), -1)).transpose(-3, -2)

    def pattern(self, size, shape) -> tuple[str, dict[str, int]]:
        return "... s (h d) -> ... h s d", {"h": int(size(self.args[1]))}


class MergeHeads(Layout, Node):
    """`[B, h, S, d_k]` to `[B, S, h·d_k]`: the heads side by side, h of them or as many as `heads` says."""

    def __new__(cls, tensor, heads="h"):
        return super().__new__(cls, tensor, symbol(heads) if isinstance(heads, str) else sympy.sympify(heads))

    def _latex(self, printer) -> str:
        heads = printer._print(self.args[1])
        return rf"\operatorname{{concat}}_{{{heads}}}\left({printer._print(self.args[0])}\right)"

    def infer(self, same, shape) -> Shape:
        return (*shape[:-3], shape[-2], shape[-3] * shape[-1])

    def run(self, size, tensor) -> torch.Tensor:
        return tensor.transpose(-3, -2).flatten(-2)

    def pattern(self, size, shape) -> tuple[str, dict[str, int]]:
        return "... h s d -> ... s (h d)", {}
