"""Nodes of normalization."""

from __future__ import annotations

from collections.abc import Iterable

import sympy
import torch
from sympy import sympify

from tracer.expr.function_call import COMMA, _WithFields, decimal, tight
from tracer.expr.index_sets import (
    IndexSet,
    RowWise,
    Standardisation,
    Term,
    list_terms,
)
from tracer.expr.node import Node, Shape, broadcast
from tracer.expr.reductions import along
from tracer.symbols.axes import name_axes
from tracer.utils.text import latex_scientific

# Normalisation of each token on its own.


def _epsilon_term(eps: sympy.Expr) -> str:
    """Return ε as a summand, or "" if it is 0."""
    return f" + {latex_scientific(float(eps))}" if eps else ""


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

    def run(self, size, x, gamma) -> torch.Tensor:
        return x / ((x * x).mean(dim=-1, keepdim=True) + float(self.args[0])).sqrt() * gamma

    def unit(self, x) -> torch.Tensor:
        return x / ((x * x).mean() + float(self.args[0])).sqrt()


# Normalisation over named axes, over groups of channels, and by running statistics.
#
# In `\left(…\right)_{\text{by channel}}` a vector lies along the channels, the axis behind the batch.


def _affine(text: str, names: str | None, operands, printer) -> str:
    r"""Return `… \odot \gamma + \beta` with the factors that exist: "weight bias", "weight", "bias" or nothing."""
    operands = list(operands)
    if "weight" in (names or ""):
        text = rf"{text} \odot {operands.pop(0).factor_latex(printer)}"
    return f"{text} + {operands[0].factor_latex(printer)}" if operands else text


def _by_channel(x, vector):
    """Reshape a vector to lie along the axis behind the batch."""
    return vector.reshape(-1, *(1,) * (x.dim() - 2))


def _scale_and_shift(x, operands: str | None, vectors):
    vectors = list(vectors)
    if "weight" in (operands or ""):
        x = x * vectors.pop(0)
    return x + vectors[0] if vectors else x


class _Normalisation(_WithFields):
    @property
    def needs_parens(self) -> bool:
        return bool(self.get("affine")) and not self.has_channel_vectors

    @property
    def needs_parens_in_script(self) -> bool:
        return not self.has_channel_vectors

    @property
    def has_channel_vectors(self) -> bool:
        """Return whether vectors lie along channels, which is printed."""
        return False

    def around(self, text: str) -> str:
        return rf"\left({text}\right)_{{\text{{by channel}}}}" if self.has_channel_vectors else text

    def infer(self, same, x, *vectors) -> Shape:
        return x if self.has_channel_vectors else broadcast(same, x, *vectors)

    @property
    def has_weight(self) -> bool:
        return "weight" in (self.get("affine") or "")

    def axes_latex(self, printer) -> str:
        """Return the axes whose numbers are normalised together, as they stand below their statistics."""
        return COMMA.join(along(self.get("labels"), self.get("axes") or (), printer))

    def over(self, rank: int) -> Iterable[int]:
        """Return the axes whose numbers are normalised together: the last ones."""
        return range(rank - len(self.get("axes") or (1,)), rank)

    def pattern(self, size, shape, *vectors) -> tuple[str, dict[str, int]]:
        rank = len(shape)
        row, cell = name_axes(rank, self.over(rank), "k"), name_axes(rank)
        return f"{row}, {'a1' if self.has_channel_vectors else cell} -> {cell}", {}


class BatchNorm(_Normalisation):
    """`(x - μ) / √(σ² + ε) ⊙ γ + β` for each channel, with the running mean and variance (Ioffe and Szegedy 2015).

    `BatchNorm(x, mean, variance, γ, β, eps=…, affine="weight bias", wide=True)`; `wide` if there are axes behind the
    channels.
    """

    fields = ("eps", "affine", "wide")

    @property
    def has_channel_vectors(self) -> bool:
        return bool(self.get("wide"))

    def _latex(self, printer) -> str:
        x, mean, variance = (operand.factor_latex(printer) for operand in self.operands[:3])
        text = rf"\frac{{{x} - {mean}}}{{\sqrt{{{variance} + {decimal(self.get('eps'))}}}}}"
        return self.around(_affine(text, self.get("affine"), self.operands[3:], printer))

    def over(self, rank) -> Iterable[int]:
        return ()

    def run(self, size, x, *vectors) -> torch.Tensor:
        mean, variance, *rest = (_by_channel(x, vector) for vector in vectors)
        factor = 1 / (variance + self.get("eps")).sqrt()
        factor = rest.pop(0) * factor if self.has_weight else factor
        shift = rest[0] - mean * factor if rest else -mean * factor
        return x * factor + shift  # as kernels compute it: its rounding is that of larger numbers than x - μ

    def contributions(self, size, cell, x, *vectors) -> list[Term]:
        read = self.dependencies(size, IndexSet.single([i + 1 for i in cell], cell), x, *vectors)
        at, mean, variance, *rest = list_terms(read, (x, *vectors))
        scale = variance.value + self.get("eps")
        if scale <= 0:  # a root of nothing: the run has no number there either
            return [at, mean, variance, *rest]
        unit = 1 / scale**0.5
        gamma = rest[0].value if self.has_weight else 1.0
        factor, share = unit * gamma, (at.value - mean.value) * unit * gamma
        terms = [at._replace(share=at.value * factor, factor=factor)]
        terms += [
            mean._replace(share=-mean.value * factor, factor=-factor),
            variance._replace(share=share, counted=False),
        ]
        if self.has_weight:
            terms.append(rest.pop(0)._replace(share=share, counted=False))
        return terms + [term._replace(share=term.value, factor=1.0) for term in rest]


class _Statistics(Standardisation, _Normalisation):
    """`(x - μ) / √(σ² + ε) ⊙ γ + β` with μ and the biased σ² of x itself."""

    def _latex(self, printer) -> str:
        x, below = self.operands[0].factor_latex(printer), self.axes_latex(printer)
        below = rf"_{{{below}}}" if below else ""
        added = f" + {decimal(self.get('eps'))}" if self.get("eps") else ""
        deviation = rf"\sqrt{{\sigma^2{below}({x}){added}}}"
        text = rf"\frac{{{x} - \mu{below}({x})}}{{{deviation}}}"
        return self.around(_affine(text, self.get("affine"), self.operands[1:], printer))

    def normalise(self, x) -> torch.Tensor:
        """Normalise over the last axis."""
        centred = x - x.mean(-1, keepdim=True)
        return centred / ((centred * centred).mean(-1, keepdim=True) + self.get("eps")).sqrt()

    def unit(self, x) -> torch.Tensor:
        return (x - x.mean()) / (x.var(correction=0) + self.get("eps")).sqrt()


class GroupNorm(_Statistics):
    """Over groups of channels, of each input alone (Wu and He 2018).

    `GroupNorm(x, γ, β, eps=…, affine=…, groups=…)`."""

    fields = ("eps", "affine", "groups")

    @property
    def has_channel_vectors(self) -> bool:
        return bool(self.get("affine"))

    def axes_latex(self, printer) -> str:
        return rf"\text{{groups }}{self.get('groups')}"

    def run(self, size, x, *vectors) -> torch.Tensor:
        normalised = self.normalise(x.reshape(x.shape[0], self.get("groups"), -1)).reshape(x.shape)
        return _scale_and_shift(normalised, self.get("affine"), [_by_channel(x, vector) for vector in vectors])

    def pattern(self, size, shape, *vectors) -> tuple[str, dict[str, int]]:
        groups = self.get("groups")
        return "b (g k) *, (g c) -> b (g c) ...", {"g": groups, "c": shape[1] // groups}


class ChannelNorm(_Statistics):
    """Over named axes, with one γ and β for each channel: over those of the picture an instance norm (Ulyanov et al.
    2016), over the batch's too a batch norm that trains. `ChannelNorm(x, γ, β, eps=…, affine=…, axes=…, labels=…)`."""

    fields = ("eps", "affine", "axes", "labels")

    @property
    def has_channel_vectors(self) -> bool:
        return bool(self.get("affine"))

    def run(self, size, x, *vectors) -> torch.Tensor:
        axes = self.get("axes")
        centred = x - x.mean(axes, keepdim=True)
        normalised = centred / ((centred * centred).mean(axes, keepdim=True) + self.get("eps")).sqrt()
        return _scale_and_shift(normalised, self.get("affine"), [_by_channel(x, vector) for vector in vectors])

    def over(self, rank) -> Iterable[int]:
        return (axis % rank for axis in self.get("axes"))


class LayerNormOver(_Statistics):
    """A layer norm over the last axes, with or without γ and β (Ba et al. 2016). `LayerNormOver(x, γ, β, eps=…,
    affine=…, axes=…, labels=…)`; axes are None where it is the last one."""

    fields: tuple[str, ...] = ("eps", "affine", "axes", "labels")

    def run(self, size, x, *vectors) -> torch.Tensor:
        lead = x.shape[: -len(self.get("axes") or (1,))]
        return _scale_and_shift(self.normalise(x.reshape(*lead, -1)).reshape(x.shape), self.get("affine"), vectors)


INSIDE_ROOT, OUTSIDE_ROOT, ROOT_FLOOR = "inside", "outside", "clamped"
"""Uses of a norm's ε: added to the variance, added to its root, or the least value of the root."""


class DeviationNorm(LayerNormOver):
    """A norm that divides by another deviation: by that of n - 1 numbers (`less=1`), by the root of the mean square
    (`centred=False`), or with ε elsewhere (`how`). `DeviationNorm(x, γ, β, eps=…, affine=…, axes=…, labels=…,
    centred=…, less=…, how=…, count=…)`; `count` is n."""

    fields = (*LayerNormOver.fields, "centred", "less", "how", "count")

    def _latex(self, printer) -> str:
        x, below = self.operands[0].factor_latex(printer), self.axes_latex(printer)
        eps, how, count = self.get("eps"), self.get("how"), sympify(self.get("count"))
        added, below = f" + {decimal(eps)}" if eps else "", rf"_{{{below}}}" if below else ""
        variance = rf"\sigma^2{below}({x})"
        if not self.get("centred"):
            below = rf"_{{{below[2:-1]} \to 1}}" if below else ""
            variance = rf"\operatorname{{mean}}{below}\left({{{tight(self.operands[0], printer)}}}^2\right)"
        elif self.get("less"):
            variance = rf"\frac{{{printer._print(count)}}}{{{printer._print(count - self.get('less'))}}}\,{variance}"
        deviation = rf"\sqrt{{{variance}{added}}}" if how == INSIDE_ROOT else rf"\sqrt{{{variance}}}"
        deviation += added if how == OUTSIDE_ROOT else ""
        deviation = rf"\max\left({deviation},\,{decimal(eps)}\right)" if how == ROOT_FLOOR else deviation
        above = rf"{x} - \mu{below}({x})" if self.get("centred") else x
        return _affine(rf"\frac{{{above}}}{{{deviation}}}", self.get("affine"), self.operands[1:], printer)

    def normalise(self, x) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True) if self.get("centred") else x
        variance = (centred * centred).sum(-1, keepdim=True) / (x.shape[-1] - self.get("less"))
        eps, how = self.get("eps"), self.get("how")
        root = (variance + eps).sqrt() if how == INSIDE_ROOT else variance.sqrt()
        return centred / (root + eps if how == OUTSIDE_ROOT else root.clamp(min=eps) if how == ROOT_FLOOR else root)

    def unit(self, x) -> torch.Tensor:
        return self.normalise(x.reshape(-1)).reshape(x.shape)


class RMSNormOver(Standardisation, _Normalisation):
    """`x / √(mean x² + ε)` over the last axes (Zhang and Sennrich 2019). `RMSNormOver(x, γ, eps=…, affine=…, axes=…,
    labels=…)`; axes are None where it is the last one."""

    fields = ("eps", "affine", "axes", "labels")

    def _latex(self, printer) -> str:
        x, base = self.operands[0].factor_latex(printer), tight(self.operands[0], printer)
        below = rf"_{{{below} \to 1}}" if (below := self.axes_latex(printer)) else ""
        eps = self.get("eps")
        mean = rf"\operatorname{{mean}}{below}\left({{{base}}}^2\right)" + (f" + {decimal(eps)}" if eps else "")
        return _affine(rf"\frac{{{x}}}{{\sqrt{{{mean}}}}}", self.get("affine"), self.operands[1:], printer)

    def run(self, size, x, *vectors) -> torch.Tensor:
        axes = tuple(range(-len(self.get("axes") or (1,)), 0))
        normalised = (
            x / ((x * x).sum(axes, keepdim=True) / sympy.prod(x.shape[axis] for axis in axes) + self.get("eps")).sqrt()
        )
        return _scale_and_shift(normalised, self.get("affine"), vectors)

    def unit(self, x) -> torch.Tensor:
        return x / ((x * x).mean() + self.get("eps")).sqrt()
