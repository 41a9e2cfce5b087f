"""Functions of each number on its own, written out from their definitions."""

from __future__ import annotations

from math import log

from tracer.equations.call import _Call, written
from tracer.equations.node import Node


class _Of(_Call):
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
    """Without what stands behind the point."""

    word = r"\operatorname{trunc}"

    def run(self, size, x):
        return x.sign() * x.abs().floor()


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


class ReLU6(_Of):
    """`min(max(x, 0), 6)` (Howard et al. 2017)."""

    word = r"\operatorname{ReLU6}"

    def run(self, size, x):
        return x.clamp(0, 6)


class HardSigmoid(_Of):
    """`ReLU6(x + 3) / 6` (Howard et al. 2019)."""

    word = r"\operatorname{HardSigmoid}"

    def run(self, size, x):
        return (x + 3).clamp(0, 6) / 6


class HardSwish(_Of):
    """`x · ReLU6(x + 3) / 6` (Howard et al. 2019, section 5.2)."""

    word = r"\operatorname{HardSwish}"

    def run(self, size, x):
        return x * (x + 3).clamp(0, 6) / 6


class Mish(_Of):
    """`x · tanh(log(1 + eˣ))` (Misra 2019)."""

    word = r"\operatorname{Mish}"

    def run(self, size, x):
        return x * (x.clamp(min=0) + (-x.abs()).exp().log1p()).tanh()


class SELU(_Of):
    """`λ · ELU_α(x)` with λ = 1.0507… and α = 1.6732… (Klambauer et al. 2017)."""

    word = r"\operatorname{SELU}"

    def run(self, size, x):
        scale, alpha = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
        return scale * (x.clamp(min=0) + alpha * x.clamp(max=0).expm1())


class _Set(_Of):
    """A function with numbers below its word."""

    def below(self, printer):
        return [written(self.get(field), printer) for field in self.fields]


class Softplus(_Set):
    """`log(1 + e^{βx}) / β`, and x itself where βx is above the threshold."""

    word = r"\operatorname{softplus}"
    fields = ("beta", "threshold")

    def below(self, printer):
        return [] if (self.get("beta"), self.get("threshold")) == (1, 20) else super().below(printer)

    def run(self, size, x):
        import torch

        beta, y = self.get("beta"), x * self.get("beta")
        return torch.where(y > self.get("threshold"), x, (y.clamp(min=0) + (-y.abs()).exp().log1p()) / beta)


class LeakyReLU(_Set):
    """x where it is above 0, else a share of it (Maas et al. 2013)."""

    word = r"\operatorname{LeakyReLU}"
    fields = ("slope",)

    def run(self, size, x):
        return x.clamp(min=0) + self.get("slope") * x.clamp(max=0)


class ELU(_Set):
    """x where it is above 0, else `α(e^{x/β} - 1)`, and all of it times a scale (Clevert et al. 2016)."""

    word = r"\operatorname{ELU}"
    fields = ("alpha", "scale", "input_scale")

    def below(self, printer):
        alpha, *scales = super().below(printer)
        return [alpha, *scales] if scales != ["1", "1"] else [alpha] if alpha != "1" else []

    def run(self, size, x):
        alpha, scale, inner = (self.get(field) for field in self.fields)
        return scale * (x.clamp(min=0) + alpha * (inner * x.clamp(max=0)).expm1())


class SoftShrink(_Set):
    """x less λ where it is above λ, x and λ where it is below -λ, else 0."""

    word = r"\operatorname{SoftShrink}"
    fields = ("edge",)

    def run(self, size, x):
        return (x - self.get("edge")).clamp(min=0) + (x + self.get("edge")).clamp(max=0)


class HardShrink(_Set):
    """x where |x| is above λ, else 0."""

    word = r"\operatorname{HardShrink}"
    fields = ("edge",)

    def run(self, size, x):
        return x * (x.abs() > self.get("edge"))


class PReLU(_Call):
    """x where it is above 0, else x times a learned number, of each channel or of all (He et al. 2015)."""

    word = r"\operatorname{PReLU}"

    def infer(self, same, x, slopes):
        return x

    def run(self, size, x, slopes):
        if slopes.numel() > 1:
            slopes = slopes.reshape(-1, *(1,) * (x.dim() - 2))
        return x.clamp(min=0) + slopes * x.clamp(max=0)


class Bool(_Of):
    """1 where a number is not 0, else 0."""

    def _latex(self, printer):
        return rf"\left[\,{printer._print(self.args[0])} \ne 0\,\right]"

    def run(self, size, x):
        return (x != 0).double()


class Same(Node):
    """The operand itself: what a copy, or another dtype that holds its numbers, makes."""

    @property
    def loose(self):
        return self.args[0].loose

    def _latex(self, printer):
        return printer._print(self.args[0])

    def infer(self, same, shape):
        return shape

    def run(self, size, x):
        return x
