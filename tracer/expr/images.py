"""Nodes on images: patches, grids and other resolutions."""

from __future__ import annotations

from math import isqrt, prod
from typing import Any

import sympy
import torch
from torch.nn.functional import unfold

from tracer.expr.convolutions import _AdaptivePooling, taps, window_latex
from tracer.expr.embeddings import Patches
from tracer.expr.function_call import _FunctionCall, decimal, setting_latex, tight, whole
from tracer.expr.index_sets import (
    AlongAxes,
    AxisReads,
    Copies,
    Indexing,
    IndexSet,
    Linear,
    Slices,
    shape_of,
    windows,
)
from tracer.expr.node import Node, Shape, ShapeError
from tracer.expr.rearrangements import Operator
from tracer.symbols.axes import Axis, merge_axes, split_axis

# Windows of a picture as columns, and back: `\operatorname{im2col}_{3 \times 3,\,\text{pad }1}\left(X\right)`.


class _Columns(_FunctionCall):
    """`window`, `stride`, `padding` and `dilation` are two numbers each, for rows and columns."""

    fields: tuple[str, ...] = ("window", "stride", "padding", "dilation")

    def subscripts(self, printer) -> list[str]:
        return window_latex(self, (1, 1), printer)

    def counts(self, sizes) -> list:
        """Return the number of windows along rows and columns of a picture, in numbers or in symbols."""
        return [
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, k, s, p, d in zip(sizes, *map(self.get, _Columns.fields), strict=True)
        ]

    def taps(self, sizes):
        """Yield, for each number of a window, which rows and columns of a picture of these sizes, with its padding, the
        windows have there."""
        for _, places in taps(self.get("window"), self.counts(sizes), self.get("stride"), self.get("dilation")):
            yield places


class WindowColumns(Copies, _Columns):
    """Windows of a picture, each as one column: `[B, C, H, W]` to `[B, C·k², L]`; around the picture are zeros."""

    word = r"\operatorname{im2col}"

    def infer(self, same, shape) -> Shape:
        *lead, channels, height, width = shape
        return (*lead, channels * prod(self.get("window")), sympy.Mul(*self.counts((height, width))))

    def run(self, size, x) -> torch.Tensor:
        *lead, channels, height, width = x.shape
        down, right = self.get("padding")
        wide = torch.zeros(*lead, channels, height + 2 * down, width + 2 * right, dtype=x.dtype)
        wide[..., down : down + height, right : right + width] = x
        taps = [wide[..., rows, columns].flatten(-2) for rows, columns in self.taps((height, width))]
        return torch.stack(taps, -2).reshape(*lead, channels * len(taps), -1)

    def _dependencies(self, size, cells, x) -> tuple[IndexSet, ...]:
        shape = shape_of(x)
        *lead, columns, places = cells.axes
        window, counts = self.get("window"), self.counts(shape[-2:])
        channels, *taps = split_axis(columns, (shape[-3], *window))
        axes = []
        for i, (where, n) in enumerate(zip(split_axis(places, counts), shape[-2:], strict=True)):
            moves = (self.get(field)[i] for field in ("stride", "padding", "dilation"))
            axes.append(windows(where, taps[i], n, *moves)[0])
        return (IndexSet.of(shape, (*lead, channels, *axes)),)


class WindowSums(Linear, _Columns):
    """Columns as the windows of a picture of `sizes`, added up where they overlap: `[B, C·k², L]` to `[B, C, H, W]`."""

    alone = False

    word = r"\operatorname{col2im}"
    fields = (*_Columns.fields, "sizes")

    def subscripts(self, printer) -> list[str]:
        sizes = r" \times ".join(setting_latex(size, printer) for size in self.get("sizes"))
        return [rf"\to {sizes}", *super().subscripts(printer)]

    def infer(self, same, shape) -> Shape:
        *lead, rows, _ = shape
        sizes = tuple(map(sympy.sympify, self.get("sizes")))
        return (*lead, rows / prod(self.get("window")), *sizes)

    def run(self, size, x) -> torch.Tensor:
        *lead, rows, _ = x.shape
        height, width = sizes = [whole(length, size) for length in self.get("sizes")]
        down, right = self.get("padding")
        taps = x.reshape(*lead, rows // prod(self.get("window")), prod(self.get("window")), *self.counts(sizes))
        total: Any = 0
        for number, (above, beside) in enumerate(self.taps(sizes)):
            wide = torch.zeros(*taps.shape[:-3], height + 2 * down, width + 2 * right, dtype=x.dtype)
            wide[..., above, beside] = taps.select(-3, number)
            total = total + wide
        return total[..., down : down + height, right : right + width]

    def _dependencies(self, size, cells, x) -> tuple[IndexSet, ...]:
        shape = shape_of(x)
        *lead, channels, rows, columns = cells.axes
        sizes = [whole(length, size) for length in self.get("sizes")]
        counts, window = self.counts(sizes), self.get("window")
        taps: list[Axis] = []
        places: list[Axis] = []
        for i, where in enumerate((rows, columns)):
            s, p, d = (self.get(field)[i] for field in ("stride", "padding", "dilation"))
            hits = [(t, n) for n in range(counts[i]) for t in range(window[i]) if n * s - p + t * d in where]
            taps.append(tuple(sorted({t for t, _ in hits})))
            places.append(tuple(sorted({n for _, n in hits})))
        rest = shape[-2] // prod(window)
        merged = merge_axes((channels, *taps), (rest, *window))
        return (IndexSet.of(shape, (*lead, merged, merge_axes(places, counts))),)


# Layouts between the sequence and the picture: parts of the sequence, tokens as a grid, cells as pixels, windows of a
# grid.


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
        return rf"{{{tight(self.args[0], printer)}}}_{{[{printer._print(self.args[1])}:]}}"

    def infer(self, same, shape) -> Shape:
        return (*shape[:-2], shape[-2] - self.args[1], shape[-1])

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


# Pictures at another size: `\operatorname{resize}_{H \times W,\,\text{bilinear}}\left(\mathbf{X}\right)`.


class Interpolate(AlongAxes, Linear, _FunctionCall):
    """Last axes at other sizes: `sizes`, one for each; `how` is "nearest", "exact", "linear" or "cubic".

    Cell i of m lies over `(i + ½) n/m - ½` of n (at `i (n - 1)/(m - 1)` with `corners`); "nearest" takes cell ⌊i n/m⌋,
    "exact" ⌊(i + ½) n/m⌋.
    A cubic one has four neighbours and Keys' kernel with a = -¾ (Keys 1981). `ratios` are given instead of n/m.
    """

    alone = False

    word = r"\operatorname{resize}"
    fields = ("sizes", "how", "corners", "ratios")

    def subscripts(self, printer) -> list[str]:
        notes = [r" \times ".join(setting_latex(number, printer) for number in self.get("sizes"))]
        notes += [rf"\text{{{self.get('how')}}}"] + [r"\text{corners}"] * bool(self.get("corners"))
        ratios = self.get("ratios")
        return notes + ([r"\text{step }" + r" \times ".join(decimal(number) for number in ratios)] if ratios else [])

    infer = _AdaptivePooling.infer

    def run(self, size, x) -> torch.Tensor:
        weights = self.along(size, x.shape)
        for axis, matrix in zip(range(-len(weights), 0), weights, strict=True):
            x = (x.movedim(axis, -1) @ matrix).movedim(-1, axis)
        return x

    def weights(self, n: int, m: int, ratio: float) -> torch.Tensor:
        """Return the weight of each of n cells in each of m, `[n, m]`."""
        i, how = torch.arange(m, dtype=torch.float64), self.get("how")
        if how in ("nearest", "exact"):
            cells = ((i + 0.5 * (how == "exact")) * ratio).floor().clamp(max=n - 1)
            return (torch.arange(n)[:, None] == cells).double()
        if self.get("corners"):
            at = i * ((n - 1) / (m - 1) if m > 1 else 0)
        else:
            at = (i + 0.5) * ratio - 0.5
            at = at.clamp(min=0) if how == "linear" else at
        first, matrix = at.floor(), torch.zeros(n, m, dtype=torch.float64)
        for step in (0, 1) if how == "linear" else (-1, 0, 1, 2):
            share = self.kernel((at - first - step).abs())
            cells = (first + step).clamp(0, n - 1).long()
            matrix += (torch.arange(n)[:, None] == cells) * share
        return matrix

    def kernel(self, away) -> torch.Tensor:
        if self.get("how") == "linear":
            return 1 - away
        a = -0.75
        near = (a + 2) * away**3 - (a + 3) * away**2 + 1
        far = a * (away**3 - 5 * away**2 + 8 * away - 4)
        return torch.where(away <= 1, near, far)

    def along(self, size, shape) -> list[torch.Tensor]:
        """Return, for each of the last axes, the weights of its cells in each cell of the result."""
        sizes = [whole(length, size) for length in self.get("sizes")]
        ratios = self.get("ratios") or [n / m for n, m in zip(shape[-len(sizes) :], sizes, strict=True)]
        return [self.weights(n, m, r) for n, m, r in zip(shape[-len(sizes) :], sizes, ratios, strict=True)]

    def read_along(self, size, shape, axes) -> AxisReads:
        weights = self.along(size, shape)
        return {
            i - len(weights): (weight[:, list(axes[i - len(weights)])] != 0).any(1).nonzero().flatten().tolist()
            for i, weight in enumerate(weights)
        }
