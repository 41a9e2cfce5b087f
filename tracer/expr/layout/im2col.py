r"""Windows of a picture as columns, and back: `\operatorname{im2col}_{3 \times 3,\,\text{pad }1}\left(X\right)`."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import sympy
import torch

from tracer.expr.function_call import _FunctionCall, setting_latex
from tracer.expr.index_sets import Axis, IndexSet, merge_axes, shape_of, split_axis, windows
from tracer.expr.node import Shape
from tracer.expr.provenance_rules import Copies, Linear


class _Columns(_FunctionCall):
    """`window`, `stride`, `padding` and `dilation` are two numbers each, for rows and columns."""

    fields: tuple[str, ...] = ("window", "stride", "padding", "dilation")

    def subscripts(self, printer) -> list[str]:
        notes = [r" \times ".join(setting_latex(size, printer) for size in self.get("window"))]
        notes += [rf"\downarrow {setting_latex(self.get('stride'), printer)}"] if set(self.get("stride")) != {1} else []
        for word, text, usual in (("padding", "pad", 0), ("dilation", "dilation", 1)):
            if any(size != usual for size in self.get(word)):
                notes.append(rf"\text{{{text} }}{setting_latex(self.get(word), printer)}")
        return notes

    def counts(self, sizes) -> list:
        """Return the number of windows along rows and columns of a picture."""
        return [
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, k, s, p, d in zip(sizes, *map(self.get, _Columns.fields), strict=True)
        ]

    def symbolic(self, sizes) -> list:
        """Return the window counts in symbols."""
        return [
            sympy.floor((size + 2 * p - d * (k - 1) - 1) / sympy.Integer(s)) + 1
            for size, k, s, p, d in zip(sizes, *map(self.get, _Columns.fields), strict=True)
        ]

    def taps(self, sizes):
        """Return, for each number of a window, its position in it, and which rows and columns of a picture of these
        sizes, with its padding, the windows have there."""
        counts = self.counts(sizes)
        for tap in product(*map(range, self.get("window"))):
            starts = zip(tap, counts, self.get("stride"), self.get("dilation"), strict=True)
            yield [slice(i * d, i * d + (count - 1) * s + 1, s) for i, count, s, d in starts]


class WindowColumns(Copies, _Columns):
    """Windows of a picture, each as one column: `[B, C, H, W]` to `[B, C·k², L]`; around the picture are zeros."""

    word = r"\operatorname{im2col}"

    def infer(self, same, shape) -> Shape:
        *lead, channels, height, width = shape
        return (*lead, channels * prod(self.get("window")), sympy.Mul(*self.symbolic((height, width))))

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
            s, p, d = (self.get(field)[i] for field in ("stride", "padding", "dilation"))
            axes.append(windows(where, lambda place, s=s, p=p: place * s - p, [d * tap for tap in taps[i]], n)[0])
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
        height, width = sizes = [
            length if isinstance(length, int) else round(float(size(length))) for length in self.get("sizes")
        ]
        down, right = self.get("padding")
        taps = x.reshape(*lead, rows // prod(self.get("window")), prod(self.get("window")), *self.counts(sizes))
        whole: Any = 0
        for number, (above, beside) in enumerate(self.taps(sizes)):
            wide = torch.zeros(*taps.shape[:-3], height + 2 * down, width + 2 * right, dtype=x.dtype)
            wide[..., above, beside] = taps.select(-3, number)
            whole = whole + wide
        return whole[..., down : down + height, right : right + width]

    def _dependencies(self, size, cells, x) -> tuple[IndexSet, ...]:
        shape = shape_of(x)
        *lead, channels, rows, columns = cells.axes
        sizes = [length if isinstance(length, int) else round(float(size(length))) for length in self.get("sizes")]
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
