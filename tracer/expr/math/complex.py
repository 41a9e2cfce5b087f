"""Complex numbers, as some rotary codes rotate pairs: two numbers on the last axis are one."""

from __future__ import annotations

import sympy
import torch

from tracer.expr.function_call import _FunctionCall
from tracer.expr.index_sets import IndexSet, shape_of
from tracer.expr.math.elementwise import function
from tracer.expr.node import Shape


class Pairs(_FunctionCall):
    """Pairs of the last axis as complex numbers: `[…, D, 2]` to `[…, D]`."""

    word = r"\operatorname{complex}"

    def infer(self, same, shape) -> Shape:
        return shape[:-1]

    def run(self, size, x) -> torch.Tensor:
        return x[..., 0] + 1j * x[..., 1]

    def _dependencies(self, size, cells, x) -> tuple[IndexSet, ...]:
        shape = shape_of(x)
        return (IndexSet.of(shape, (*cells.axes, None)),)


class RealAndImaginary(_FunctionCall):
    """Complex numbers as pairs of their two parts: `[…, D]` to `[…, D, 2]`."""

    word = r"\operatorname{pairs}"

    def infer(self, same, shape) -> Shape:
        return (*shape, sympy.Integer(2))

    def run(self, size, x) -> torch.Tensor:
        return torch.stack([x.real, x.imag], -1)

    def _dependencies(self, size, cells, x) -> tuple[IndexSet, ...]:
        shape = shape_of(x)
        return (IndexSet.of(shape, cells.axes[:-1]),)


Polar = function(
    "Polar",
    r"\operatorname{polar}",
    lambda length, angle: length * angle.cos() + 1j * (length * angle.sin()),
    "`r e^{iθ}`: the complex number of a length and an angle; `Polar(r, θ)`.",
)
Real = function("Real", r"\operatorname{Re}", lambda x: x.real if x.is_complex() else x, "The real part.")
Imaginary = function("Imaginary", r"\operatorname{Im}", lambda x: x.imag, "The imaginary part.")
Conjugate = function(
    "Conjugate",
    r"\operatorname{conj}",
    lambda x: x.real - 1j * x.imag if x.is_complex() else x,
    "The complex conjugate: the imaginary part changes its sign.",
)
