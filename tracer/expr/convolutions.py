"""Nodes of convolution and pooling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import sympy
import torch

from tracer.expr.function_call import COMMA, _FunctionCall, _WithFields, setting_latex, tight, whole
from tracer.expr.index_sets import (
    AlongAxes,
    ArgSelect,
    AxisReads,
    IndexSet,
    Linear,
    OfAll,
    Term,
    list_terms,
    plain,
    shape_of,
    windows,
)
from tracer.expr.node import Shape, ShapeError

# Convolutions over one, two or three axes, tap by tap: `W ⋆ X + b`, with stride, padding and the like below ⋆.


def taps(kernel, counts, stride, dilation) -> Iterator[tuple[tuple[int, ...], list[slice]]]:
    """Yield each position in a window, and the slices of a padded picture that so many windows have there."""
    for tap in product(*map(range, kernel)):
        every = zip(tap, counts, stride, dilation, strict=True)
        yield tap, [slice(d * i, d * i + s * (n - 1) + 1, s) for i, n, s, d in every]


class _Convolution(_WithFields):
    """Base of convolutions, `…(x, w, b)`: x is `[B, C, …]`, or without B; b, if present, has one number for each output
    channel."""

    needs_parens = True
    channel_broadcast = True
    multilinear = 2
    star = r"\star"

    def _latex(self, printer) -> str:
        x, w, *b = self.operands
        below = self.subscripts(printer)
        star = self.star + (rf"_{{{COMMA.join(below)}}}" if below else "")
        product = rf"{tight(w, printer)} {star} {tight(x, printer)}"
        return f"{product} + {b[0].factor_latex(printer)}" if b else product

    def non_default(self, printer, words: dict[str, str]) -> list[str]:
        """Return the settings that differ from the defaults, each with its word."""
        notes = []
        for field, word in words.items():
            value, usual = self.get(field), int(field in ("stride", "dilation", "groups"))
            if any(item != usual for item in (value if isinstance(value, tuple) else (value,))):
                notes.append(f"{word}{setting_latex(value, printer)}")
        return notes

    def run(self, size, x, w, b=None) -> torch.Tensor:
        total = self.convolve(x if x.dim() == w.dim() else x[None], w, whole(self.get("groups"), size), size)
        if b is not None:
            total = total + b.reshape(-1, *(1,) * (w.dim() - 2))
        return total if x.dim() == w.dim() else total[0]

    convolve: Callable[..., torch.Tensor]
    """`convolve(x, w, groups, size)` without the bias."""

    spatial: Callable[..., list[tuple[list[int], list[int]]]]
    """`spatial(outputs, sizes, kernel)` along each axis of the picture: the indices that are read, and the taps that
    read them."""
    channels: Callable[..., tuple]
    """`channels(size, outputs, inputs, w)`: the input channels that are read, and the indices along the first two axes
    of w."""

    def split(self, size, outputs: int, channels) -> tuple[list[int], int]:
        """Return the groups of these output channels, and the number of output channels in a group."""
        each = outputs // whole(self.get("groups"), size)
        return sorted({k // each for k in channels}), each

    def _dependencies(self, size, cells, x, w, *b) -> tuple[IndexSet, ...]:
        x, w, *b = map(shape_of, (x, w, *b))
        outputs = cells.axes[1 - len(w)]
        batch = cells.axes[: len(x) + 1 - len(w)]
        channels, kernels = self.channels(size, outputs, x[1 - len(w)], w)
        spatial = self.spatial(cells.axes[2 - len(w) :], x[2 - len(w) :], w[2:])
        places, taps = zip(*spatial, strict=True)
        return (
            IndexSet.of(x, (*batch, channels, *places)),
            IndexSet.of(w, (*kernels, *taps)),
            *(IndexSet.of(shape, [outputs]) for shape in b),
        )

    def contributions(self, size, cell, x, w, *b) -> list[Term]:
        operand_sets = self.dependencies(size, IndexSet.single([i + 1 for i in cell], cell), x, w, *b)
        kernel = w.dim() - 2
        channel, pairs = cell[-1 - kernel], []
        for at in list_terms(operand_sets[:1], (x,)):
            tap = self.tap(
                size, channel, cell[-kernel:], at.index[-1 - kernel :], shape_of(x)[-1 - kernel], shape_of(w)
            )
            pairs.append((at, tap, plain(w[tap])))
        return [
            *(at._replace(share=at.value * weight, factor=weight) for at, _, weight in pairs),
            *(Term(1, tap, weight, at.value * weight, at.value, False) for at, tap, weight in pairs),
            *(term._replace(share=term.value, factor=1.0) for term in list_terms(operand_sets[2:], b, 2)),
        ]


class Convolution(_Convolution):
    """Each output cell is the sum of a window's numbers times a kernel's (Dumoulin and Visin 2016).

    `Convolution(x, w, b, stride=…, before=…, after=…, dilation=…, groups=…)`; w is `[K, C/groups, …]`, `before` and
    `after` are how many zeros stand around x along each axis. A stride may be a size: that of a kernel which cuts x
    into patches, `[…, H]` to `[…, H/P]`.
    """

    fields = ("stride", "before", "after", "dilation", "groups")

    def subscripts(self, printer) -> list[str]:
        words = {
            "stride": r"\downarrow ",
            "before": r"\text{pad }",
            "dilation": r"\text{dilation }",
            "groups": r"\text{groups }",
        }
        if self.get("before") != self.get("after"):
            del words["before"]
            words |= {"before": r"\text{before }", "after": r"\text{after }"}
        return self.non_default(printer, words)

    def infer(self, same, x, w, b=()) -> Shape:
        if not same(x[1 - len(w)], w[1] * self.get("groups")):
            raise ShapeError(f"kernels {w} in {self.get('groups')} groups don't fit {x}")
        sizes = []
        for size, kernel, s, p, q, d in zip(x[2 - len(w) :], w[2:], *map(self.get, self.fields[:4]), strict=True):
            cuts = not isinstance(s, int)  # the axis into pieces
            length = (size + p + q - d * (kernel - 1) - 1) / sympy.sympify(s)
            sizes.append(size / kernel if cuts else sympy.floor(length) + 1)
        return (*x[: 1 - len(w)], w[0], *sizes)

    def convolve(self, x, w, groups: int, size) -> torch.Tensor:
        stride, before, after, dilation = map(self.get, self.fields[:4])
        stride = [whole(step, size) for step in stride]
        batch, channels, *sizes = x.shape
        wide = torch.zeros(
            batch, channels, *(p + n + q for p, n, q in zip(before, sizes, after, strict=True)), dtype=x.dtype
        )
        wide[(..., *(slice(p, p + n) for p, n in zip(before, sizes, strict=True)))] = x
        kernel = w.shape[2:]
        counts = [
            (n - d * (k - 1) - 1) // s + 1 for n, d, k, s in zip(wide.shape[2:], dilation, kernel, stride, strict=True)
        ]
        total = torch.zeros((), dtype=x.dtype)
        for tap, places in taps(kernel, counts, stride, dilation):
            part = wide[(..., *places)].reshape(batch, groups, channels // groups, -1)
            weights = w[(..., *tap)].reshape(groups, -1, channels // groups)
            total = total + torch.einsum("bgcn,gkc->bgkn", part, weights)
        return total.reshape(batch, len(w), *counts)

    def channels(self, size, outputs, inputs, w) -> tuple:
        groups, _ = self.split(size, w[0], outputs)
        return [g * w[1] + c for g in groups for c in range(w[1])], (outputs, None)

    def spatial(self, outputs, sizes, kernel) -> list[tuple[list[int], list[int]]]:
        stride, before, _, dilation = map(self.get, self.fields[:4])
        every = zip(outputs, map(range, kernel), sizes, stride, before, dilation, strict=True)
        return [windows(*axis) for axis in every]

    def tap(self, size, outputs, cell, place, inputs, w) -> tuple[int, ...]:
        """Return the cell of w that is multiplied by a number of x."""
        stride, before, _, dilation = map(self.get, self.fields[:4])
        every = zip(cell, place[1:], stride, before, dilation, strict=True)
        return (outputs, place[0] % w[1], *((i - (o * s - p)) // d for o, i, s, p, d in every))


class TransposedConvolution(_Convolution):
    """Each number of x is spread over a window by a kernel, and overlapping windows are summed: the gradient of a
    convolution.

    `TransposedConvolution(x, w, b, stride=…, padding=…, extra=…, dilation=…, groups=…)`; w is `[C, K/groups, …]`,
    `padding` cells are cut off on both sides, `extra` of them stay at the end.
    """

    star = r"\star^{\top}"
    fields = ("stride", "padding", "extra", "dilation", "groups")

    def subscripts(self, printer) -> list[str]:
        words = {"stride": r"\uparrow ", "padding": r"\text{pad }", "extra": r"\text{extra }"}
        words |= {"dilation": r"\text{dilation }", "groups": r"\text{groups }"}
        return self.non_default(printer, words)

    def infer(self, same, x, w, b=()) -> Shape:
        if not same(x[1 - len(w)], w[0]):
            raise ShapeError(f"transposed kernels {w} don't fit {x}")
        sizes = []
        for size, kernel, s, p, extra, d in zip(x[2 - len(w) :], w[2:], *map(self.get, self.fields[:4]), strict=True):
            sizes.append((size - 1) * s - 2 * p + d * (kernel - 1) + extra + 1)
        return (*x[: 1 - len(w)], w[1] * self.get("groups"), *sizes)

    def convolve(self, x, w, groups: int, size) -> torch.Tensor:
        stride, padding, extra, dilation = map(self.get, self.fields[:4])
        batch, channels, *sizes = x.shape
        kernel, channels_made = w.shape[2:], w.shape[1] * groups
        every = zip(sizes, stride, dilation, kernel, extra, strict=True)
        wide = [(n - 1) * s + d * (k - 1) + 1 + e for n, s, d, k, e in every]
        total = torch.zeros(batch, channels_made, *wide, dtype=x.dtype)
        parts = x.reshape(batch, groups, channels // groups, -1)
        for tap, places in taps(kernel, sizes, stride, dilation):
            weights = w[(..., *tap)].reshape(groups, channels // groups, -1)
            part = torch.einsum("bgcn,gck->bgkn", parts, weights).reshape(batch, channels_made, *sizes)
            total[(..., *places)] += part
        return total[(..., *(slice(p, n - p) for p, n in zip(padding, wide, strict=True)))]

    def channels(self, size, outputs, inputs, w) -> tuple:
        groups = whole(self.get("groups"), size)
        group_channels, each = self.split(size, w[1] * groups, outputs)
        channels = [g * (inputs // groups) + c for g in group_channels for c in range(inputs // groups)]
        return channels, (channels, [k % each for k in outputs])

    def spatial(self, outputs, sizes, kernel) -> list[tuple[list[int], list[int]]]:
        stride, padding, _, dilation = map(self.get, self.fields[:4])
        axes = []
        for cells, n, k, s, p, d in zip(outputs, sizes, kernel, stride, padding, dilation, strict=True):
            pairs = [((o + p - d * t) // s, t) for o in cells for t in range(k) if (o + p - d * t) % s == 0]
            pairs = [(i, t) for i, t in pairs if 0 <= i < n]
            axes.append(([i for i, _ in pairs], [t for _, t in pairs]))
        return axes

    def tap(self, size, outputs, cell, place, inputs, w) -> tuple[int, ...]:
        """Return the cell of w that spreads a number of x to this cell."""
        stride, padding, _, dilation = map(self.get, self.fields[:4])
        every = zip(cell, place[1:], stride, padding, dilation, strict=True)
        return (place[0], outputs % w[1], *((o + p - i * s) // d for o, i, s, p, d in every))


# Pooling, the mean or the largest number of each window: `\operatorname{maxpool}_{3 \times 3,\,\downarrow 2}`.


def window_latex(node: _FunctionCall, usual: tuple[int, ...], printer) -> list[str]:
    """Return the settings of windows as LaTeX; `usual` is the stride that is not printed."""
    notes = [r" \times ".join(setting_latex(size, printer) for size in node.get("window"))]
    for field, text, default in (
        ("stride", r"\downarrow ", usual),
        ("padding", r"\text{pad }", (0,) * len(usual)),
        ("dilation", r"\text{dilation }", (1,) * len(usual)),
    ):
        notes += [text + setting_latex(node.get(field), printer)] if node.get(field) != default else []
    return notes


class _Pooling(AlongAxes, OfAll, _FunctionCall):
    """Base of pooling over windows of the last axes; `window`, `stride`, `padding` (and `dilation`) are tuples, one
    number for each axis.

    `up`: a last window that begins in the picture counts, though it ends outside.
    """

    fields: tuple[str, ...] = ("window", "stride", "padding", "dilation", "up")

    def subscripts(self, printer) -> list[str]:
        return [*window_latex(self, self.get("window"), printer), *[r"\text{ceil}"] * bool(self.get("up"))]

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

    reduce_taps: Callable[..., torch.Tensor]
    """`reduce_taps(taps, ends, counts)` reduces the numbers of each window."""

    def read_along(self, size, shape, axes) -> AxisReads:
        window, rank = self.get("window"), len(self.get("window"))
        every = zip(axes[-rank:], window, shape[-rank:], *map(self.get, ("stride", "padding", "dilation")), strict=True)
        return {i - rank: windows(outputs, range(k), *rest)[0] for i, (outputs, k, *rest) in enumerate(every)}


class MaxPool(ArgSelect, _Pooling):
    """Largest number of each window."""

    word = r"\operatorname{maxpool}"

    def reduce_taps(self, taps, ends, counts) -> torch.Tensor:
        candidates = [torch.where(inside, x, -float("inf")) for x, inside in taps]
        return torch.stack(candidates).amax(0)


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


class _AdaptivePooling(AlongAxes, OfAll, _FunctionCall):
    """Pooling to a fixed number of windows, from ⌊i n / m⌋ up to ⌈(i + 1) n / m⌉ along each axis; `sizes` are the m."""

    fields = ("sizes",)

    def subscripts(self, printer) -> list[str]:
        return [r"\to " + r" \times ".join(setting_latex(size, printer) for size in self.get("sizes"))]

    def infer(self, same, shape) -> Shape:
        sizes = tuple(map(sympy.sympify, self.get("sizes")))
        return (*shape[: -len(sizes)], *sizes)

    def run(self, size, x) -> torch.Tensor:
        sizes = [whole(length, size) for length in self.get("sizes")]
        for axis, m in zip(range(-len(sizes), 0), sizes, strict=True):
            x = self.along(x.movedim(axis, -1), m).movedim(-1, axis)
        return x

    def along(self, x, m) -> torch.Tensor:
        n = x.shape[-1]
        return torch.stack([self.of(x[..., i * n // m : -(-(i + 1) * n // m)]) for i in range(m)], -1)

    def read_along(self, size, shape, axes) -> AxisReads:
        sizes = [whole(length, size) for length in self.get("sizes")]
        every = zip(axes[-len(sizes) :], shape[-len(sizes) :], sizes, strict=True)
        return {
            axis - len(sizes): {place for i in outputs for place in range(i * n // m, -(-(i + 1) * n // m))}
            for axis, (outputs, n, m) in enumerate(every)
        }


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
