r"""Pooling, the mean or the largest number of each window: `\operatorname{maxpool}_{3 \times 3,\,\downarrow 2}`."""

from __future__ import annotations

from itertools import product

import sympy
import torch

from tracer.expr.function_call import _FunctionCall, setting_latex
from tracer.expr.index_sets import IndexSet, shape_of, windows
from tracer.expr.node import Shape
from tracer.expr.provenance_rules import ArgSelect, Linear, OfAll


class _Pooling(OfAll, _FunctionCall):
    """Base of pooling over windows of the last axes; `window`, `stride`, `padding` (and `dilation`) are tuples, one
    number for each axis.

    `up`: a last window that begins in the picture counts, though it ends outside.
    """

    fields: tuple[str, ...] = ("window", "stride", "padding", "dilation", "up")

    def subscripts(self, printer) -> list[str]:
        window, stride = self.get("window"), self.get("stride")
        notes = [r" \times ".join(setting_latex(size, printer) for size in window)]
        notes += [rf"\downarrow {setting_latex(stride, printer)}"] if stride != window else []
        for word, usual in (("padding", 0), ("dilation", 1)):
            if any(size != usual for size in self.get(word)):
                notes.append(rf"\text{{{word.removesuffix('ding')} }}{setting_latex(self.get(word), printer)}")
        return [*notes, *[r"\text{ceil}"] * bool(self.get("up"))]

    def infer(self, same, shape) -> Shape:
        window, stride, padding, dilation, up = map(self.get, _Pooling.fields)
        rank, sizes = len(window), []
        for size, k, s, p, d in zip(shape[-rank:], window, stride, padding, dilation, strict=True):
            moved = (size + 2 * p - d * (k - 1) - 1) / sympy.Integer(s)
            if up:
                last = sympy.floor((size + p - 1) / sympy.Integer(s))
                sizes.append(sympy.Min(sympy.ceiling(moved), last) + 1)
            else:
                sizes.append(sympy.floor(moved) + 1)
        return (*shape[:-rank], *sizes)

    def run(self, size, x) -> torch.Tensor:
        window, stride, padding, dilation, up = map(self.get, _Pooling.fields)
        rank = len(window)
        sizes, counts = x.shape[-rank:], []
        for n, k, s, p, d in zip(sizes, window, stride, padding, dilation, strict=True):
            moved = n + 2 * p - d * (k - 1) - 1
            counts.append(min(-(-moved // s), (n + p - 1) // s) + 1 if up else moved // s + 1)
        taps = []
        for tap in product(*map(range, window)):
            padded, inside = x, torch.ones((), dtype=torch.bool)
            for axis, (i, n, s, p, d, count) in enumerate(
                zip(tap, sizes, stride, padding, dilation, counts, strict=True)
            ):
                places = torch.arange(count) * s - p + i * d
                padded = padded.index_select(axis - rank, places.clamp(0, n - 1))
                there = ((places >= 0) & (places < n)).reshape(-1, *(1,) * (rank - 1 - axis))
                inside = inside & there
            taps.append((padded, inside))
        return self.reduce_taps(taps, [n + p for n, p in zip(sizes, padding, strict=True)], counts)

    def reduce_taps(self, taps, ends, counts) -> torch.Tensor:
        raise NotImplementedError

    def _dependencies(self, size, cells, x) -> tuple[IndexSet, ...]:
        shape, window = shape_of(x), self.get("window")
        rank = len(window)
        every = zip(
            cells.axes[-rank:], shape[-rank:], window, *map(self.get, ("stride", "padding", "dilation")), strict=True
        )
        axes = [
            windows(o, lambda i, s=s, p=p: i * s - p, [d * t for t in range(k)], n)[0] for o, n, k, s, p, d in every
        ]
        return (IndexSet.of(shape, (*cells.axes[:-rank], *axes)),)


class MaxPool(ArgSelect, _Pooling):
    """Largest number of each window."""

    word = r"\operatorname{maxpool}"

    def reduce_taps(self, taps, ends, counts) -> torch.Tensor:
        candidates = [torch.where(inside, x, -float("inf")) for x, inside in taps]
        return torch.stack(candidates).amax(0)

    def choose(self, cell, numbers) -> float:
        return max(numbers)


class AveragePool(Linear, _Pooling):
    """Mean of each window; `bare` leaves out the zeros around the picture, `divisor` is given instead of how many
    numbers there are."""

    alone = False

    word = r"\operatorname{avgpool}"
    fields = ("window", "stride", "padding", "dilation", "up", "bare", "divisor")

    def subscripts(self, printer) -> list[str]:
        divisor = self.get("divisor")
        notes = [r"\text{inside}"] * bool(self.get("bare") and any(self.get("padding")))
        return [*super().subscripts(printer), *notes, *([rf"\text{{by }}{divisor}"] if divisor else [])]

    def reduce_taps(self, taps, ends, counts) -> torch.Tensor:
        total = sum(torch.where(inside, x, 0) for x, inside in taps)
        if divisor := self.get("divisor"):
            return total / divisor
        if self.get("bare"):
            return total / sum(inside.double() for _, inside in taps)
        number = torch.ones((), dtype=torch.float64)
        for axis, (end, count) in enumerate(zip(ends, counts, strict=True)):
            k, s, p = (self.get(field)[axis] for field in ("window", "stride", "padding"))
            starts = torch.arange(count) * s - p
            wide = (starts + k).clamp(max=end) - starts
            number = number * wide.reshape(-1, *(1,) * (len(counts) - 1 - axis))
        return total / number


class _AdaptivePooling(OfAll, _FunctionCall):
    """Pooling to a fixed number of windows, from ⌊i n / m⌋ up to ⌈(i + 1) n / m⌉ along each axis; `sizes` are the m."""

    fields = ("sizes",)

    def subscripts(self, printer) -> list[str]:
        return [r"\to " + r" \times ".join(setting_latex(size, printer) for size in self.get("sizes"))]

    def infer(self, same, shape) -> Shape:
        sizes = tuple(map(sympy.sympify, self.get("sizes")))
        return (*shape[: -len(sizes)], *sizes)

    def run(self, size, x) -> torch.Tensor:
        sizes = [length if isinstance(length, int) else int(size(length)) for length in self.get("sizes")]
        for axis, m in zip(range(-len(sizes), 0), sizes, strict=True):
            x = self.along(x.movedim(axis, -1), m).movedim(-1, axis)
        return x

    def along(self, x, m) -> torch.Tensor:
        n = x.shape[-1]
        return torch.stack([self.of(x[..., i * n // m : -(-(i + 1) * n // m)]) for i in range(m)], -1)

    def _dependencies(self, size, cells, x) -> tuple[IndexSet, ...]:
        shape, rank = shape_of(x), len(self.get("sizes"))
        sizes = [length if isinstance(length, int) else int(size(length)) for length in self.get("sizes")]
        axes = [
            {place for i in outputs for place in range(i * n // m, -(-(i + 1) * n // m))}
            for outputs, n, m in zip(cells.axes[-rank:], shape[-rank:], sizes, strict=True)
        ]
        return (IndexSet.of(shape, (*cells.axes[:-rank], *axes)),)


class AdaptiveAverage(Linear, _AdaptivePooling):
    """Mean of each window."""

    alone = False

    word = r"\operatorname{avgpool}"

    def of(self, x) -> torch.Tensor:
        return x.sum(-1) / x.shape[-1]


class AdaptiveMax(ArgSelect, _AdaptivePooling):
    """Largest number of each window."""

    word = r"\operatorname{maxpool}"

    def of(self, x) -> torch.Tensor:
        return x.amax(-1)

    def choose(self, cell, numbers) -> float:
        return max(numbers)
