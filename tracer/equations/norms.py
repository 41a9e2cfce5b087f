"""Normalisation of each token on its own."""

from __future__ import annotations

import sympy

from tracer.equations.node import Node, broadcast


class LayerNorm(Node):
    """`(x - μ) / √(σ² + ε) ⊙ γ + β` over the last axis, with the biased variance (Ba et al. 2016, section 3).

    `LayerNorm(x, gamma, beta, eps)`.
    """

    loose = True

    def __new__(cls, x, gamma, beta, eps):
        return super().__new__(cls, x, gamma, beta, sympy.Float(eps))

    def _latex(self, printer):
        x, gamma, beta = (argument.inside(printer) for argument in self.args[:3])
        deviation = rf"\sqrt{{\sigma^2({x}) + \epsilon}}"
        return rf"\frac{{{x} - \mu({x})}}{{{deviation}}} \odot {gamma} + {beta}"

    def infer(self, same, x, gamma, beta):
        return broadcast(same, x, gamma, beta)

    def run(self, size, x, gamma, beta):
        centred = x - x.mean(dim=-1, keepdim=True)
        variance = (centred * centred).mean(dim=-1, keepdim=True)
        return centred / (variance + float(self.args[3])).sqrt() * gamma + beta
