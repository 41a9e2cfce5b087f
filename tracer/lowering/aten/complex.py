"""Complex numbers."""

from __future__ import annotations

from tracer.expr import Conjugate, Imaginary, Node, Pairs, Polar, Real, RealAndImaginary, Stack
from tracer.lowering.aten import of
from tracer.lowering.call_arguments import Given


@of("view_as_complex")
def view_as_complex(given: Given) -> Node:
    return Pairs(given["self"])


@of("view_as_real")
def view_as_real(given: Given) -> Node:
    return RealAndImaginary(given["self"])


@of("complex")
def complex_of(given: Given) -> Node:
    return Pairs(Stack(given["real"], given["imag"], axis=given.rank("real")))


@of("polar")
def polar(given: Given) -> Node:
    return Polar(given["abs"], given["angle"])


@of("real")
def real(given: Given) -> Node:
    return Real(given["self"])


@of("imag")
def imaginary(given: Given) -> Node:
    return Imaginary(given["self"])


@of("conj", "_conj", "conj_physical")
def conjugate(given: Given) -> Node:
    return Conjugate(given["self"])
