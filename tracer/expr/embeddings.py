"""Nodes that look tokens and positions up, or turn vectors by their position."""

from __future__ import annotations

import sympy
import torch

from tracer.expr.arithmetic import Row, _Named, function
from tracer.expr.function_call import _WithFields, encode, tight, whole
from tracer.expr.index_sets import (
    AlongAxes,
    AxisReads,
    Copies,
    Elementwise,
    Indexing,
    IndexSet,
    Layout,
    Linear,
    RowWise,
    Slices,
    Standardisation,
    plain,
    shape_of,
    through_concat,
)
from tracer.expr.node import Node, Shape, ShapeError, broadcast, with_subscript
from tracer.expr.rearrangements import Operator

# Two encoders' outputs made comparable: read at one token, normalised to unit length, scaled (Radford et al. 2021).


class FirstOf(Node):
    """Index of the first occurrence of a token number in each row: `[K, T]` to `[K]`, from 0; 0 if there is
    none."""

    reads = "... k -> ..."

    def _latex(self, printer) -> str:
        tokens = printer._print(self.args[0])
        return rf"\min\left\{{ j : {with_subscript(tokens, 'j')} = {printer._print(self.args[1])} \right\}}"

    def infer(self, same, shape) -> Shape:
        return shape[:-1]

    def run(self, size, tokens) -> torch.Tensor:
        wanted = int(self.args[1])
        positions = [row.index(wanted) if wanted in row else 0 for row in tokens.tolist()]
        return torch.tensor(positions, dtype=tokens.dtype)


class RowsAt(Copies, Node):
    """One token of each sequence: `[K, T, D]` at places `[K]` is `[K, D]`."""

    reads = "b [n] d, b -> b d"

    _latex = Row._latex

    def infer(self, same, tokens, places) -> Shape:
        if len(tokens) != 3 or len(places) != 1 or not same(tokens[0], places[0]):
            raise ShapeError(f"{tokens} taken at {places}, expected [K, T, D] and [K]")
        return (tokens[0], tokens[-1])

    def run(self, size, tokens, places) -> torch.Tensor:
        return torch.stack([row[place] for row, place in zip(tokens, places.long().tolist(), strict=True)])


class UnitLength(Standardisation, RowWise, Node):
    """`x / ‖x‖₂`, each vector on its own."""

    def _latex(self, printer) -> str:
        x = self.args[0].factor_latex(printer)
        return rf"\frac{{{x}}}{{\left\lVert {x} \right\rVert_2}}"

    def run(self, size, x) -> torch.Tensor:
        return x / (x * x).sum(dim=-1, keepdim=True).sqrt()

    def unit(self, x) -> torch.Tensor:
        return x / (x * x).sum().sqrt()


class ScaledBy(Elementwise, Node):
    """`e^τ X`: a tensor times the power of a learned number; `ScaledBy(τ, X)`."""

    def _latex(self, printer) -> str:
        power, x = self.args
        return rf"e^{{{printer._print(power)}}}\,{x.factor_latex(printer)}"

    def infer(self, same, power, x) -> Shape:
        if power:
            raise ShapeError(f"{power} is not a single number")
        return x

    def run(self, size, power, x) -> torch.Tensor:
        return power.exp() * x

    def shares(self, size, power, x) -> list[tuple]:
        factor = plain(power.exp())
        return [(factor * plain(x), None, False), (factor * plain(x), factor)]


# From pixels to tokens, and tokens to one sequence.


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

    reads = "[n] d, ... -> ... d"

    def _latex(self, printer) -> str:
        matrix, numbers = self.args
        return rf"{tight(matrix, printer)}\left[{printer._print(numbers)}\right]"

    def infer(self, same, matrix, numbers) -> Shape:
        return (*numbers, matrix[-1])

    def run(self, size, matrix, numbers) -> torch.Tensor:
        return matrix[numbers.long()]


class Rows(Indexing, Node):
    """First rows of a longer table: `Rows(P, T)` is `P[:T]`."""

    def _latex(self, printer) -> str:
        table = tight(self.args[0], printer)
        table = rf"{{{table}}}" if "_" in table else table
        return rf"{table}_{{[:{printer._print(self.args[1])}]}}"

    def infer(self, same, shape) -> Shape:
        return (*shape[:-2], self.args[1], shape[-1])

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
        return through_concat(cells, -2, operands)


# Position encodings: sines and cosines of a position, or the distance between two tokens.


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

    reads = "... i [n], i j -> ... i j"

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


# Rotary positions and grouped heads, as in Llama-style decoders.

HALVES, NEIGHBOURS = "halves", "neighbours"
"""Pairings of a head's numbers: the same index of both halves, or neighbours."""


class Angles(Linear, Node):
    """Position times frequency, for both halves of a head: `[1, T]` and `[d_k/2]` to `[1, T, d_k]` (Su et al. 2021)."""

    alone = False

    def _latex(self, printer) -> str:
        places, frequencies = map(printer._print, self.args)
        places = rf"{{{places}}}" if "^" in places else places
        angles = rf"{places}^{{\top}}\,{frequencies}"
        return rf"\left[{angles}\ ,\ {angles}\right]"

    def infer(self, same, places, frequencies) -> Shape:
        if len(frequencies) != 1:
            raise ShapeError(f"{frequencies} are not frequencies, expected [d_k/2]")
        return (*places, 2 * frequencies[0])

    def run(self, size, places, frequencies) -> torch.Tensor:
        angles = places.double()[..., None] * frequencies
        return torch.cat([angles, angles], dim=-1)

    def pattern(self, size, *shapes) -> tuple[str, dict[str, int]]:
        return "..., d -> ... (s d)", {"s": 2}


Cosine = function("Cosine", r"\cos", lambda x: x.cos(), "`cos x`, element by element.", _Named)
Sine = function("Sine", r"\sin", lambda x: x.sin(), "`sin x`, element by element.", _Named)


def rotate_half(x) -> torch.Tensor:
    """Return `(-x₂, x₁)` of the two halves of the last axis."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


class ApplyRotary(Linear, Node):
    """`x ⊙ cos + (−x₂, x₁) ⊙ sin`: each pair (x₁ᵢ, x₂ᵢ) of a head's two halves rotated by its angle (Su et al. 2021,
    equation 34); `[B, h, T, d_k]` with cosines and sines `[1, T, d_k]`."""

    alone = False

    needs_parens = True

    def _latex(self, printer) -> str:
        x, cosine, sine = (operand.factor_latex(printer) for operand in self.operands)
        return rf"{x} \odot {cosine} + {RotateHalf.word}\left({x}\right) \odot {sine}"

    def infer(self, same, x, cosine, sine) -> Shape:
        return broadcast(same, x, (cosine[0], sympy.Integer(1), *cosine[1:]), (sine[0], sympy.Integer(1), *sine[1:]))

    def run(self, size, x, cosine, sine) -> torch.Tensor:
        return x * cosine.unsqueeze(1) + rotate_half(x) * sine.unsqueeze(1)

    def pattern(self, size, *shapes) -> tuple[str, dict[str, int]]:
        """Return that the number of both halves is read, at the angle of the cell's own."""
        return "b h t (s d), b t (r d) -> b h t (r d)", {"s": 2, "r": 2}


class RotateHalf(AlongAxes, Linear, Node):
    """`(-x₂, x₁)` of the two halves of the last axis: each pair rotated by a right angle (Su et al. 2021)."""

    alone = False

    word = r"\operatorname{rotate\_half}"

    def _latex(self, printer) -> str:
        return rf"{self.word}\left({printer._print(self.args[0])}\right)"

    def run(self, size, x) -> torch.Tensor:
        return rotate_half(x)

    def partner(self, i: int, width: int) -> int:
        """Return the other index of a pair."""
        return (i + width // 2) % width

    def read_along(self, size, shape, axes) -> AxisReads:
        return {-1: [self.partner(i, shape[-1]) for i in axes[-1]]}


class RotateEveryTwo(RotateHalf):
    """`(-x₁, x₀, -x₃, x₂, …)`: each pair of neighbours of the last axis rotated by a right angle, as GPT-J has it."""

    word = r"\operatorname{rotate\_every\_two}"

    def run(self, size, x) -> torch.Tensor:
        return torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)

    def partner(self, i, width) -> int:
        return i ^ 1


class RepeatKV(Operator, Node):
    """Each head repeated for the queries that share it: `[B, h_kv, T, d_k]` to `[B, h, T, d_k]` (Ainslie et al. 2023).

    `RepeatKV(K, h)`.
    """

    NAME = "repeat"

    def infer(self, same, shape) -> Shape:
        return (*shape[:-3], self.args[1], *shape[-2:])

    def run(self, size, tensor) -> torch.Tensor:
        return tensor.repeat_interleave(int(size(self.args[1])) // tensor.shape[-3], dim=-3)

    def pattern(self, size, shape) -> tuple[str, dict[str, int]]:
        return "... k t d -> ... (k r) t d", {"r": int(size(self.args[1])) // shape[-3]}
