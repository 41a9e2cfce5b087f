"""Functions applied to every element, and the softmax over a row; each written out, not called from a kernel."""

from __future__ import annotations

from math import pi, sqrt

from tracer.equations.node import Node
from tracer.equations.ways import AlongLast, ByCell, Shares


class _Function(ByCell, Node):
    word = ""

    def _latex(self, printer):
        return rf"{self.word}\left({printer._print(self.args[0])}\right)"

    def infer(self, same, shape):
        return shape


class Softmax(Shares, AlongLast, _Function):
    """Row-wise `exp(s_ij) / Σ_k exp(s_ik)` (Bridle 1990), with the row's maximum subtracted."""

    word = r"\operatorname{softmax}"

    def run(self, size, scores):
        powers = (scores - scores.amax(dim=-1, keepdim=True)).exp()
        return powers / powers.sum(dim=-1, keepdim=True)

    analysed = True

    def errors(self, made, scores):
        """Of `p = eᵈ/Σ`: p(|d| + 2) of the power, p Σ p(|d| + 3) of the sum, p of the quotient; 0 stays 0."""
        far = (scores.amax(dim=-1, keepdim=True) - scores).add_(3)
        terms = (made * far).nan_to_num_(0.0, posinf=float("inf"))
        return terms.addcmul_(made, terms.sum(dim=-1, keepdim=True))


class GELU(_Function):
    """The exact GELU `x · ½(1 + erf(x/√2))` (Hendrycks and Gimpel 2016, section 2)."""

    word = r"\operatorname{GELU}"

    def run(self, size, x):
        return x * (1 + (x / sqrt(2)).erf()) / 2


class GELUTanh(_Function):
    """The approximate GELU `½x(1 + tanh(√(2/π)(x + 0.044715x³)))` (Hendrycks and Gimpel 2016, section 2)."""

    word = r"\operatorname{GELU}_{\tanh}"

    def run(self, size, x):
        return x * (1 + (sqrt(2 / pi) * (x + 0.044715 * x**3)).tanh()) / 2


class ReLU(_Function):
    """`max(0, x)`."""

    word = r"\operatorname{ReLU}"

    def run(self, size, x):
        return x.clamp(min=0)


class Tanh(_Function):
    """`(eˣ - e⁻ˣ) / (eˣ + e⁻ˣ)`."""

    word = r"\tanh"

    def run(self, size, x):
        return x.tanh()


class SiLU(_Function):
    """`x · σ(x)` (Elfwing et al. 2018)."""

    word = r"\operatorname{SiLU}"

    def run(self, size, x):
        return x * x.sigmoid()
