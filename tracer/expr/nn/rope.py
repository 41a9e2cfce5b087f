"""Rotary positions and grouped heads, as in Llama-style decoders."""

from __future__ import annotations

import sympy
import torch

from tracer.expr.index_sets import IndexSet, align_axes, shape_of
from tracer.expr.math.elementwise import _Named, function
from tracer.expr.node import Node, Shape, ShapeError, broadcast
from tracer.expr.provenance_rules import Layout, Linear

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

    def _dependencies(self, size, cells, places, frequencies) -> tuple[IndexSet, ...]:
        index_shape, shape = shape_of(places), shape_of(frequencies)
        return IndexSet.of(index_shape, cells.axes[:-1]), IndexSet.of(shape, [{i % shape[0] for i in cells.axes[-1]}])


Cosine = function("Cosine", r"\cos", lambda x: x.cos(), "`cos x`, element by element.", _Named)
Sine = function("Sine", r"\sin", lambda x: x.sin(), "`sin x`, element by element.", _Named)


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
        first, second = x.chunk(2, dim=-1)
        return x * cosine.unsqueeze(1) + torch.cat([-second, first], dim=-1) * sine.unsqueeze(1)

    def _dependencies(self, size, cells, x, cosine, sine) -> tuple[IndexSet, ...]:
        shape, wide, tall = map(shape_of, (x, cosine, sine))
        half = shape[-1] // 2
        both = {i % half + half * side for i in cells.axes[-1] for side in (0, 1)}
        batch, _, rows, columns = cells.axes
        angles = batch, rows, columns
        return (
            IndexSet.of(shape, (*cells.axes[:-1], both)),
            IndexSet.of(wide, align_axes(angles, wide)),
            IndexSet.of(tall, align_axes(angles, tall)),
        )


class RotateHalf(Linear, Node):
    """`(-x₂, x₁)` of the two halves of the last axis: each pair rotated by a right angle (Su et al. 2021)."""

    alone = False

    word = r"\operatorname{rotate\_half}"

    def _latex(self, printer) -> str:
        return rf"{self.word}\left({printer._print(self.args[0])}\right)"

    def infer(self, same, shape) -> Shape:
        return shape

    def run(self, size, x) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return torch.cat([-second, first], dim=-1)

    def partner(self, i: int, width: int) -> int:
        """Return the other index of a pair."""
        return (i + width // 2) % width

    def _dependencies(self, size, cells, x) -> tuple[IndexSet, ...]:
        shape = shape_of(x)
        return (IndexSet.of(shape, (*cells.axes[:-1], {self.partner(i, shape[-1]) for i in cells.axes[-1]})),)


class RotateEveryTwo(RotateHalf):
    """`(-x₁, x₀, -x₃, x₂, …)`: each pair of neighbours of the last axis rotated by a right angle, as GPT-J has it."""

    word = r"\operatorname{rotate\_every\_two}"

    def run(self, size, x) -> torch.Tensor:
        return torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)

    def partner(self, i, width) -> int:
        return i ^ 1


class RepeatKV(Layout, Node):
    """Each head repeated for the queries that share it: `[B, h_kv, T, d_k]` to `[B, h, T, d_k]` (Ainslie et al. 2023).

    `RepeatKV(K, h)`.
    """

    def _latex(self, printer) -> str:
        return rf"\operatorname{{repeat}}_{{{printer._print(self.args[1])}}}\left({printer._print(self.args[0])}\right)"

    def infer(self, same, shape) -> Shape:
        return (*shape[:-3], self.args[1], *shape[-2:])

    def run(self, size, tensor) -> torch.Tensor:
        return tensor.repeat_interleave(int(size(self.args[1])) // tensor.shape[-3], dim=-3)

    def pattern(self, size, shape) -> tuple[str, dict[str, int]]:
        return "... k t d -> ... (k r) t d", {"r": int(size(self.args[1])) // shape[-3]}
