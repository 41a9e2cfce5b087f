"""Layouts of the libraries: kernels as matrices, parts of packed products, and sequences with the batch as second
axis."""

from __future__ import annotations

import sympy
import torch

from tracer.expr.layout.arange import range_latex
from tracer.expr.node import Node, Shape, ShapeError, with_subscript
from tracer.expr.provenance_rules import BroadcastLeading, Indexing, Layout, Slices


class FlattenKernel(Layout, Node):
    """Kernels of a strided convolution as the matrix that patches are multiplied by: `[D, C, P, P]` to
    `[CP², D]`, in the order of `Unfold`."""

    def _latex(self, printer) -> str:
        return rf"\operatorname{{unroll}}\left({printer._print(self.args[0])}\right)"

    def infer(self, same, shape) -> Shape:
        if len(shape) != 4:
            raise ShapeError(f"{shape} are not kernels, expected [D, C, P, P]")
        return (sympy.prod(shape[1:]), shape[0])

    def run(self, size, kernels) -> torch.Tensor:
        return kernels.flatten(1).T

    def pattern(self, size, shape) -> tuple[str, dict[str, int]]:
        return "k c p q -> (c p q) k", {}


class Columns(Indexing, Node):
    """Columns from `start` up to `stop` of the last axis, counted from 0: the part Q of a packed `QKV`."""

    def _latex(self, printer) -> str:
        start, stop = map(printer._print, self.args[1:])
        return rf"{{{self.args[0].factor_latex(printer)}}}_{{[\ldots,\,{start}:{stop}]}}"

    def infer(self, same, shape) -> Shape:
        return (*shape[:-1], self.args[2] - self.args[1])

    def run(self, size, tensor) -> torch.Tensor:
        return tensor[..., int(size(self.args[1])) : int(size(self.args[2]))]

    def slices(self, size, shape) -> Slices:
        return (*[slice(None)] * (len(shape) - 1), slice(*(int(size(end)) for end in self.args[1:])))


class TransposeBatchSeq(Layout, Node):
    """First two axes exchanged: `TransposeBatchSeq(X, B, S)` makes `[B, S, D]` to `[S, B, D]`, the layout inside
    `nn.MultiheadAttention`."""

    def _latex(self, printer) -> str:
        first, second = map(printer._print, self.args[1:])
        return rf"{{{self.args[0].factor_latex(printer)}}}^{{{first} \leftrightarrow {second}}}"

    def infer(self, same, shape) -> Shape:
        if not all(map(same, shape[:2], self.args[1:])):
            raise ShapeError(f"{shape} has no axes {self.args[1]} and {self.args[2]} in front")
        return (shape[1], shape[0], *shape[2:])

    def run(self, size, tensor) -> torch.Tensor:
        return tensor.transpose(0, 1)

    def pattern(self, size, shape) -> tuple[str, dict[str, int]]:
        return "a b ... -> b a ...", {}


class Squeeze(Indexing, Node):
    """A parameter without its axes of size 1 in front: `[1, 1, D]` to `[D]`."""

    def _latex(self, printer) -> str:
        return printer._print(self.args[0])

    def infer(self, same, shape) -> Shape:
        return shape[int(self.args[1]) :]

    def run(self, size, tensor) -> torch.Tensor:
        for _ in range(int(self.args[1])):
            tensor = tensor.squeeze(0)
        return tensor

    def slices(self, size, shape) -> Slices:
        axes = int(self.args[1])
        return (*[0] * axes, *[slice(None)] * (len(shape) - axes))


class ExpandLeading(BroadcastLeading, Node):
    """Repetition of a tensor for each of a batch: `ExpandLeading(x, B, 1)` makes `[T, T]` to `[B, 1, T, T]`."""

    @property
    def cells(self) -> str:
        return self.args[0].cells

    def _latex(self, printer) -> str:
        return printer._print(self.args[0])

    def infer(self, same, shape) -> Shape:
        return (*self.args[1:], *shape)

    def run(self, size, tensor) -> torch.Tensor:
        return tensor.expand(*(int(size(argument)) for argument in self.args[1:]), *tensor.shape)


class PositionIds(Node):
    """Position numbers, `[1, T]`: 0, 1, … T - 1."""

    def _latex(self, printer) -> str:
        return range_latex(self.args[0], printer)

    def infer(self, same) -> Shape:
        return (sympy.Integer(1), self.args[0])

    def run(self, size) -> torch.Tensor:
        return torch.arange(int(size(self.args[0])))[None]


class IsContiguous(Node):
    """1 if the position numbers increase by one throughout, so that the row holds one text, else 0; no axes."""

    def _latex(self, printer) -> str:
        place = printer._print(self.args[0])
        current, before = with_subscript(place, "j"), with_subscript(place, "j - 1")
        return rf"\left[\,{current} - {before} = 1 \text{{ for all }} j\,\right]"

    def infer(self, same, shape) -> Shape:
        return ()

    def run(self, size, places) -> torch.Tensor:
        return (places.diff() == 1).all().double()
