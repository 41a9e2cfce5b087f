"""Position encodings: sines and cosines of a position, or the distance between two tokens."""

from __future__ import annotations

import sympy
import torch

from tracer.expr.function_call import _WithFields, encode, whole
from tracer.expr.index_sets import IndexSet, indices_in, replace_axes, shape_of
from tracer.expr.node import Node, Shape, ShapeError, with_subscript
from tracer.expr.provenance_rules import Copies, Linear


class Sinusoids(_WithFields):
    """`P_{i,2k} = sin(i / 10000^{2k/D})`, `P_{i,2k+1} = cos(…)`; `Sinusoids(T, D)` is `[T, D]` (Vaswani et al. 2017,
    section 3.5).

    `Sinusoids(T, D, base=…, halves=…, over=…, first=…)`: with `halves` all sines stand in front of all cosines; `over`
    is what stands below 2k, D - 2 in tensor2tensor; `first` is the number of the first place.
    """

    cells = "ij"
    fields = ("base", "halves", "over", "first")

    def __new__(cls, length, width, *rest, base=10000, halves=False, over=None, first=0):
        if not rest:
            settings = base, halves, width if over is None else over, first
            rest = tuple(map(encode, settings))
        return super().__new__(cls, sympy.sympify(length), sympy.sympify(width), *rest)

    def _latex(self, printer) -> str:
        base, halves, over, first = map(self.get, self.fields)
        width, over = self.args[1], sympy.sympify(over)
        below = printer._print(over) if over.is_Symbol or over.is_Integer else rf"\left({printer._print(over)}\right)"
        place = rf"\left(i + {first}\right)" if first else "i"
        if not halves:
            angle = rf"\left({place} \,/\, {base}^{{2k/{below}}}\right)"
            return rf"\begin{{cases}} \sin{angle} & j = 2k \\ \cos{angle} & j = 2k + 1 \end{{cases}}"
        sine, cosine = (
            rf"\left({place} \,/\, {base}^{{{above}/{below}}}\right)"
            for above in ("2j", rf"\left(2j - {printer._print(width)}\right)")
        )
        half = printer._print(width / 2)
        return rf"\begin{{cases}} \sin{sine} & j < {half} \\ \cos{cosine} & \text{{else}} \end{{cases}}"

    def infer(self, same) -> Shape:
        return self.args[:2]

    def run(self, size) -> torch.Tensor:
        length, width = (int(size(argument)) for argument in self.args[:2])
        i = self.get("first") + torch.arange(length, dtype=torch.float64)[:, None]
        base, halves, over = self.get("base"), self.get("halves"), whole(self.get("over"), size)
        column = torch.arange(width)
        k = column % (width // 2) if halves else column // 2
        angles = i / base ** (2 * k.double() / over)
        return torch.where(column < width // 2 if halves else column % 2 == 0, angles.sin(), angles.cos())


class Distances(Node):
    """`C_ij = min(max(j - i, -R), R) + R`: which of 2R + 1 distances is between two tokens; `[S, S]`, from 0.

    Source: Shaw et al. 2018, section 3.2. `Distances(S, R)`.
    """

    cells = "ij"

    def _latex(self, printer) -> str:
        reach = printer._print(self.args[1])
        return rf"\min\left(\max\left(j - i,\ -{reach}\right),\ {reach}\right) + {reach}"

    def infer(self, same) -> Shape:
        return (self.args[0], self.args[0])

    def run(self, size) -> torch.Tensor:
        length, reach = (int(size(argument)) for argument in self.args)
        place = torch.arange(length)
        return (place - place[:, None]).clamp(-reach, reach) + reach


class AtDistance(Copies, Node):
    """`Y_{i, C_ij}`: one number per distance becomes one per pair; `[…, S, 2R+1]` and `[S, S]` to `[…, S, S]`."""

    cells = "ij"

    def _latex(self, printer) -> str:
        values, distances = self.args
        return rf"\left({printer._print(values)}\right)_{{i,\,{with_subscript(printer._print(distances), 'ij')}}}"

    def infer(self, same, values, distances) -> Shape:
        if not same(values[-2], distances[-2]):
            raise ShapeError(f"{values} at the distances {distances}: {values[-2]} is not {distances[-2]}")
        return (*values[:-1], distances[-1])

    def run(self, size, values, distances) -> torch.Tensor:
        return values.gather(-1, distances.expand(*values.shape[:-2], *distances.shape))

    def _dependencies(self, size, cells, values, distances) -> tuple[IndexSet, ...]:
        shape, index_shape = shape_of(values), shape_of(distances)
        where = IndexSet.of(index_shape, cells.axes[-2:])
        return replace_axes(cells, shape, {len(shape) - 1: indices_in(where, distances, shape[-1])}), where


class SumsByDistance(Linear, Node):
    """`Σ_{j: C_ij = c} A_ij`: what each query gives to each distance; `[…, S, S]` and `[S, S]` to `[…, S, 2R+1]`.

    `SumsByDistance(A, C, 2R+1)`.
    """

    linear, alone = (0,), False

    cells = "ic"

    def _latex(self, printer) -> str:
        weights, distances = (with_subscript(printer._print(operand), "ij") for operand in self.operands)
        return rf"\sum_{{j\,:\,{distances} = c}} {weights}"

    def infer(self, same, weights, distances) -> Shape:
        return (*weights[:-1], self.args[2])

    def run(self, size, weights, distances) -> torch.Tensor:
        shares = torch.nn.functional.one_hot(distances, int(size(self.args[2]))).to(weights.dtype)  # [S, S, 2R+1]
        return (weights[..., None] * shares).sum(dim=-2)

    def _dependencies(self, size, cells, weights, distances) -> tuple[IndexSet, ...]:
        shape, index_shape = shape_of(weights), shape_of(distances)
        *lead, rows, output_axis = cells.axes
        where = IndexSet.of(index_shape, (rows, None))
        if not hasattr(distances, "tolist"):
            return IndexSet.of(shape, (*lead, rows, None)), where
        columns = {j for i in rows for j, distance in enumerate(distances[i].tolist()) if distance in output_axis}
        return IndexSet.of(shape, (*lead, rows, columns)), where
