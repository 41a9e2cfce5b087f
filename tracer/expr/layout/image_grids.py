"""Layouts between the sequence and the picture: parts of the sequence, tokens as a grid, cells as pixels, windows of a
grid."""

from __future__ import annotations

from math import isqrt

import sympy
import torch
from torch.nn.functional import unfold

from tracer.expr.nn.token_embedding import Patches
from tracer.expr.node import Node, Shape, ShapeError
from tracer.expr.provenance_rules import Indexing, Layout, Slices


class Operator(Layout):
    """A layout that is printed as an operator with its sizes below, such as `grid` with 4 × 6."""

    NAME = ""
    args: tuple[sympy.Basic, ...]

    def _latex(self, printer) -> str:
        tokens, *sizes = map(printer._print, self.args)
        below = r" \times ".join(sizes)
        return rf"\operatorname{{{self.NAME}}}_{{{below}}}\left({tokens}\right)"


class Unfold(Patches):
    """Unfold operator: `[B, C, H, W]` to `[B, N, CP²]`, patches in raster order, each flattened channels-first.

    `Unfold(image, P)` is what `torch.nn.functional.unfold` gives, transposed. It is printed with the order of a patch's
    numbers, chw: channel, row, column; `Patches` flattens channels-last, hwc.
    """

    order = "chw"

    def run(self, size, image) -> torch.Tensor:
        side = int(size(self.args[1]))
        return unfold(image, side, stride=side).transpose(-2, -1)

    def pattern(self, size, shape) -> tuple[str, dict[str, int]]:
        side = int(size(self.args[1]))
        return "... c (n p) (m q) -> ... (n m) (c p q)", {"p": side, "q": side}


class RowsFrom(Indexing, Node):
    """Rows of a sequence from row n on, counted from 0: `RowsFrom(X, n)` is `X[:, n:]`."""

    def _latex(self, printer) -> str:
        return rf"{{{self.args[0].factor_latex(printer)}}}_{{[{printer._print(self.args[1])}:]}}"

    def infer(self, same, shape) -> Shape:
        return (*shape[:-2], shape[-2] - self.args[1], shape[-1])

    def run(self, size, sequence) -> torch.Tensor:
        return sequence[..., int(size(self.args[1])) :, :]

    def slices(self, size, shape) -> Slices:
        return (*[slice(None)] * (len(shape) - 2), slice(int(size(self.args[1])), None), slice(None))


class Grid(Operator, Node):
    """Tokens laid out in rows of the picture: `[B, N, D]` to `[B, n, m, D]` with N = n·m, in raster order."""

    NAME = "grid"

    def infer(self, same, shape) -> Shape:
        rows, columns = self.args[1:]
        if not same(shape[-2], rows * columns):
            raise ShapeError(f"{shape} as a grid of {rows} by {columns}: {shape[-2]} is not {rows * columns}")
        return (*shape[:-2], rows, columns, shape[-1])

    def run(self, size, tokens) -> torch.Tensor:
        return tokens.unflatten(-2, tuple(round(size(argument)) for argument in self.args[1:]))

    def pattern(self, size, shape) -> tuple[str, dict[str, int]]:
        return "... (n m) d -> ... n m d", {"n": round(size(self.args[1]))}


class Fold(Operator, Node):
    """Inverse of cutting to patches: `[B, H/P, W/P, P²K]`, each cell channels-last, to `[B, H, W, K]`."""

    NAME = "fold"

    def infer(self, same, shape) -> Shape:
        rows, columns, numbers = shape[-3:]
        side = self.args[1]
        return (*shape[:-3], rows * side, columns * side, sympy.cancel(numbers / side**2))

    def run(self, size, cells) -> torch.Tensor:
        side = int(size(self.args[1]))
        rows = [
            torch.cat([cell.unflatten(-1, (side, side, -1)) for cell in row.unbind(-2)], dim=-2)
            for row in cells.unbind(-3)
        ]
        return torch.cat(rows, dim=-3)

    def pattern(self, size, shape) -> tuple[str, dict[str, int]]:
        side = int(size(self.args[1]))
        return "... n m (p q k) -> ... (n p) (m q) k", {"p": side, "q": side}


class WindowPartition(Operator, Node):
    """A grid cut into square windows: `[B, n, m, D]` to `[B·nm/w², w², D]`, each a sequence of its own.

    Source: Liu et al. 2021, section 3.2.
    """

    NAME = "windows"

    def infer(self, same, shape) -> Shape:
        if len(shape) != 4:
            raise ShapeError(f"{shape} is not a grid, expected [B, n, m, D]")
        batch, rows, columns, width = shape
        area = self.args[1] ** 2
        return batch * rows * columns / area, area, width

    def run(self, size, grid) -> torch.Tensor:
        side = round(size(self.args[1]))
        rows = grid.unfold(1, side, side).unfold(2, side, side)  # [B, n/w, m/w, D, w, w]
        return rows.movedim(3, -1).flatten(3, 4).flatten(0, 2)

    def pattern(self, size, shape) -> tuple[str, dict[str, int]]:
        side = round(size(self.args[1]))
        return "b (n p) (m q) d -> (b n m) (p q) d", {"p": side, "q": side}


class WindowReverse(Operator, Node):
    """Inverse of cutting into windows: `[B·nm/w², w², D]` to `[B, n, m, D]`."""

    NAME = "unwindow"

    def infer(self, same, shape) -> Shape:
        if len(shape) != 3:
            raise ShapeError(f"{shape} are not windows, expected [B·nm/w², w², D]")
        count, area, width = shape
        rows, columns = self.args[1:]
        return sympy.cancel(count * area / (rows * columns)), rows, columns, width

    def run(self, size, windows) -> torch.Tensor:
        rows, columns = (round(size(argument)) for argument in self.args[1:])
        side = isqrt(windows.shape[1])
        cells = windows.reshape(-1, rows // side, columns // side, side, side, windows.shape[-1])
        return cells.permute(0, 1, 3, 2, 4, 5).flatten(3, 4).flatten(1, 2)

    def pattern(self, size, shape) -> tuple[str, dict[str, int]]:
        rows, columns = (round(size(argument)) for argument in self.args[1:])
        side = isqrt(shape[1])
        sizes = {"p": side, "q": side, "n": rows // side, "m": columns // side}
        return "(b n m) (p q) d -> b (n p) (m q) d", sizes
