"""Functions of each number on its own, written out from their definitions."""

from __future__ import annotations

from math import log

import torch

from tracer.equations.call import _Call, worded
from tracer.equations.ways import ByCell


class _Of(ByCell, _Call):
    """A function of one operand, cell by cell."""

    def infer(self, same, shape):
        return shape


class Sigmoid(_Of):
    """`1 / (1 + e⁻ˣ)`."""

    word = r"\sigma"

    def run(self, size, x):
        return 1 / (1 + (-x).exp())


class LogSigmoid(_Of):
    """`-log(1 + e⁻ˣ)`."""

    word = r"\log\sigma"

    def run(self, size, x):
        return x.clamp(max=0) - (-x.abs()).exp().log1p()


class Log(_Of):
    """The natural logarithm."""

    word = r"\log"

    def run(self, size, x):
        return x.log()


class Log2(_Of):
    """The logarithm to base 2."""

    word = r"\log_{2}"

    def run(self, size, x):
        return x.log() / log(2)


class Log10(_Of):
    """The logarithm to base 10."""

    word = r"\log_{10}"

    def run(self, size, x):
        return x.log() / log(10)


class Log1p(_Of):
    """`log(1 + x)`."""

    def _latex(self, printer):
        return rf"\log\left(1 + {self.args[0].inside(printer)}\right)"

    def run(self, size, x):
        return x.log1p()


class Expm1(_Of):
    """`eˣ - 1`."""

    loose = True

    def _latex(self, printer):
        return rf"e^{{{printer._print(self.args[0])}}} - 1"

    def run(self, size, x):
        return x.expm1()


class Exp(_Of):
    """`eˣ`."""

    def _latex(self, printer):
        return rf"e^{{{printer._print(self.args[0])}}}"

    def run(self, size, x):
        return x.exp()


class Root(_Of):
    """`√x`."""

    def _latex(self, printer):
        return rf"\sqrt{{{printer._print(self.args[0])}}}"

    def run(self, size, x):
        return x.sqrt()


class Absolute(_Of):
    """`|x|`."""

    def _latex(self, printer):
        return rf"\left|{printer._print(self.args[0])}\right|"

    def run(self, size, x):
        return x.abs()


class Floor(_Of):
    """`⌊x⌋`, the largest whole number that is not larger."""

    def _latex(self, printer):
        return rf"\left\lfloor {printer._print(self.args[0])} \right\rfloor"

    def run(self, size, x):
        return x.floor()


class Ceiling(_Of):
    """`⌈x⌉`, the smallest whole number that is not smaller."""

    def _latex(self, printer):
        return rf"\left\lceil {printer._print(self.args[0])} \right\rceil"

    def run(self, size, x):
        return x.ceil()


class Round(_Of):
    """The nearest whole number, the even one of two that are as near."""

    word = r"\operatorname{round}"

    def run(self, size, x):
        return x.round()


class Truncated(_Of):
    """Without what stands behind the point; what is no number, or infinite, is the lowest whole number of 64 bits."""

    word = r"\operatorname{trunc}"

    def run(self, size, x):
        return (x.sign() * x.abs().floor()).masked_fill(~x.isfinite(), -(2.0**63))


class Sign(_Of):
    """1, 0 or -1."""

    word = r"\operatorname{sign}"

    def run(self, size, x):
        return (x > 0).double() - (x < 0).double()


class Erf(_Of):
    """The error function `2/√π ∫₀ˣ e^(-t²) dt`."""

    word = r"\operatorname{erf}"

    def run(self, size, x):
        return x.erf()


class Tangent(_Of):
    """`sin x / cos x`."""

    word = r"\tan"

    def run(self, size, x):
        return x.sin() / x.cos()


class ArcTangent(_Of):
    """The angle between -π/2 and π/2 of which x is the tangent."""

    word = r"\arctan"

    def run(self, size, x):
        return x.atan()


class HyperbolicSine(_Of):
    """`(eˣ - e⁻ˣ) / 2`."""

    word = r"\sinh"

    def run(self, size, x):
        return (x.exp() - (-x).exp()) / 2


class HyperbolicCosine(_Of):
    """`(eˣ + e⁻ˣ) / 2`."""

    word = r"\cosh"

    def run(self, size, x):
        return (x.exp() + (-x).exp()) / 2


class Cast(_Of):
    r"""The nearest number that a dtype holds: `Cast(x, to="float16")`, printed as `\operatorname{float16}(x)`."""

    fields = ("to",)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the numbers are cast to."""
        return getattr(torch, self.get("to"))

    def _latex(self, printer):
        return worded(rf"\operatorname{{{self.get('to')}}}", [], [printer._print(self.args[0])])

    def run(self, size, x):
        return x.to(self.dtype).double()


class Bool(_Of):
    """1 where a number is not 0, else 0."""

    def _latex(self, printer):
        return rf"\left[\,{printer._print(self.args[0])} \ne 0\,\right]"

    def run(self, size, x):
        return (x != 0).double()
