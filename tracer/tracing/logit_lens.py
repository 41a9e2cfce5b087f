"""Logit lens: a model's own last norm and head, applied to the residual stream after every block.

The equation is the composition of the lines between the last block and the answer. It is verified on the last block
like any line, and executed on the others. Source: nostalgebraist 2020, "interpreting GPT: the logit lens".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import sympy
import torch

from tracer.expr import Node, Tensor, execute, statement, tensors
from tracer.expr.error_bounds import exact_dtype
from tracer.record import Step, Trace
from tracer.textbook.derivation import DerivedStep, Line, opaque
from tracer.tracing.proofs import size_at
from tracer.utils.errors import quote

GONE_PROBLEM = (
    "the equations of this run are not at hand, so its lens can't be computed: it was opened from a file, copied or "
    "traced with prove=False; run the model again"
)
LAYER = re.compile(r"\^\{\(\d+\)\}")


class Depth(NamedTuple):
    """A position in the residual stream: the id of its line, and the block before it, counted from 0; None before the
    first block."""

    id: str
    layer: int | None


class LogitLens:
    """Lens of one tower of a run.

    `depths` are the places of the residual stream that it is applied to, in order. `latex` is its equation for block ℓ,
    `proof` the line of the answer, with that equation verified on the last block. `lines` are the ids of the lines that
    the equation is composed of.
    """

    def __init__(self, trace: Trace, part: str = ""):
        if trace.later is None:
            raise ValueError(GONE_PROBLEM)
        derived_steps = list(trace.later.derived_steps)
        self.depths, tail = _path(trace, derived_steps, part)
        last, final = self.depths[-1].id, tail[-1].line
        general = _general(next(step.line.tensor for step in derived_steps if step.line.id == last))
        self._key, self._equation = last, _compose(tail, last, general)
        self.lines = tuple(step.line.id for step in tail)
        result = Tensor(f"{final.tensor.name}^{{(\\ell)}}", final.tensor.shape, final.id)
        self.latex = statement(result, self._equation)

        def lens(line: Line) -> Node:
            return self._equation if line.id == final.id else line.equation

        self.proof: Step = trace.later.rewrite(lens)([trace.step(final.id)])[final.id]
        self._values, self._sizes = trace.later.values(), trace.later.sizes

    def scores(self, depth: int, tokens: slice | None = None) -> torch.Tensor:
        """Return the scores after a depth, in float64: the value of the answer's line for the stream there.

        With `tokens`, for these tokens of the stream `[B, S, D]` alone. ValueError where the stream was not kept.
        """
        stream = self._stream(depth)
        return self._execute(stream if tokens is None else stream[:, tokens])

    def token_scores(self, depth: int) -> torch.Tensor:
        """Return the scores of each token of the first input, as if the head read that one: `[S, choices]`.

        ValueError for a head that mixes tokens, or that has several answers.
        """
        scores = self._each(depth)
        last, whole = self._each(len(self.depths) - 1), self.scores(len(self.depths) - 1)[0]
        nearest = (last - whole.reshape(-1, last.shape[-1])[-1]).abs().amax(dim=-1).min()
        if float(nearest) > 1e-6 * float(whole.abs().max()):
            raise ValueError(
                f"the head of this model mixes tokens ({quote(self.proof.id)}), so no single one has scores"
            )
        return scores

    def _each(self, depth: int) -> torch.Tensor:
        stream = self._stream(depth)[0]
        try:
            logits = self._execute(stream[:, None])
            return logits.reshape(len(stream), -1) if logits.dim() == 2 else logits[:, -1]
        except (RuntimeError, IndexError, ValueError) as error:
            raise ValueError(f"the head of this model reads several tokens at once ({quote(self.proof.id)})") from error

    def _stream(self, depth: int) -> torch.Tensor:
        return self._exact(self.depths[depth].id)

    def _exact(self, key: str) -> torch.Tensor:
        value = self._values(key)
        if value is None:
            raise ValueError(f"{self._values.why(key)}: trace the model with a larger keep")
        return value.to(exact_dtype(value.dtype))

    def _execute(self, stream: torch.Tensor) -> torch.Tensor:
        def value(tensor: Tensor) -> torch.Tensor:
            return stream if tensor.key == self._key else self._exact(tensor.key)

        with torch.no_grad():
            return execute(self._equation, value, size_at(self._sizes))


def _path(trace: Trace, derived_steps: Sequence[DerivedStep], part: str) -> tuple[tuple[Depth, ...], list[DerivedStep]]:
    """Return the depths of a tower, and the lines from its last block to the answer. Raise ValueError where the width
    of the stream varies, or other blocks follow."""
    name = quote(trace.model)
    order = {step.line.id: at for at, step in enumerate(derived_steps)}
    reads = {step.line.id: [tensor.key for tensor in tensors(step.line.equation)] for step in derived_steps}
    own = [step for step in derived_steps if not part or step.line.id.startswith(f"{part}.")]
    layer = {step.line.id: step.line.layer for step in own}
    read_outside: dict[int, str] = {}
    for step in derived_steps:
        for key in reads[step.line.id]:
            at = layer.get(key)
            if at is not None and at != layer.get(step.line.id, -1) and order[key] >= order[read_outside.get(at, key)]:
                read_outside[at] = key
    if not read_outside:
        raise ValueError(
            f"{name} has no blocks whose output another line reads, so there is no stream to apply a lens to"
        )
    ends = [read_outside[at] for at in sorted(read_outside)]
    shapes = {trace.step(id).shape for id in ends}
    if len(shapes) > 1:
        raise ValueError(
            f"the blocks of {name} give tensors of {len(shapes)} shapes, so its head fits the last one alone"
        )
    first = {key for id, at in layer.items() if at == min(read_outside) for key in reads[id]}
    before = [id for id in first if layer.get(id, 0) is None and trace.step(id).shape in shapes]
    depths = [Depth(max(before, key=order.__getitem__), None)] if before else []
    depths += [Depth(id, at) for at, id in zip(sorted(read_outside), ends, strict=True)]
    tail, reached = [], {ends[-1]}
    for step in derived_steps[order[ends[-1]] + 1 :]:
        if reached.intersection(reads[step.line.id]):
            reached.add(step.line.id)
            tail.append(step)
    if not tail or any(step.line.layer is not None for step in tail):
        raise ValueError(
            f"other blocks, or nothing, follow the last block of {name}, so it has no head to apply earlier"
        )
    if unwritten := next((step.line.id for step in tail if opaque(step.line)), ""):
        raise ValueError(f"the line {quote(unwritten)} of {name} has no equation, so its head can't be applied earlier")
    return tuple(depths), tail


def _general(last: Tensor) -> Tensor:
    r"""Return the stream after any block: `\mathbf{X}^{(\ell)}`."""
    name = LAYER.sub(r"^{(\\ell)}", last.name)
    return Tensor(name if name != last.name else f"{{{name}}}^{{(\\ell)}}", last.shape, last.key)


def _compose(tail: Iterable[DerivedStep], last: str, general: Tensor) -> Node:
    """Return the equation of the last of these lines in terms of the stream: each is substituted for its name."""
    whole: dict[str, Node] = {last: general}
    for step in tail:
        equation = step.line.equation
        names = {tensor: whole[tensor.key] for tensor in tensors(equation) if tensor.key in whole}
        names = {tensor: node.T if tensor.transposed else node for tensor, node in names.items()}
        whole[step.line.id] = equation.xreplace(names) if not isinstance(equation, Tensor) else names[equation]
    expression = whole[step.line.id]
    assert isinstance(expression, sympy.Expr)
    return expression
