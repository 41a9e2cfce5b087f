"""Activations, and the softmax over a row: each is written out from its definition, not called from a kernel."""

from __future__ import annotations

from math import pi, sqrt

import torch

from tracer.expr.function_call import _FunctionCall
from tracer.expr.index_sets import IndexSet, shape_of, through_broadcast, through_channel_broadcast
from tracer.expr.math.elementwise import _UnaryFunction, function
from tracer.expr.node import Shape
from tracer.expr.provenance_rules import Elementwise, RowWise, SoftmaxShares


class Softmax(SoftmaxShares, RowWise, _UnaryFunction):
    """Row-wise `exp(s_ij) / Σ_k exp(s_ik)` (Bridle 1990), with the row's maximum subtracted."""

    word = r"\operatorname{softmax}"

    def run(self, size, scores) -> torch.Tensor:
        powers = (scores - scores.amax(dim=-1, keepdim=True)).exp()
        return powers / powers.sum(dim=-1, keepdim=True)

    analysed = True

    def errors(self, output, scores) -> torch.Tensor:
        """Return the bound for `p = eᵈ/Σ`: p(|d| + 2) of the power, p Σ p(|d| + 3) of the sum, p of the quotient; 0
        stays 0."""
        far = (scores.amax(dim=-1, keepdim=True) - scores).add_(3)
        terms = (output * far).nan_to_num_(0.0, posinf=float("inf"))
        return terms.addcmul_(output, terms.sum(dim=-1, keepdim=True))


GELU = function(
    "GELU",
    r"\operatorname{GELU}",
    lambda x: x * (1 + (x / sqrt(2)).erf()) / 2,
    "The exact GELU `x · ½(1 + erf(x/√2))` (Hendrycks and Gimpel 2016, section 2).",
)
GELUTanh = function(
    "GELUTanh",
    r"\operatorname{GELU}_{\tanh}",
    lambda x: x * (1 + (sqrt(2 / pi) * (x + 0.044715 * x**3)).tanh()) / 2,
    "The approximate GELU `½x(1 + tanh(√(2/π)(x + 0.044715x³)))` (Hendrycks and Gimpel 2016, section 2).",
)
ReLU = function("ReLU", r"\operatorname{ReLU}", lambda x: x.clamp(min=0), "`max(0, x)`.")
Tanh = function("Tanh", r"\tanh", lambda x: x.tanh(), "`(eˣ - e⁻ˣ) / (eˣ + e⁻ˣ)`.")
SiLU = function("SiLU", r"\operatorname{SiLU}", lambda x: x * x.sigmoid(), "`x · σ(x)` (Elfwing et al. 2018).")
ReLU6 = function("ReLU6", r"\operatorname{ReLU6}", lambda x: x.clamp(0, 6), "`min(max(x, 0), 6)` (Howard et al. 2017).")
HardSigmoid = function(
    "HardSigmoid",
    r"\operatorname{HardSigmoid}",
    lambda x: (x + 3).clamp(0, 6) / 6,
    "`ReLU6(x + 3) / 6` (Howard et al. 2019).",
)
HardSwish = function(
    "HardSwish",
    r"\operatorname{HardSwish}",
    lambda x: x * (x + 3).clamp(0, 6) / 6,
    "`x · ReLU6(x + 3) / 6` (Howard et al. 2019, section 5.2).",
)
Mish = function(
    "Mish",
    r"\operatorname{Mish}",
    lambda x: x * (x.clamp(min=0) + (-x.abs()).exp().log1p()).tanh(),
    "`x · tanh(log(1 + eˣ))` (Misra 2019).",
)
SCALE, ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
"""λ and α of SELU."""
SELU = function(
    "SELU",
    r"\operatorname{SELU}",
    lambda x: SCALE * (x.clamp(min=0) + ALPHA * x.clamp(max=0).expm1()),
    "`λ · ELU_α(x)` with λ = 1.0507… and α = 1.6732… (Klambauer et al. 2017).",
)
LeakyReLU = function(
    "LeakyReLU",
    r"\operatorname{LeakyReLU}",
    lambda x, slope: x.clamp(min=0) + slope * x.clamp(max=0),
    "x where it is above 0, else a fraction of it (Maas et al. 2013).",
    fields=("slope",),
)
SoftShrink = function(
    "SoftShrink",
    r"\operatorname{SoftShrink}",
    lambda x, edge: (x - edge).clamp(min=0) + (x + edge).clamp(max=0),
    "x - λ where x is above λ, x + λ where x is below -λ, else 0.",
    fields=("edge",),
)
HardShrink = function(
    "HardShrink",
    r"\operatorname{HardShrink}",
    lambda x, edge: x * (x.abs() > edge),
    "x where |x| is above λ, else 0.",
    fields=("edge",),
)


class Softplus(_UnaryFunction):
    """`log(1 + e^{βx}) / β`, and x itself where βx is above the threshold."""

    word = r"\operatorname{softplus}"
    fields = ("beta", "threshold")

    def subscripts(self, printer) -> list[str]:
        return [] if (self.get("beta"), self.get("threshold")) == (1, 20) else super().subscripts(printer)

    def run(self, size, x) -> torch.Tensor:
        beta, y = self.get("beta"), x * self.get("beta")
        return torch.where(y > self.get("threshold"), x, (y.clamp(min=0) + (-y.abs()).exp().log1p()) / beta)


class ELU(_UnaryFunction):
    """x where it is above 0, else `α(e^{x/β} - 1)`, and all of it times a scale (Clevert et al. 2016)."""

    word = r"\operatorname{ELU}"
    fields = ("alpha", "scale", "input_scale")

    def subscripts(self, printer) -> list[str]:
        alpha, *scales = super().subscripts(printer)
        return [alpha, *scales] if scales != ["1", "1"] else [alpha] if alpha != "1" else []

    def run(self, size, x) -> torch.Tensor:
        alpha, scale, inner = (self.get(field) for field in self.fields)
        return scale * (x.clamp(min=0) + alpha * (inner * x.clamp(max=0)).expm1())


class PReLU(Elementwise, _FunctionCall):
    """x where it is above 0, else x times a learned number, of each channel or of all (He et al. 2015)."""

    word = r"\operatorname{PReLU}"

    def infer(self, same, x, slopes) -> Shape:
        return x

    def run(self, size, x, slopes) -> torch.Tensor:
        if slopes.numel() > 1:
            slopes = slopes.reshape(-1, *(1,) * (x.dim() - 2))
        return x.clamp(min=0) + slopes * x.clamp(max=0)

    def _dependencies(self, size, cells, x, slopes) -> tuple[IndexSet, ...]:
        return through_broadcast(cells, shape_of(x)), through_channel_broadcast(cells, shape_of(slopes))
