"""Tensors concatenated, stacked, padded, flipped and cut to triangles."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import sympy
import torch

from tracer.expr.function_call import Scalar, _FunctionCall, _WithFields, decimal, setting_latex, whole
from tracer.expr.index_sets import IndexSet, narrow, replace_axes, shape_of, through_broadcast
from tracer.expr.math.reductions import along
from tracer.expr.node import Shape, ShapeError
from tracer.expr.provenance_rules import Copies


class Concat(Copies, _WithFields):
    r"""Tensors of one rank one after the other along an axis: `[a , b]` along the last, `[a ; b]` along the one before
    it, and `[a ; b]_{\text{axis }1}` along any other, counted from 0. `Concat(*tensors, axis=1, rank=4)`."""

    fields = ("axis", "rank")

    def _latex(self, printer) -> str:
        axis, rank = self.get("axis"), self.get("rank")
        sign = r"\ ,\ " if axis == rank - 1 else r"\ ;\ "
        below = rf"_{{\text{{axis }}{axis}}}" if axis < rank - 2 else ""
        return r"\left[" + sign.join(printer._print(operand) for operand in self.operands) + rf"\right]{below}"

    def infer(self, same, *shapes) -> Shape:
        axis = self.get("axis")
        for shape in shapes[1:]:
            if len(shape) != len(shapes[0]) or not all(
                i == axis or same(a, b) for i, (a, b) in enumerate(zip(shapes[0], shape, strict=True))
            ):
                raise ShapeError(f"{shapes[0]} and {shape} can't be joined along axis {axis}")
        return tuple(sum(s[i] for s in shapes) if i == axis else n for i, n in enumerate(shapes[0]))

    def run(self, size, *tensors) -> torch.Tensor:
        axis = self.get("axis")
        shape = list(tensors[0].shape)
        shape[axis] = sum(tensor.shape[axis] for tensor in tensors)
        joined = torch.empty(shape, dtype=reduce(torch.promote_types, (tensor.dtype for tensor in tensors)))
        start = 0
        for tensor in tensors:
            stop = start + tensor.shape[axis]
            joined[(slice(None),) * axis + (slice(start, stop),)] = tensor
            start = stop
        return joined

    @property
    def sources(self) -> int:
        return len(self.operands)

    def _dependencies(self, size, cells, *operands) -> tuple[IndexSet, ...]:
        axis, parts, start = self.get("axis"), [], 0
        for shape in map(shape_of, operands):
            parts.append(narrow(cells, axis, start, shape[axis]))
            start += shape[axis]
        return tuple(IndexSet(shape_of(operand), part.axes) for operand, part in zip(operands, parts, strict=True))


class Stack(Copies, _FunctionCall):
    """Tensors of one shape along a new axis, counted from 0: `Stack(a, b, axis=0)`."""

    word = r"\operatorname{stack}"
    fields = ("axis",)

    def subscripts(self, printer) -> list[str]:
        return [rf"\text{{axis }}{self.get('axis')}"] if self.get("axis") else []

    def infer(self, same, *shapes) -> Shape:
        axis = self.get("axis")
        for shape in shapes[1:]:
            if len(shape) != len(shapes[0]) or not all(map(same, shapes[0], shape)):
                raise ShapeError(f"{shapes[0]} and {shape} can't be stacked")
        return (*shapes[0][:axis], sympy.Integer(len(shapes)), *shapes[0][axis:])

    def run(self, size, *tensors) -> torch.Tensor:
        stacked = torch.empty(len(tensors), *tensors[0].shape, dtype=torch.result_type(tensors[0], tensors[-1]))
        for place, tensor in enumerate(tensors):
            stacked[place] = tensor
        return stacked.movedim(0, self.get("axis"))

    @property
    def sources(self) -> int:
        return len(self.operands)

    def _dependencies(self, size, cells, *operands) -> tuple[IndexSet, ...]:
        axis, shapes = self.get("axis"), [shape_of(operand) for operand in operands]
        rest = (*cells.axes[:axis], *cells.axes[axis + 1 :])
        return tuple(
            IndexSet.of(shape, rest) if i in cells.axes[axis] else IndexSet.none(shape)
            for i, shape in enumerate(shapes)
        )


class Pad(Copies, _FunctionCall):
    """Numbers before and after the last axes: `pads` is (before, after) of the last, then of the one before it …;
    negative ones cut off. `mode`: None for `value`, "reflect", "replicate" or "circular"."""

    word = r"\operatorname{pad}"
    fields = ("pads", "mode", "value")

    def subscripts(self, printer) -> list[str]:
        mode, value = self.get("mode"), self.get("value")
        notes = [rf"\text{{{mode}}}"] if mode else [rf"\text{{with }}{decimal(value)}"] if value else []
        return [*(setting_latex(n, printer) for n in self.get("pads")), *notes]

    def infer(self, same, shape) -> Shape:
        pads, padded = self.get("pads"), list(shape)
        for i in range(len(pads) // 2):
            padded[-1 - i] = padded[-1 - i] + pads[2 * i] + pads[2 * i + 1]
        return tuple(padded)

    def run(self, size, x) -> torch.Tensor:
        pads, mode = [whole(n, size) for n in self.get("pads")], self.get("mode")
        for i in range(len(pads) // 2):
            n = x.shape[-1 - i]
            places = torch.arange(-pads[2 * i], n + pads[2 * i + 1])
            inside = ((places >= 0) & (places < n)).reshape(-1, *(1,) * i)
            if mode == "reflect":
                places = (n - 1) - (places.abs() - (n - 1)).abs()
            elif mode == "circular":
                places = places % n
            x = x.index_select(-1 - i, places.clamp(0, max(n - 1, 0)))
            x = x if mode else torch.where(inside, x, self.get("value") or 0)
        return x

    def _dependencies(self, size, cells, x) -> tuple[IndexSet, ...]:
        shape = shape_of(x)
        pads, mode = [whole(n, size) for n in self.get("pads")], self.get("mode")
        axes: dict[int, Iterable[int] | None] = {}
        for i in range(len(pads) // 2):
            axis, before = len(shape) - 1 - i, pads[2 * i]
            n, places = shape[axis], [place - before for place in cells.axes[axis]]
            if mode == "reflect":
                places = [(n - 1) - abs(abs(place) - (n - 1)) for place in places]
            elif mode == "circular":
                places = [place % n for place in places]
            elif mode:
                places = [min(max(place, 0), n - 1) for place in places]
            axes[axis] = [place for place in places if 0 <= place < n]
        return (replace_axes(cells, shape, axes),)


class _Triangle(Copies, _FunctionCall):
    fields = ("diagonal",)

    def subscripts(self, printer) -> list[str]:
        return [setting_latex(self.get("diagonal"), printer)] if self.get("diagonal") else []

    def infer(self, same, shape) -> Shape:
        return shape

    def run(self, size, x) -> torch.Tensor:
        i, j = torch.arange(x.shape[-2])[:, None], torch.arange(x.shape[-1])
        return torch.where(self.stays(j - i - whole(self.get("diagonal") or 0, size)), x, 0)

    def _dependencies(self, size, cells, x) -> tuple[IndexSet, ...]:
        shape, diagonal = shape_of(x), whole(self.get("diagonal") or 0, size)
        *_, rows, columns = cells.axes
        i = [row for row in rows if any(self.stays(column - row - diagonal) for column in columns)]
        j = [column for column in columns if any(self.stays(column - row - diagonal) for row in rows)]
        return (replace_axes(cells, shape, {len(shape) - 2: i, len(shape) - 1: j}),)


class Tril(_Triangle):
    """0 where j > i + k."""

    word = r"\operatorname{tril}"

    def stays(self, over) -> torch.Tensor:
        return over <= 0


class Triu(_Triangle):
    """0 where j < i + k."""

    word = r"\operatorname{triu}"

    def stays(self, over) -> torch.Tensor:
        return over >= 0


class Flip(Copies, _FunctionCall):
    """Some axes in reverse order."""

    word = r"\operatorname{flip}"
    fields: tuple[str, ...] = ("axes", "labels")

    def subscripts(self, printer) -> list[str]:
        return along(self.get("labels"), self.get("axes"), printer)

    def infer(self, same, shape) -> Shape:
        return shape

    def run(self, size, x) -> torch.Tensor:
        for axis in self.get("axes"):
            x = x.index_select(axis, torch.arange(x.shape[axis] - 1, -1, -1))
        return x

    def _dependencies(self, size, cells, x) -> tuple[IndexSet, ...]:
        shape, axes = shape_of(x), self.get("axes")
        return (replace_axes(cells, shape, {axis: [shape[axis] - 1 - i for i in cells.axes[axis]] for axis in axes}),)


class Roll(Flip):
    """Numbers shifted along some axes; what leaves at one end enters at the other. `shifts`: one for each axis.

    Rows and columns of a grid, `[B, n, m, D]`, are not named: their `labels` are ().
    """

    word = r"\operatorname{roll}"
    fields = ("shifts", "axes", "labels")

    def subscripts(self, printer) -> list[str]:
        shifts = r" \times ".join(setting_latex(n, printer) for n in self.get("shifts"))
        return [shifts] if self.get("labels") == () else [shifts, *super().subscripts(printer)]

    def run(self, size, x) -> torch.Tensor:
        for axis, shift in zip(self.get("axes"), self.get("shifts"), strict=True):
            n = x.shape[axis]
            x = x.index_select(axis, (torch.arange(n) - whole(shift, size)) % n)
        return x

    def _dependencies(self, size, cells, x) -> tuple[IndexSet, ...]:
        shape = shape_of(x)
        axes = dict.fromkeys(self.get("axes"), 0)
        for axis, shift in zip(self.get("axes"), self.get("shifts"), strict=True):
            axes[axis] += whole(shift, size)
        return (replace_axes(cells, shape, {a: [(i - s) % shape[a] for i in cells.axes[a]] for a, s in axes.items()}),)


class Full(Copies, _FunctionCall):
    r"""A number, or a tensor, for all cells of a shape that it broadcasts to: `Full(x, shape=(B, N))`; zeros and ones
    are `\mathbf{0}_{B \times N}` and `\mathbf{1}_{B \times N}`."""

    word = r"\operatorname{full}"
    fields = ("shape",)

    def subscripts(self, printer) -> list[str]:
        return [r" \times ".join(setting_latex(size, printer) for size in self.get("shape"))]

    def _latex(self, printer) -> str:
        (number,) = self.operands
        if self.get("shape") and isinstance(number, Scalar) and number.value in (0, 1):
            return rf"\mathbf{{{int(number.value)}}}_{{{self.subscripts(printer)[0]}}}"
        return super()._latex(printer)

    def infer(self, same, x) -> Shape:
        return tuple(map(sympy.sympify, self.get("shape")))

    def run(self, size, x) -> torch.Tensor:
        return x.expand(
            [length if isinstance(length, int) else round(float(size(length))) for length in self.get("shape")]
        )

    def _dependencies(self, size, cells, x) -> tuple[IndexSet, ...]:
        return (through_broadcast(cells, shape_of(x)),)
