"""Complex numbers, as some rotary codes turn pairs: two numbers on the last axis are one."""

from __future__ import annotations

import sympy
import torch

from tracer.equations.call import _Call
from tracer.equations.cells import Cells, shape_of
from tracer.equations.node import broadcast
from tracer.equations.ways import ByCell


class Pairs(_Call):
    """Pairs of the last axis as complex numbers: `[…, D, 2]` to `[…, D]`."""

    word = r"\operatorname{complex}"

    def infer(self, same, shape):
        return shape[:-1]

    def run(self, size, x):
        return x[..., 0] + 1j * x[..., 1]

    def reads(self, size, cells, x):
        shape = shape_of(x)
        return (Cells.none(shape) if cells.axes is None else Cells.of(shape, (*cells.axes, None)),)


class Parts(_Call):
    """Complex numbers as pairs of their two parts: `[…, D]` to `[…, D, 2]`."""

    word = r"\operatorname{pairs}"

    def infer(self, same, shape):
        return (*shape, sympy.Integer(2))

    def run(self, size, x):
        return torch.stack([x.real, x.imag], -1)

    def reads(self, size, cells, x):
        shape = shape_of(x)
        return (Cells.none(shape) if cells.axes is None else Cells.of(shape, cells.axes[:-1]),)


class Polar(ByCell, _Call):
    """`r e^{iθ}`: the complex number of a length and an angle; `Polar(r, θ)`."""

    word = r"\operatorname{polar}"

    def infer(self, same, *shapes):
        return broadcast(same, *shapes)

    def run(self, size, length, angle):
        return length * angle.cos() + 1j * (length * angle.sin())


class Real(ByCell, _Call):
    """The real part."""

    word = r"\operatorname{Re}"

    def infer(self, same, shape):
        return shape

    def run(self, size, x):
        return x.real if x.is_complex() else x


class Imaginary(ByCell, _Call):
    """The imaginary part."""

    word = r"\operatorname{Im}"

    def infer(self, same, shape):
        return shape

    def run(self, size, x):
        return x.imag


class Conjugate(ByCell, _Call):
    """The complex number with the other sign of its imaginary part."""

    word = r"\operatorname{conj}"

    def infer(self, same, shape):
        return shape

    def run(self, size, x):
        return x.real - 1j * x.imag if x.is_complex() else x
