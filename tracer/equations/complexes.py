"""Complex numbers, as some rotary codes turn pairs: two numbers on the last axis are one."""

from __future__ import annotations

import sympy

from tracer.equations.call import _Call
from tracer.equations.node import broadcast


class Pairs(_Call):
    """Pairs of the last axis as complex numbers: `[…, D, 2]` to `[…, D]`."""

    word = r"\operatorname{complex}"

    def infer(self, same, shape):
        return shape[:-1]

    def run(self, size, x):
        return x[..., 0] + 1j * x[..., 1]


class Parts(_Call):
    """Complex numbers as pairs of their two parts: `[…, D]` to `[…, D, 2]`."""

    word = r"\operatorname{pairs}"

    def infer(self, same, shape):
        return (*shape, sympy.Integer(2))

    def run(self, size, x):
        import torch

        return torch.stack([x.real, x.imag], -1)


class Polar(_Call):
    """`r e^{iθ}`: the complex number of a length and an angle; `Polar(r, θ)`."""

    word = r"\operatorname{polar}"

    def infer(self, same, *shapes):
        return broadcast(same, *shapes)

    def run(self, size, length, angle):
        return length * angle.cos() + 1j * (length * angle.sin())


class Real(_Call):
    """The real part."""

    word = r"\operatorname{Re}"

    def infer(self, same, shape):
        return shape

    def run(self, size, x):
        return x.real if x.is_complex() else x


class Imaginary(_Call):
    """The imaginary part."""

    word = r"\operatorname{Im}"

    def infer(self, same, shape):
        return shape

    def run(self, size, x):
        return x.imag


class Conjugate(_Call):
    """The complex number with the other sign of its imaginary part."""

    word = r"\operatorname{conj}"

    def infer(self, same, shape):
        return shape

    def run(self, size, x):
        return x.real - 1j * x.imag if x.is_complex() else x
