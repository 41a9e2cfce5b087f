"""Functions applied to every element, and the softmax over a row; each written out, not called from a kernel."""

from __future__ import annotations

from math import pi, sqrt

import torch

from tracer.expr.math.elementwise import _UnaryFunction, function
from tracer.expr.provenance_rules import RowWise, SoftmaxShares


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
