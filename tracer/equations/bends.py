"""Activations beside ReLU, GELU and SiLU, written out from their definitions."""

from __future__ import annotations

import torch

from tracer.equations.call import _Call, written
from tracer.equations.cells import by_channel, shape_of, spread
from tracer.equations.elementwise import _Of
from tracer.equations.ways import ByCell


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


class PReLU(ByCell, _Call):
    """x where it is above 0, else x times a learned number, of each channel or of all (He et al. 2015)."""

    word = r"\operatorname{PReLU}"

    def infer(self, same, x, slopes):
        return x

    def run(self, size, x, slopes):
        if slopes.numel() > 1:
            slopes = slopes.reshape(-1, *(1,) * (x.dim() - 2))
        return x.clamp(min=0) + slopes * x.clamp(max=0)

    def reads(self, size, cells, x, slopes):
        return spread(cells, shape_of(x)), by_channel(cells, shape_of(slopes))
