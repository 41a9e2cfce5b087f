"""Normalisation of each token on its own."""

from __future__ import annotations

import sympy
import torch

from tracer.expr.node import Node, Shape, broadcast
from tracer.expr.provenance_rules import RowWise, Standardisation
from tracer.symbols.notation import number


def _epsilon_term(eps: sympy.Expr) -> str:
    """Return ε as a summand, or "" if it is 0."""
    return f" + {number(float(eps))}" if eps else ""


class LayerNorm(Standardisation, RowWise, Node):
    """`(x - μ) / √(σ² + ε) ⊙ γ + β` over the last axis, with the biased variance (Ba et al. 2016, section 3).

    `LayerNorm(eps, x, gamma, beta)`; without β in models without biases.
    """

    needs_parens = True

    def __new__(cls, eps, x, gamma, *beta):
        return super().__new__(cls, sympy.Float(eps), x, gamma, *beta)

    def _latex(self, printer) -> str:
        x, gamma, *beta = (operand.factor_latex(printer) for operand in self.operands)
        deviation = rf"\sqrt{{\sigma^2({x}){_epsilon_term(self.args[0])}}}"
        return rf"\frac{{{x} - \mu({x})}}{{{deviation}}} \odot {' + '.join([gamma, *beta])}"

    def infer(self, same, *shapes) -> Shape:
        return broadcast(same, *shapes)

    def run(self, size, x, gamma, *beta) -> torch.Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        variance = (centred * centred).mean(dim=-1, keepdim=True)
        normed = centred / (variance + float(self.args[0])).sqrt() * gamma
        return normed + beta[0] if beta else normed

    analysed = True

    def errors(self, output, x, gamma, *beta) -> torch.Tensor:
        """Return the bound for `n = c/σ`, `c = x - μ`: (mean|x| + |c|)/σ of c, |n| (mean|x|/σ + 3) of σ, |n| of the
        quotient; then |nγ|, and |nγ + β|."""
        centred = (x - x.mean(dim=-1, keepdim=True)).abs_()
        sigma = ((centred * centred).mean(dim=-1, keepdim=True) + float(self.args[0])).sqrt()
        size = x.abs().mean(dim=-1, keepdim=True)
        off = centred.mul_(size / sigma + 6).add_(size).div_(sigma) * gamma.abs()
        return off.add_(output.abs()) if beta else off

    def unit(self, x) -> torch.Tensor:
        return (x - x.mean()) / (x.var(correction=0) + float(self.args[0])).sqrt()


class RMSNorm(Standardisation, RowWise, Node):
    """`x / √(mean x² + ε) ⊙ γ` over the last axis (Zhang and Sennrich 2019, equation 4). `RMSNorm(eps, x, gamma)`."""

    needs_parens = True

    def __new__(cls, eps, x, gamma):
        return super().__new__(cls, sympy.Float(eps), x, gamma)

    def _latex(self, printer) -> str:
        x, gamma = (operand.factor_latex(printer) for operand in self.operands)
        mean = rf"\operatorname{{mean}}({{{x}}}^2){_epsilon_term(self.args[0])}"
        return rf"\frac{{{x}}}{{\sqrt{{{mean}}}}} \odot {gamma}"

    def infer(self, same, *shapes) -> Shape:
        return broadcast(same, *shapes)

    def run(self, size, x, gamma) -> torch.Tensor:
        return x / ((x * x).mean(dim=-1, keepdim=True) + float(self.args[0])).sqrt() * gamma

    def unit(self, x) -> torch.Tensor:
        return x / ((x * x).mean() + float(self.args[0])).sqrt()
