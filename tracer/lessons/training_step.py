"""One step of training on a text: the loss, the gradient of each parameter as an equation, the update, the loss after.

Each equation runs on the tensors of its call and is compared, cell by cell, with the gradient that autograd computed.
The update is that of gradient descent, W ← W - η ∂L/∂W. Source: Goodfellow et al. 2016, sections 4.3 and 6.5."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from math import inf
from typing import Any, NamedTuple

import sympy
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

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
    tensors,
)
from tracer.expr.function_call import COMMA
from tracer.latex_reader.evaluator import Operands, evaluate
from tracer.latex_reader.parser import UnreadableLatex, read
from tracer.record import Step, Trace, verdict
from tracer.record.steps import BLOCK_NUMBER, at_any
from tracer.symbols import notation
from tracer.symbols.notation import parse
from tracer.tracing.counterfactual import MOST_BYTES
from tracer.tracing.proofs import compute_bounds, difference
from tracer.utils.errors import reason

# Gradient of a parameter as an equation of its call's operands and of the gradient at the call's output.
#
# For Y = XW + b they are Xᵀ ∂L/∂Y, summed over the texts, and the sum of the rows of ∂L/∂Y; for a table, each row's sum
# of the gradients of the tokens that read it; for the factor of a norm, the sum of the normalised input times ∂L/∂Y. A
# parameter with several uses has the sum over them. Source: Goodfellow et al. 2016, Deep Learning, section 6.5.6.
#
# First the uses of each parameter in a forward pass: the call, its operand, and its result in the graph of autograd.

CALLS = {
    F.linear: ("input", "weight", "bias"),
    torch.addmm: ("bias", "input", "weight"),
    F.embedding: ("input", "weight"),
    F.layer_norm: ("input", "normalized_shape", "weight", "bias", "eps"),
    F.rms_norm: ("input", "normalized_shape", "weight", "eps"),
}
"""The calls that take a parameter, with their arguments in order."""
SUMS = (torch.Tensor.add, torch.Tensor.__add__, torch.add)
"""Functions that add two tensors."""
FACTORS = (torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__, torch.mul)
"""Functions that multiply two tensors cell by cell."""
PRODUCTS = ("linear", "addmm")
"""The calls that compute XW + b."""
NORM_OPERANDS = 12
"""How many operands of the last calls are kept: of those that a norm in several calls has, and a few more."""
LAYOUTS = (torch.Tensor.view, torch.Tensor.reshape, torch.Tensor.transpose, torch.transpose)
SLICE = torch.Tensor.__getitem__


class ParameterUse(NamedTuple):
    """One use of a parameter: `call` is "add", "mul" or the name of one of `CALLS`, `argument` the parameter's name
    there, and `operand` the other operand.

    `results` are what came out, and the same in other layouts, as the code went on with it; `sums` are those of a
    result with another tensor. `rows` is the number of first rows that were used, None for all. `before` are operands
    of the calls before a product, of the shape of its result.
    """

    call: str
    argument: str
    operand: torch.Tensor | None
    results: list[torch.Tensor]
    sums: list[torch.Tensor]
    bias: str = ""
    eps: float = 0.0
    rows: int | None = None
    before: tuple[torch.Tensor, ...] = ()


class ParameterUses(TorchFunctionMode):
    """Uses of the parameters of a net, by their paths, for as long as it is active in this thread.

    `unknown` has the parameters that also took part in another call.
    """

    def __init__(self, net: nn.Module):
        super().__init__()
        self.paths = {id(parameter): path for path, parameter in net.named_parameters()}
        self.of: dict[str, list[ParameterUse]] = {path: [] for path in self.paths.values()}
        self.unknown: set[str] = set()
        self._results: dict[int, list[torch.Tensor]] = {}
        self._sums: dict[int, list[torch.Tensor]] = {}
        self._slices: dict[int, tuple[str, torch.Tensor]] = {}
        self._last: deque[torch.Tensor] = deque(maxlen=NORM_OPERANDS)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.requires_grad:
            self._record(func, args, kwargs or {}, result)
            self._last.extend(value for value in args if isinstance(value, torch.Tensor))
        return result

    def _record(self, func, args: tuple, named: Mapping, result: torch.Tensor) -> None:
        if func in LAYOUTS and id(args[0]) in self._results:
            results = self._results[id(args[0])]
            results.append(result)
            self._results[id(result)] = results
            self._sums[id(result)] = self._sums[id(args[0])]
            return
        paths = {self._path(value): value for value in (*args, *named.values()) if self._path(value)}
        if not paths:
            if func in SUMS:
                for operand in args:
                    self._sums.get(id(operand), []).append(result)
            return
        if func in CALLS:
            self._record_call(func, dict(zip(CALLS[func], args, strict=False)) | dict(named), result)
        elif func is SLICE and (rows := _first_rows(args[1])) is not None and id(args[0]) in self.paths:
            self._slices[id(result)] = self.paths[id(args[0])], result
        elif func in SUMS and len(paths) == 1 and len(args) == 2:
            ((path, part),) = paths.items()
            rows = part.shape[0] if id(part) in self._slices else None
            self.of[path].append(ParameterUse("add", "", None, *self._keep(result), rows=rows))
        elif func in FACTORS and len(paths) == 1 and all(isinstance(value, torch.Tensor) for value in args):
            ((path, parameter),) = paths.items()
            (operand,) = (value for value in args if value is not parameter)
            before = tuple(tensor for tensor in self._last if tensor.shape == result.shape)
            self.of[path].append(ParameterUse("mul", "", operand, *self._keep(result), before=before))
        else:
            self.unknown |= paths.keys()

    def _record_call(self, func, arguments: Mapping, result: torch.Tensor) -> None:
        """Note the weight and the bias of a call."""
        kept = self._keep(result)
        for argument in ("weight", "bias"):
            if path := self.paths.get(id(arguments.get(argument)), ""):
                bias = self.paths.get(id(arguments.get("bias")), "")
                eps = arguments.get("eps") or 0.0
                self.of[path].append(ParameterUse(func.__name__, argument, arguments["input"], *kept, bias, eps))

    def _path(self, value) -> str:
        """Return the path of a parameter, or of that whose first rows a tensor is; "" for any other."""
        return self.paths.get(id(value)) or self._slices.get(id(value), ("", None))[0]

    def _keep(self, result: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the lists of a result's layouts and sums, which grow during the forward pass."""
        self._results[id(result)], self._sums[id(result)] = kept = [result], []
        return kept


def _first_rows(index) -> int | None:
    """Return how many first rows an index takes; None if it takes others."""
    if isinstance(index, slice) and not index.start and index.step in (None, 1) and isinstance(index.stop, int):
        return index.stop if index.stop >= 0 else None
    return None


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


RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Learning rates that are tried."""
COPIES = 6
"""Copies of the parameters that a step holds at once: a copy, its gradients, and both in float64."""
AGREES = 0.1
"""Share of the predicted change of the loss by which the measured one may differ where they are said to agree."""


class GradientLine(NamedTuple):
    """Gradient of a parameter, or of the same one in each of several blocks, of the names `paths`.

    `symbolic` and `shape` are those of the letter: of a weight that PyTorch stores as [out, in], `[in, out]`. `norms`
    has the norm of each gradient; `error` and `margin` are the largest of them, as in `Step`. Without a rule,
    `latex` is "", the margin is None, and `problem` says why.
    """

    paths: tuple[str, ...]
    symbol: str
    latex: str
    symbolic: tuple[str, ...]
    shape: tuple[int, ...]
    norms: tuple[float, ...]
    error: float | None
    margin: float | None
    problem: str = ""

    @property
    def verdict(self) -> str:
        """Verdict on the equation, in all of the blocks."""
        return verdict(self.margin)


class Descent(NamedTuple):
    """Loss after one step at a learning rate, as measured, and as the slope predicts it: L - η ‖∇L‖²."""

    rate: float
    after: float
    prediction: float


class TrainingStep(NamedTuple):
    """One step of training: the loss before it, the gradient at the logits and of each parameter, and the loss after it
    at several learning rates. `squared_norm` is ‖∇L‖², summed over all parameters."""

    before: float
    logits: GradientLine
    lines: tuple[GradientLine, ...]
    squared_norm: float
    descents: tuple[Descent, ...]

    def at(self, rate: float) -> Descent:
        """Return the step at a learning rate of `RATES`."""
        return next(descent for descent in self.descents if descent.rate == rate)

    def agrees(self, descent: Descent) -> bool:
        """Return whether the loss changed as the slope predicts, within `AGREES`."""
        predicted = descent.rate * self.squared_norm
        return abs(descent.after - descent.prediction) <= AGREES * predicted


def training_step(net: nn.Module, inputs: tuple[torch.Tensor, ...], tokens: torch.Tensor, trace: Trace) -> TrainingStep:
    """Return one step of training of a net on tokens `[B, T]`, whose next ones it predicts from `inputs`.

    `trace` is a run of it, whose letters the equations have. The net stays as it is: copies are run and changed. Losses
    are measured in float64, so that rounding does not hide a small change. Raise ValueError, in a sentence, for a
    single token or a net that is too large.
    """
    if tokens.shape[1] < 2:
        raise ValueError("a single token has no next one, so there is nothing to predict")
    size = COPIES * sum(parameter.numel() * 8 for parameter in net.parameters())
    if size > MOST_BYTES:
        raise ValueError(
            f"a training step of this model would take {size / 2**20:,.0f} MB of memory, more than the "
            f"{MOST_BYTES / 2**20:,.0f} MB that are used unasked"
        )
    copy = deepcopy(net).requires_grad_()
    logits, lines, gradients = _differentiate(copy, inputs, tokens, trace)
    return _descend(copy, inputs, tokens, gradients, logits, lines)


def loss_of(net: nn.Module, inputs: tuple[torch.Tensor, ...], tokens: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of the next token, a number."""
    return _cross_entropy(_logits(net, inputs), tokens)


def _logits(net: nn.Module, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return the logits `[B, T, V]` of a net, which a model of transformers returns in a record."""
    output = net(*inputs)
    return getattr(output, "logits", output)


def _cross_entropy(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def _differentiate(
    net: nn.Module, inputs: tuple[torch.Tensor, ...], tokens: torch.Tensor, trace: Trace
) -> tuple[GradientLine, tuple[GradientLine, ...], dict[str, torch.Tensor]]:
    """Return the lines of the logits and of all parameters, and the gradients as autograd computed them."""
    parameters, uses = dict(net.named_parameters()), ParameterUses(net)
    with torch.enable_grad():
        with uses:
            logits = _logits(net, inputs)
        loss = _cross_entropy(logits, tokens)
        results = {id(each): each for path in uses.of for use in uses.of[path] for each in (*use.results, *use.sums)}
        wanted = [*parameters.values(), logits, *results.values()]
        computed = torch.autograd.grad(loss, wanted, allow_unused=True)
    derivatives = [
        torch.zeros_like(tensor) if each is None else each for tensor, each in zip(wanted, computed, strict=True)
    ]
    gradients = dict(zip(parameters, derivatives, strict=False))
    at_results = {str(key): each for key, each in zip(results, derivatives[len(parameters) + 1 :], strict=True)}
    book = _Book(trace, uses, at_results)
    lines = [book.line(path, gradient) for path, gradient in gradients.items()]
    return book.of_logits(logits, tokens, derivatives[len(parameters)]), tuple(_group(lines)), gradients


class _Values(dict[str, torch.Tensor]):
    """Tensors of an equation, as `compute_bounds` asks for them."""

    def tensor(self, key: str) -> torch.Tensor:
        return self[key].detach()

    def fused_equation(self, key: str) -> None:
        return None


class _Book:
    """Lines of a trace that read each parameter, and the sizes of the run."""

    def __init__(self, trace: Trace, uses: ParameterUses, gradients: dict[str, torch.Tensor]):
        self.uses, self.gradients = uses, gradients
        self.sizes: dict[str, int] = {size.name: size.value for size in trace.symbols}
        self.shapes = {
            str(operand.maker): operand.symbolic or tuple(map(str, operand.shape))
            for op in trace.ops
            for operand in op.inputs
        }
        self.steps: dict[str, list[Step]] = {}
        for step in trace.steps:
            for of in dict.fromkeys(name.of for name in step.names):
                self.steps.setdefault(of.removeprefix("parameter "), []).append(step)
        self.logits = next((step.symbol for step in reversed(trace.steps) if step.symbol == r"\mathbf{Z}"), "")

    def line(self, path: str, gradient: torch.Tensor) -> GradientLine:
        """Return the gradient of a parameter as an equation with its proof, or without one, with the reason."""
        uses, steps = self.uses.of[path], self.steps.get(path, [])
        names = (name for step in steps for name in step.names if name.of == f"parameter {path}")
        symbol = next((name.symbol for name in names), "")
        symbolic = self.shapes.get(path, tuple(map(str, gradient.shape)))
        norm = float(gradient.norm())
        plain = GradientLine((path,), symbol, "", symbolic, tuple(gradient.shape), (norm,), None, None)
        if path in self.uses.unknown:
            return plain._replace(problem="no rule is known for a call that uses it")
        if not uses:
            return plain._replace(problem="the loss does not depend on it")
        if len(uses) != len(steps):
            return plain._replace(problem="its calls are not lines of the textbook")
        values = _Values()
        try:
            symbol, transposed, node = equation(uses, steps, path, symbolic, values, self.gradients)
        except LookupError as error:
            return plain._replace(problem=reason(error))
        traced = gradient.transpose(0, 1) if transposed else gradient
        text = f"{derivative(symbol)} = {latex(node)}"
        error, margin = self._prove(text, node, values, traced)
        symbolic = symbolic[::-1] if transposed else symbolic
        return GradientLine((path,), symbol, text, symbolic, tuple(traced.shape), (norm,), error, margin)

    def of_logits(self, logits: torch.Tensor, tokens: torch.Tensor, gradient: torch.Tensor) -> GradientLine:
        """Return the gradient at the logits, where the backward pass begins."""
        letter = self.logits or r"\mathbf{Z}"
        node = LogitsGradient(Tensor(letter, (), "logits"), Tensor(r"\mathbf{t}", (), "tokens"))
        values = _Values(logits=logits, tokens=tokens)
        text = f"{derivative(letter)} = {latex(node)}"
        error, margin = self._prove(text, node, values, gradient)
        norm = (float(gradient.norm()),)
        return GradientLine((), letter, text, ("B", "T", "V"), tuple(gradient.shape), norm, error, margin)

    def _prove(self, text: str, node: Node, values: _Values, traced: torch.Tensor) -> tuple[float, float]:
        """Return the error and the margin of an equation: of its execution, or of its printed text, parsed by an
        independent reader, where these are larger."""
        return prove(node, values, self.sizes, traced, self._read(text, node, values, traced))

    def _read(self, text: str, node: Node, values: _Values, traced: torch.Tensor) -> torch.Tensor:
        """Return the value of a printed equation, NaN for a text that can't be parsed."""
        letters = {tensor.name: tensor.key for tensor in tensors(node)}
        sizes = {notation.latex(name): value for name, value in self.sizes.items()}
        operands = Operands(letters, sizes, lambda key: values.tensor(key).double().numpy())
        name = text.partition(" = ")[0]
        try:
            line = read(text, {*operands.names, name})
            cells = evaluate(line, operands, tuple(traced.shape))
        except UnreadableLatex:
            return torch.full_like(traced, torch.nan)
        return torch.from_numpy(cells.copy())


def prove(
    node: Node, values: Any, sizes: dict[str, int], traced: torch.Tensor, reading: torch.Tensor
) -> tuple[float, float]:
    """Return the error of an equation, as a share of the largest value; and the largest error of a cell, as a share of
    what rounding explains there. Both are the larger one of its execution and of the `reading` of its text.
    """
    for careful in (False, True):
        computed, allowed = compute_bounds(node, values, sizes, traced.dtype, coarse=False, careful=careful)
        apart = [difference(cells, traced.detach()) for cells in (computed, reading)]
        margins = [float(each.shares(allowed).max()) for each in apart]
        if all(margin <= 1 for margin in margins):
            break
    unreadable = any(margin != margin for margin in margins)
    return max(each.relative() for each in apart), inf if unreadable else max(margins)


def _group(lines: Sequence[GradientLine]) -> Iterator[GradientLine]:
    """Yield lines of blocks that differ in their number alone as one."""
    groups: dict[tuple, list[GradientLine]] = {}
    for line in lines:
        groups.setdefault(_without_number(line), []).append(line)
    for (symbol, text, *_), group in groups.items():
        first = group[0]
        if len(group) == 1:
            yield first
            continue
        yield first._replace(
            paths=tuple(path for line in group for path in line.paths),
            symbol=symbol,
            latex=text,
            norms=tuple(norm for line in group for norm in line.norms),
            error=max((line.error for line in group if line.error is not None), default=None),
            margin=None if first.margin is None else max(line.margin or 0.0 for line in group),
        )


def _without_number(line: GradientLine) -> tuple:
    """Return the common id of lines of equal blocks, with block numbers relative to their own."""
    number = BLOCK_NUMBER.findall(line.symbol)
    texts = [at_any(text, number[-1]) if number else text for text in (line.symbol, line.latex)]
    return *texts, line.symbolic, line.shape, line.problem, line.verdict, None if number else line.paths


@torch.no_grad()
def _descend(
    net: nn.Module,
    inputs: tuple[torch.Tensor, ...],
    tokens: torch.Tensor,
    gradients: dict[str, torch.Tensor],
    logits: GradientLine,
    lines: tuple[GradientLine, ...],
) -> TrainingStep:
    """Update a copy at each learning rate, and measure its loss."""
    net = net.double()
    inputs = tuple(tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs)
    before = float(loss_of(net, inputs, tokens))
    weights = {path: parameter.clone() for path, parameter in net.named_parameters()}
    squared = sum(float(gradient.double().square().sum()) for gradient in gradients.values())
    descents = []
    for rate in RATES:
        for path, parameter in net.named_parameters():
            parameter.copy_(weights[path] - rate * gradients[path])
        descents.append(Descent(rate, float(loss_of(net, inputs, tokens)), before - rate * squared))
    return TrainingStep(before, logits, lines, squared, tuple(descents))


# Norm of the loss's gradient at the residual stream after each block, with and without the residual path.


class GradientNorms(NamedTuple):
    """Norms of ∂loss/∂X at the input of the first block and after each block, on both paths, and the loss.

    The paths are with the residual sums and without; the loss is the same number on both.
    """

    whole: tuple[float, ...]
    branches: tuple[float, ...]
    loss: float


def find_blocks(net: nn.Module, trace: Trace) -> tuple[str, ...]:
    """Return the paths of the blocks of a net: its own `blocks`, else the items of lists of modules with an attention
    in a run."""
    if isinstance(own := getattr(net, "blocks", None), Sequence):
        return tuple(own)
    paths = (_find_item(net, record.module) for record in trace.attentions)
    return tuple(dict.fromkeys(filter(None, paths)))


def _find_item(net: nn.Module, path: str) -> str:
    """Return the path of the innermost item of a list of modules that has a module in it; "" if there is none."""
    while path:
        parent = path.rpartition(".")[0]
        if isinstance(net.get_submodule(parent), nn.ModuleList):
            return path
        path = parent
    return ""


def highway(
    net: nn.Module, inputs: tuple[torch.Tensor, ...], tokens: torch.Tensor, blocks: Sequence[str]
) -> GradientNorms:
    """Return one backward pass each, from the mean loss of the next token of `tokens` `[1, T]`, through the `blocks`.

    The second is of the same forward pass, number by number; but at a sum of a block the gradient goes back through the
    result of attention or the MLP alone. It runs a copy: the net's own gradients and hooks stay as they are, also for
    other users. Raise ValueError, in a sentence, for blocks of other than two sums.
    """
    if not blocks:
        raise ValueError("the run has no blocks with attention to follow the gradient through")
    copy = deepcopy(net).requires_grad_(False)
    whole, loss = _norms(copy, inputs, tokens, blocks, cut=False)
    branches, _ = _norms(copy, inputs, tokens, blocks, cut=True)
    return GradientNorms(whole, branches, loss)


def _norms(
    net: nn.Module, inputs: tuple[torch.Tensor, ...], tokens: torch.Tensor, paths: Sequence[str], cut: bool
) -> tuple[tuple[float, ...], float]:
    """Return the norms at the streams, and the loss; with `cut` no gradient goes past a branch."""
    blocks = [net.get_submodule(path) for path in paths]
    streams: list[torch.Tensor] = []
    branches: list[torch.Tensor] = []

    def begin(module: nn.Module, args: tuple) -> tuple:
        if not args or not isinstance(args[0], torch.Tensor):
            raise ValueError(f"the first argument of {paths[0]} is not the residual stream")
        streams.append(args[0].detach().requires_grad_())
        return (streams[0], *args[1:])

    def end(module: nn.Module, args: tuple, output: torch.Tensor | tuple) -> None:
        streams.append(_first(output))

    def branch(module: nn.Module, args: tuple, output: torch.Tensor | tuple) -> None:
        branches.append(_first(output))

    hooks = [blocks[0].register_forward_pre_hook(begin), *(block.register_forward_hook(end) for block in blocks)]
    hooks += [part.register_forward_hook(branch) for block in blocks for part in block.children()]
    try:
        with torch.enable_grad(), _Cut(branches) if cut else nullcontext() as mode:
            loss = loss_of(net, inputs, tokens)
        if mode is not None and mode.count != (expected := 2 * len(blocks)):
            raise ValueError(
                f"{mode.count} sums add a branch to the residual stream in its {len(blocks)} blocks, expected "
                f"{expected}: one of attention and one of the MLP in each"
            )
        gradients = torch.autograd.grad(loss, streams)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(float(gradient.norm()) for gradient in gradients), float(loss.detach())


def _first(output: torch.Tensor | tuple) -> torch.Tensor:
    """Return the tensor of a module that returns it beside others."""
    return output[0] if isinstance(output, tuple) else output


class _Cut(TorchFunctionMode):
    """Send gradients of sums of a stream and a branch back to the latter alone, in this thread; count these sums."""

    def __init__(self, branches: list[torch.Tensor]):
        super().__init__()
        self.branches, self.count = branches, 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in SUMS and len(args) == 2:
            parts = [any(argument is branch for branch in self.branches) for argument in args]
            if sum(parts) == 1:
                self.count += 1
                args = tuple(
                    argument if part else argument.detach() for argument, part in zip(args, parts, strict=True)
                )
        return func(*args, **(kwargs or {}))
