"""Rotary positions and grouped heads, as Llama-style decoders have them."""

from __future__ import annotations

import sympy

from tracer.equations.call import tight
from tracer.equations.node import Node, ShapeError, broadcast


class Angles(Node):
    """Place times frequency, for both halves of a head: `[1, T]` and `[d_k/2]` to `[1, T, d_k]` (Su et al. 2021)."""

    def _latex(self, printer):
        places, frequencies = map(printer._print, self.args)
        angles = rf"{places}^{{\top}}\,{frequencies}"
        return rf"\left[{angles}\ ,\ {angles}\right]"

    def infer(self, same, places, frequencies):
        if len(frequencies) != 1:
            raise ShapeError(f"{frequencies} are no frequencies: [d_k/2] was expected")
        return (*places, 2 * frequencies[0])

    def run(self, size, places, frequencies):
        import torch

        angles = places.double()[..., None] * frequencies
        return torch.cat([angles, angles], dim=-1)


class Cosine(Node):
    """`cos x`, element by element."""

    def _latex(self, printer):
        return rf"\cos {tight(self.args[0], printer)}"

    def infer(self, same, shape):
        return shape

    def run(self, size, x):
        return x.cos()


class Sine(Node):
    """`sin x`, element by element."""

    def _latex(self, printer):
        return rf"\sin {tight(self.args[0], printer)}"

    def infer(self, same, shape):
        return shape

    def run(self, size, x):
        return x.sin()


class Rotated(Node):
    """`x ⊙ cos + (−x₂, x₁) ⊙ sin`: each pair (x₁ᵢ, x₂ᵢ) of a head's two halves turned by its angle (Su et al. 2021,
    equation 34); `[B, h, T, d_k]` with cosines and sines `[1, T, d_k]`."""

    loose = True

    def _latex(self, printer):
        x, cosine, sine = (operand.inside(printer) for operand in self.operands)
        return rf"{x} \odot {cosine} + \operatorname{{turn}}\left({x}\right) \odot {sine}"

    def infer(self, same, x, cosine, sine):
        return broadcast(same, x, (cosine[0], sympy.Integer(1), *cosine[1:]), (sine[0], sympy.Integer(1), *sine[1:]))

    def run(self, size, x, cosine, sine):
        import torch

        first, second = x.chunk(2, dim=-1)
        return x * cosine.unsqueeze(1) + torch.cat([-second, first], dim=-1) * sine.unsqueeze(1)


class Grouped(Node):
    """Each head repeated for the queries that share it: `[B, h_kv, T, d_k]` to `[B, h, T, d_k]` (Ainslie et al. 2023).

    `Grouped(K, h)`.
    """

    def __new__(cls, tensor, heads):
        return super().__new__(cls, tensor, sympy.sympify(heads))

    def _latex(self, printer):
        return rf"\operatorname{{repeat}}_{{{printer._print(self.args[1])}}}\left({printer._print(self.args[0])}\right)"

    def infer(self, same, shape):
        return (*shape[:-3], self.args[1], *shape[-2:])

    def run(self, size, tensor):
        return tensor.repeat_interleave(int(size(self.args[1])) // tensor.shape[-3], dim=-3)
