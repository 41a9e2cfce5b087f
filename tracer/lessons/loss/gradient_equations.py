"""Gradient of a parameter as an equation of its call's operands and of the gradient at the call's output.

For Y = XW + b they are Xᵀ ∂L/∂Y, summed over the texts, and the sum of the rows of ∂L/∂Y; for a table, each row's sum
of the gradients of the tokens that read it; for the factor of a norm, the sum of the normalised input times ∂L/∂Y. A
parameter with several uses has the sum over them. Source: Goodfellow et al. 2016, Deep Learning, section 6.5.6.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import sympy
import torch
import torch.nn.functional as F

from tracer.expr import (
    LayerNorm,
    Lookup,
    MergeHeads,
    Node,
    OneHot,
    Plus,
    Product,
    RMSNorm,
    Rows,
    SplitHeads,
    Tensor,
    Times,
    latex,
    statement,
)
from tracer.expr.function_call import COMMA
from tracer.lessons.loss.parameter_uses import PRODUCTS, ParameterUse
from tracer.record import Step
from tracer.symbols.notation import parse

LOSS = r"\mathcal{L}"
Values = dict[str, torch.Tensor]
"""The tensors of an equation by the keys of its letters."""


def derivative(of: str) -> str:
    r"""Return the LaTeX of a gradient of the loss: `\frac{\partial\mathcal{L}}{\partial\mathbf{W}}`."""
    return rf"\frac{{\partial {LOSS}}}{{\partial {of}}}"


def _sum_latex(sizes: Sequence, term: str, printer) -> str:
    """Return the LaTeX of a sum over the first axes of a term, by their sizes; the term itself for none."""
    axes = COMMA.join(map(printer._print, sizes))
    return rf"\sum_{{{axes}}} {term}" if sizes else term


class RowsProduct(Node):
    """`AᵀB` of matrices with one row for each token, summed over the texts: `RowsProduct(A, C, B)` of `[B, T, D]` and
    `[B, T, E]` is `[D, E]`; the sizes of the axes before the rows are printed below the sum."""

    needs_parens_in_script = True

    def _latex(self, printer) -> str:
        left, right = (printer._print(operand) for operand in self.operands)
        left = rf"\left({left}\right)" if r"\frac" in left or r"\operatorname" in left else left
        return _sum_latex(self.args[2:], rf"{{{left}}}^{{\top}}\,{right}", printer)

    def infer(self, same, left, right) -> tuple:
        return left[-1], right[-1]

    def run(self, size, left, right) -> torch.Tensor:
        return left.reshape(-1, left.shape[-1]).transpose(0, 1) @ right.reshape(-1, right.shape[-1])


class RowsSum(Node):
    """Sum of all rows: `RowsSum(A, B, T)` of `[B, T, D]` is `[D]`; the sizes of the axes are printed below it."""

    def _latex(self, printer) -> str:
        term = self.args[0].factor_latex(printer)
        term = rf"\left({term}\right)" if isinstance(self.args[0], Times) else term
        return _sum_latex(self.args[1:], term, printer)

    def infer(self, same, shape) -> tuple:
        return shape[len(self.args) - 1 :]

    def run(self, size, tensor) -> torch.Tensor:
        return tensor.flatten(0, len(self.args) - 2).sum(0)


class TokenRows(Node):
    """Rows of a tensor added up by the numbers of their tokens: `TokenRows(A, t, V, B)` of `[B, T, D]` and `[B, T]`
    is the sum over B of `onehot(t)ᵀ A`, `[V, D]`."""

    needs_parens_in_script = True

    def _latex(self, printer) -> str:
        rows, (numbers, classes) = self.args[0].factor_latex(printer), map(printer._print, self.args[1:3])
        term = rf"{{{OneHot.word}_{{{classes}}}\left({numbers}\right)}}^{{\top}}\,{rows}"
        return _sum_latex(self.args[3:], term, printer)

    def infer(self, same, rows, numbers) -> tuple:
        return self.args[2], rows[-1]

    def run(self, size, rows, numbers) -> torch.Tensor:
        which = F.one_hot(numbers.flatten().long(), int(size(self.args[2]))).to(rows.dtype)
        return which.transpose(0, 1) @ rows.reshape(-1, rows.shape[-1])


class PaddedRows(Node):
    """Rows of a table that were used, above rows of zeros, which were not: `PaddedRows(A, N, T, D)` of `[T, D]` is
    `[N, D]`."""

    def _latex(self, printer) -> str:
        total, rows, columns = self.args[1:]
        shape = rf"\left({printer._print(total - rows)}\right) \times {printer._print(columns)}"
        return rf"\left[{printer._print(self.args[0])}\ ;\ \mathbf{{0}}_{{{shape}}}\right]"

    def infer(self, same, shape) -> tuple:
        return self.args[1], *shape[1:]

    def run(self, size, rows) -> torch.Tensor:
        unused = int(size(self.args[1])) - rows.shape[0]
        return torch.cat([rows, torch.zeros(unused, *rows.shape[1:], dtype=rows.dtype)])


FACTOR = Tensor(r"\boldsymbol{\gamma}", (), "factor")


class NormalisedLayer(Node):
    """`(x - μ) / √(σ² + ε)` over the last axis: a layer norm before its γ and β; `NormalisedLayer(eps, x)`."""

    whole = LayerNorm

    def __new__(cls, eps, x):
        return super().__new__(cls, sympy.Float(eps), x)

    def _latex(self, printer) -> str:
        return printer._print(self.whole(*self.args, FACTOR)).rpartition(r" \odot ")[0]

    def infer(self, same, shape) -> tuple:
        return shape

    def run(self, size, x) -> torch.Tensor:
        return self.whole(*self.args, FACTOR).run(size, x, torch.ones((), dtype=x.dtype))


class NormalisedRMS(NormalisedLayer):
    """`x / √(mean x² + ε)` over the last axis: an RMS norm before its γ; `NormalisedRMS(eps, x)`."""

    whole = RMSNorm


NORMS = {"layer_norm": (LayerNorm, NormalisedLayer), "rms_norm": (RMSNorm, NormalisedRMS)}


class LogitsGradient(Node):
    """`(softmax(Z) - onehot(t)) / (B (T - 1))`, each row with the token after it; the last row, without one, is 0.

    It takes logits `[B, T, V]` and tokens `[B, T]`.
    """

    def _latex(self, printer) -> str:
        logits, tokens = map(printer._print, self.operands)
        answers = rf"\operatorname{{softmax}}\left({{{logits}}}_{{[:T-1]}}\right)"
        wanted = rf"{OneHot.word}_{{V}}\left({{{tokens}}}_{{[\ldots,\,1:]}}\right)"
        return rf"\left[\frac{{{answers} - {wanted}}}{{B\,\left(T - 1\right)}}\ ;\ \mathbf{{0}}_{{1 \times V}}\right]"

    def infer(self, same, logits, tokens) -> tuple:
        return logits

    def run(self, size, logits, tokens) -> torch.Tensor:
        B, T, V = logits.shape
        rows = (logits[:, :-1].softmax(-1) - F.one_hot(tokens[:, 1:], V).to(logits.dtype)) / (B * (T - 1))
        return torch.cat([rows, torch.zeros_like(logits[:, :1])], dim=1)


def equation(
    uses: Sequence[ParameterUse],
    steps: Sequence[Step],
    path: str,
    shape: tuple[str, ...],
    values: Values,
    gradients: Values,
) -> tuple[str, bool, Node]:
    """Return the letter of a parameter, whether it is read transposed, and its gradient as an equation.

    `steps` are the lines that read it, one for each use, and `shape` is its own in symbols. The values of its
    letters are added to `values`; `gradients` are those at the results of the uses, by `id`.
    """
    letters = [_Letters(use, step, path) for use, step in zip(uses, steps, strict=True)]
    terms = [each.term(shape, values, gradients) for each in letters]
    symbols = {(each.symbol, each.transposed) for each in letters}
    if len(symbols) > 1:
        raise LookupError(f"{path} has several letters, {', '.join(sorted(symbol for symbol, _ in symbols))}")
    ((symbol, transposed),) = symbols
    return symbol, transposed, terms[0] if len(terms) == 1 else Plus(*terms)


class _Letters:
    """One use of a parameter, and the letters of its line in the textbook. Raise LookupError where the line differs
    from the call, so that its letters would stand for other tensors."""

    def __init__(self, use: ParameterUse, step: Step, path: str):
        self.use, self.step = use, step
        name = next(name for name in step.names if name.of == f"parameter {path}")
        self.symbol, self.transposed = name.symbol, name.transposed
        self.axes = [parse(size) for size in step.symbolic]
        self.summed = use.call == "embedding" and " + " in step.latex
        results = use.sums if self.summed else use.results
        self.result = next((each for each in results if tuple(each.shape) == step.shape), None)
        if self.result is None:
            raise LookupError(f"the line {step.id} has another shape than the result of the call")

    def term(self, shape: tuple[str, ...], values: Values, gradients: Values) -> Node:
        """Return the part of the gradient that comes from this use."""
        step, use = self.step, self.use
        key = f"gradient {step.id}"
        values[key] = gradients[str(id(self.result))]
        gradient: Node = Tensor(derivative(step.symbol), tuple(self.axes), key)
        lead = self.axes[:-1]
        if self._split():
            gradient, lead = MergeHeads(gradient, self.axes[1]), [self.axes[0], self.axes[2]]
        if use.operand is not None:
            values[f"operand {step.id}"] = use.operand
        if use.call in PRODUCTS:
            operand = self._operand(self._check_linear())
            if use.argument == "bias":
                return RowsSum(gradient, *lead)
            stored_transposed = use.call == "linear" and not self.transposed  # its letter is Wᵀ
            factors = (gradient, operand) if stored_transposed else (operand, gradient)
            return RowsProduct(*factors, *lead[:-1])
        if use.call == "embedding":
            return self._of_lookup(gradient, shape)
        if use.call in NORMS:
            operand = self._operand(self._check_norm(NORMS[use.call][0], use.eps))
            if use.argument == "bias":
                return RowsSum(gradient, *lead)
            return RowsSum(Times(NORMS[use.call][1](use.eps, operand), gradient), *lead)
        if use.call == "mul" and use.operand is not None:
            eps = self._read_eps()
            letter = self._check_norm(RMSNorm, eps)
            node = NormalisedRMS(eps, self._operand(letter))
            values[f"operand {step.id}"] = self._find_norm_operand(node, use.operand)
            return RowsSum(Times(node, gradient), *lead)
        return self._of_sum(gradient, shape)

    def _read_eps(self) -> float:
        """Return the ε of an RMS norm that the code writes out."""
        number = re.search(r" \+ (?:([\d.]+) \\cdot )?10\^\{(-\d+)\}\}\} \\odot ", self.step.latex)
        if number is None:
            raise LookupError(f"the line {self.step.id} reads {self.step.latex}, which is no norm with a factor")
        return float(f"{number[1] or 1}e{number[2]}")

    def _find_norm_operand(self, norm: NormalisedRMS, normalised: torch.Tensor) -> torch.Tensor:
        """Return the tensor whose norm is `normalised`."""
        for tensor in self.use.before:
            if torch.allclose(norm.run(float, tensor.detach()), normalised.detach(), rtol=1e-5, atol=1e-6):
                return tensor
        raise LookupError(f"no call before it has the operand of the norm in the line {self.step.id}")

    def _of_lookup(self, gradient: Node, shape: tuple[str, ...]) -> Node:
        """Return the term of a table that is indexed by numbers; where these are the same for each text, as positions
        are, the rows of all texts are added first."""
        numbers = self.step.latex.rpartition(r"\left[")[2].removesuffix(r"\right]")
        lookup = Lookup(self._parameter(), Tensor(numbers, (), ""))
        if self.summed:
            self._check_sum(lookup)
        else:
            self._check(lookup)
        texts = self.axes[:-2]
        if self.summed and self.use.results[0].shape[0] == 1:
            gradient, texts = RowsSum(gradient, *texts), []
        return TokenRows(gradient, self._operand(numbers), parse(shape[0]), *texts)

    def _check_sum(self, part: Node) -> None:
        """Raise LookupError where the line is not a sum of which `part` is the last term."""
        text = self.step.latex
        if not (text.endswith(f" + {latex(part)}") and text.startswith(f"{self.step.symbol} = ")):
            raise LookupError(f"the line {self.step.id} is not a sum with {self.symbol}")

    def _of_sum(self, gradient: Node, shape: tuple[str, ...]) -> Node:
        """Return the term of a parameter that is added to each text, or to each token."""
        used = self._parameter() if self.use.rows is None else Rows(self._parameter(), self.axes[-2])
        self._check_sum(used)
        total = RowsSum(gradient, *self.axes[: len(self.axes) - len(shape)])
        return total if self.use.rows is None else PaddedRows(total, parse(shape[0]), *self.axes[-2:])

    def _split(self) -> bool:
        return r" = \operatorname{heads}_" in self.step.latex and len(self.axes) == 4

    def _parameter(self) -> Tensor:
        return Tensor(self.symbol, (), "")

    def _operand(self, letter: str) -> Tensor:
        return Tensor(letter, (), f"operand {self.step.id}")

    def _check_linear(self) -> str:
        """Return the letter of X where the line is `XW + b`, split into heads or not."""
        if self.step.product is None:
            raise LookupError(f"the line {self.step.id} is no product")
        left, right, _ = self.step.product
        node: Node = Product(Tensor(left.symbol, (), ""), Tensor(right.symbol, (), ""))
        if self.use.bias:
            bias = next((name.symbol for name in self.step.names if name.of == f"parameter {self.use.bias}"), "")
            node = Plus(node, Tensor(bias, (), ""))
        self._check(SplitHeads(node, self.axes[1]) if self._split() else node)
        return left.symbol

    def _check_norm(self, whole: type[Node], eps: float) -> str:
        """Return the letter of X where the line is the norm of X, times γ, plus β."""
        inner = self.step.latex.removeprefix(rf"{self.step.symbol} = \frac{{")
        letter = inner.partition(r" - \mu(")[0] if whole is LayerNorm else inner.partition(r"}{\sqrt{")[0]
        rest = [Tensor(name.symbol, (), "") for name in self.step.names if name.of.startswith("parameter ")]
        self._check(whole(eps, Tensor(letter, (), ""), *rest))
        return letter

    def _check(self, node: Node) -> None:
        if statement(Tensor(self.step.symbol, (), ""), node) != self.step.latex:
            raise LookupError(f"the line {self.step.id} reads {self.step.latex}, not as its call")
