"""From pixels to tokens, and tokens to one sequence."""

from __future__ import annotations

import sympy
import torch

from tracer.expr.index_sets import IndexSet, align_axes, indices_in, narrow, shape_of
from tracer.expr.node import Node, Shape, ShapeError, broadcast
from tracer.expr.provenance_rules import Copies, Indexing, Layout, Slices


class Patches(Layout, Node):
    """Unfold operator: `[B, C, H, W]` to `[B, N, P²C]`, patches in raster order, each flattened channels-last.

    It is printed with the order of a patch's numbers, hwc: row, column, channel.

    Source: Dosovitskiy et al. 2021, section 3.1.
    """

    order = "hwc"

    def _latex(self, printer) -> str:
        image, side = map(printer._print, self.args)
        return rf"\mathcal{{U}}^{{\mathrm{{{self.order}}}}}_{{{side}}}\left({image}\right)"

    def infer(self, same, shape) -> Shape:
        if len(shape) < 3:
            raise ShapeError(f"{shape} is not an image, expected [B, C, H, W]")
        channels, height, width = shape[-3:]
        side = self.args[1]
        return (*shape[:-3], height * width / side**2, side**2 * channels)

    def run(self, size, image) -> torch.Tensor:
        side = int(size(self.args[1]))
        rows = image.unfold(-2, side, side).unfold(-2, side, side)  # [B, C, H/P, W/P, P, P]
        return rows.movedim(-5, -1).flatten(-3).flatten(-3, -2)

    def pattern(self, size, shape) -> tuple[str, dict[str, int]]:
        side = int(size(self.args[1]))
        return "... c (n p) (m q) -> ... (n m) (p q c)", {"p": side, "q": side}


class Lookup(Copies, Node):
    """Rows of a matrix by their numbers: `E[t]`, `[V, D]` and `[B, T]` to `[B, T, D]`."""

    def _latex(self, printer) -> str:
        matrix, numbers = self.args
        return rf"{matrix.factor_latex(printer)}\left[{printer._print(numbers)}\right]"

    def infer(self, same, matrix, numbers) -> Shape:
        return (*numbers, matrix[-1])

    def run(self, size, matrix, numbers) -> torch.Tensor:
        return matrix[numbers]

    def _dependencies(self, size, cells, matrix, numbers) -> tuple[IndexSet, ...]:
        shape, index_shape = shape_of(matrix), shape_of(numbers)
        where = IndexSet.of(index_shape, cells.axes[:-1])
        return IndexSet.of(shape, (indices_in(where, numbers, shape[0]), cells.axes[-1])), where


class Rows(Indexing, Node):
    """First rows of a longer table: `Rows(P, T)` is `P[:T]`."""

    def _latex(self, printer) -> str:
        table = self.args[0].factor_latex(printer)
        table = rf"{{{table}}}" if "_" in table else table
        return rf"{table}_{{[:{printer._print(self.args[1])}]}}"

    def infer(self, same, shape) -> Shape:
        return (*shape[:-2], self.args[1], shape[-1])

    def run(self, size, table) -> torch.Tensor:
        return table[..., : int(size(self.args[1])), :]

    def slices(self, size, shape) -> Slices:
        return (*[slice(None)] * (len(shape) - 2), slice(0, int(size(self.args[1]))), slice(None))


class ConcatTokens(Copies, Node):
    """Two sequences, one after the other: `[B, n, D]` and `[B, m, D]` to `[B, n+m, D]`; a vector is one token."""

    def _latex(self, printer) -> str:
        return r"\left[" + r"\ ;\ ".join(printer._print(argument) for argument in self.args) + r"\right]"

    def infer(self, same, *shapes) -> Shape:
        shapes = [shape if len(shape) > 1 else (sympy.Integer(1), *shape) for shape in shapes]
        length = sum((shape[-2] for shape in shapes), sympy.Integer(0))
        lead = broadcast(same, *(shape[:-2] for shape in shapes))
        return (*lead, length, broadcast(same, *(shape[-1:] for shape in shapes))[0])

    def run(self, size, *tensors) -> torch.Tensor:
        tensors = [tensor if tensor.dim() > 1 else tensor[None] for tensor in tensors]
        lead = torch.broadcast_shapes(*(tensor.shape[:-2] for tensor in tensors))
        return torch.cat([tensor.expand(*lead, *tensor.shape[-2:]) for tensor in tensors], dim=-2)

    sources = 2

    def _dependencies(self, size, cells, *operands) -> tuple[IndexSet, ...]:
        parts, start = [], 0
        for shape in map(shape_of, operands):
            wide = shape if len(shape) > 1 else (1, *shape)
            part = narrow(cells, len(cells.axes) - 2, start, wide[-2])
            start += wide[-2]
            if part.axes is None:
                parts.append(IndexSet.none(shape))
            else:
                parts.append(IndexSet.of(shape, align_axes(part.axes, wide)[len(wide) - len(shape) :]))
        return tuple(parts)
