"""One step of training on a text: the loss, the gradient of each parameter as an equation, the update, the loss after.

Each equation runs on the tensors of its call and is compared, cell by cell, with the gradient that autograd computed.
The update is that of gradient descent, W ← W - η ∂L/∂W. Source: Goodfellow et al. 2016, sections 4.3 and 6.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from math import inf
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from tracer.expr import Node, Tensor, latex, tensors
from tracer.lessons.loss import gradient_equations as equations
from tracer.lessons.loss.parameter_uses import ParameterUses
from tracer.record import Step, Trace, verdict
from tracer.record.latex_reader.evaluator import evaluate
from tracer.record.latex_reader.lexer import UnreadableLatex
from tracer.record.latex_reader.operands import Operands
from tracer.record.latex_reader.parser import read
from tracer.record.repeats import BLOCK_NUMBER, at_any
from tracer.symbols import notation
from tracer.tracing.proofs.counterfactual_budget import MOST_BYTES
from tracer.tracing.proofs.step_proof import compute_bounds, difference
from tracer.utils.error_text import reason

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
            symbol, transposed, node = equations.equation(uses, steps, path, symbolic, values, self.gradients)
        except LookupError as error:
            return plain._replace(problem=reason(error))
        traced = gradient.transpose(0, 1) if transposed else gradient
        text = f"{equations.derivative(symbol)} = {latex(node)}"
        error, margin = self._prove(text, node, values, traced)
        return GradientLine(
            (path,),
            symbol,
            text,
            tuple(reversed(symbolic)) if transposed else symbolic,
            tuple(traced.shape),
            (norm,),
            error,
            margin,
        )

    def of_logits(self, logits: torch.Tensor, tokens: torch.Tensor, gradient: torch.Tensor) -> GradientLine:
        """Return the gradient at the logits, where the backward pass begins."""
        letter = self.logits or r"\mathbf{Z}"
        node = equations.LogitsGradient(Tensor(letter, (), "logits"), Tensor(r"\mathbf{t}", (), "tokens"))
        values = _Values(logits=logits, tokens=tokens)
        text = f"{equations.derivative(letter)} = {latex(node)}"
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
