"""Functions along named axes that become one number: sums, means, extremes, lengths."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import mul

import sympy
import torch

from tracer.expr.function_call import COMMA, _FunctionCall, decimal, setting_latex
from tracer.expr.index_sets import IndexSet, replace_axes, shape_of
from tracer.expr.math.elementwise import function
from tracer.expr.node import Shape
from tracer.expr.provenance_rules import ArgSelect, Linear, OfAll


def along(labels, axes, printer) -> list[str]:
    r"""Return axes by their sizes, `H` and `W`; where that would be ambiguous, `\text{axis }1`, from 0."""
    if labels:
        return [setting_latex(label, printer) for label in labels]
    return [rf"\text{{axis }}{axis}" for axis in axes]


class _Reduction(OfAll, _FunctionCall):
    """Base of reductions over some axes: these vanish, or stay as axes of size 1, which is printed as `D → 1`."""

    fields: tuple[str, ...] = ("axes", "labels", "keep")
    compute: Callable

    def subscripts(self, printer) -> list[str]:
        *first, last = along(self.get("labels"), self.get("axes"), printer) or [""]
        return [*first, rf"{last} \to 1"] if self.get("keep") else [*first, last] if last else []

    def infer(self, same, shape) -> Shape:
        axes = self.get("axes")
        if self.get("keep"):
            return tuple(sympy.Integer(1) if i in axes else size for i, size in enumerate(shape))
        return tuple(size for i, size in enumerate(shape) if i not in axes)

    def run(self, size, x) -> torch.Tensor:
        axes = self.get("axes")
        stay = [i for i in range(x.dim()) if i not in axes]
        reduced = self.along_last(x.permute([*stay, *axes]).reshape(*(x.shape[i] for i in stay), -1))
        return reduced.reshape([1 if i in axes else n for i, n in enumerate(x.shape)]) if self.get("keep") else reduced

    def along_last(self, x) -> torch.Tensor:
        """Reduce the last axis."""
        return self.compute(x)

    def _dependencies(self, size, cells, x) -> tuple[IndexSet, ...]:
        shape = shape_of(x)
        axes, output_axes = self.get("axes"), iter(cells.axes)
        if self.get("keep"):
            return (replace_axes(cells, shape, dict.fromkeys(axes)),)
        return (IndexSet.of(shape, (None if i in axes else next(output_axes) for i in range(len(shape)))),)


class _LinearReduction(Linear, _Reduction):
    """Base of reductions in which each number has a share."""


Mean = function("Mean", r"\operatorname{mean}", lambda x: x.sum(-1) / x.shape[-1], "The mean.", _LinearReduction)
Sum = function("Sum", r"\operatorname{sum}", lambda x: x.sum(-1), "The sum.", _LinearReduction)
Prod = function(
    "Prod", r"\operatorname{prod}", lambda x: reduce(mul, x.unbind(-1)), "The product of all numbers.", _Reduction
)


class Max(ArgSelect, _Reduction):
    """Largest number."""

    word = r"\max"

    def along_last(self, x) -> torch.Tensor:
        return x.sort(-1).values[..., -1]

    def choose(self, cell, numbers) -> float:
        return max(numbers)


class Min(ArgSelect, _Reduction):
    """Smallest number."""

    word = r"\min"

    def along_last(self, x) -> torch.Tensor:
        return x.sort(-1).values[..., 0]

    def choose(self, cell, numbers) -> float:
        return min(numbers)


ArgMax = function(
    "ArgMax",
    r"\operatorname{argmax}",
    lambda x: (x == x.amax(-1, keepdim=True)).double().argmax(-1),
    "The index of the largest number, counted from 0; the first of several.",
    _Reduction,
)
ArgMin = function(
    "ArgMin",
    r"\operatorname{argmin}",
    lambda x: (x == x.amin(-1, keepdim=True)).double().argmax(-1),
    "The index of the smallest number, counted from 0; the first of several.",
    _Reduction,
)
AnyOf = function(
    "AnyOf",
    r"\operatorname{any}",
    lambda x: ((x != 0).sum(-1) > 0).double(),
    "1 where any number is not 0.",
    _Reduction,
)
AllOf = function(
    "AllOf",
    r"\operatorname{all}",
    lambda x: ((x == 0).sum(-1) == 0).double(),
    "1 where no number is 0.",
    _Reduction,
)
CountNonzero = function(
    "CountNonzero", r"\operatorname{count}", lambda x: (x != 0).sum(-1), "How many numbers are not 0.", _Reduction
)


class LogSumExp(_Reduction):
    """`log Σ eˣ`."""

    word = r"\operatorname{logsumexp}"

    def along_last(self, x) -> torch.Tensor:
        largest = x.amax(-1, keepdim=True)
        return (x - largest).exp().sum(-1).log() + largest[..., 0]


class Variance(_Reduction):
    """Mean of `(x - μ)²`; with `less` (1: unbiased) the sum is divided by n - less."""

    word = r"\operatorname{var}"
    fields = ("less", "axes", "labels", "keep")

    def subscripts(self, printer) -> list[str]:
        less = self.get("less")
        notes = [] if not less else [r"\text{unbiased}"] if less == 1 else [rf"\text{{less }}{decimal(less)}"]
        return [*notes, *super().subscripts(printer)]

    def along_last(self, x) -> torch.Tensor:
        centred = x - x.sum(-1, keepdim=True) / x.shape[-1]
        return (centred * centred).sum(-1) / max(x.shape[-1] - (self.get("less") or 0), 0)


class Std(Variance):
    """Root of the variance."""

    word = r"\operatorname{std}"

    def along_last(self, x) -> torch.Tensor:
        return super().along_last(x).sqrt()


class Norm(_Reduction):
    """`‖x‖_p = (Σ |x|^p)^{1/p}`; p may be infinite."""

    fields = ("p", "usual", "axes", "labels", "keep")

    def _latex(self, printer) -> str:
        below = [setting_latex(self.get("p"), printer), *([] if self.get("usual") else self.subscripts(printer))]
        return rf"\left\lVert {printer._print(self.args[0])} \right\rVert_{{{COMMA.join(below)}}}".replace("_{2}", "_2")

    def along_last(self, x) -> torch.Tensor:
        p = self.get("p")
        if p == float("inf"):
            return x.abs().amax(-1)
        if p == 0:
            return (x != 0).double().sum(-1)
        return (x.abs() ** p).sum(-1) ** (1 / p)
