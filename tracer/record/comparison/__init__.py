"""Comparison of two runs, line by line: values, equations, shapes, attention, answers.

Two inputs, two models, two saved runs, eager beside fused, before beside after a refactor, a run and the run with a
change: whatever was traced. `tracer.compare(a, b).first` is where they part.
"""

from __future__ import annotations

import torch

from tracer.record.comparison.alignment import align
from tracer.record.comparison.answers import Answers, AnswerShare
from tracer.record.comparison.equations import EquationComparison, EquationRelation
from tracer.record.comparison.result import Comparison, LayerAttention, LinePair
from tracer.record.comparison.tensors import Relation, TensorRelation, compare_outputs, compare_tensors
from tracer.record.steps import CHANGED_SUFFIX, Step
from tracer.record.trace import Trace
from tracer.utils.error_text import quote

__all__ = [
    "AnswerShare",
    "Answers",
    "Comparison",
    "EquationRelation",
    "LayerAttention",
    "LinePair",
    "Relation",
    "TensorRelation",
    "compare",
]


def compare(a: Trace, b: Trace) -> Comparison:
    """Return the comparison of two runs. Raise ValueError for anything but a trace.

    Examples:
        >>> import tracer
        >>> model = tracer.load("vit")
        >>> off = model.trace(change={"block3.attention.weights": "drop_heads(1)"})
        >>> tracer.compare(model.trace(), off).first.id
        'block3.attention.weights.changed'
    """
    for run in (a, b):
        if not isinstance(run, Trace):
            raise ValueError(
                f"{quote(run)} is not a trace, expected what tracer.trace, Model.trace or tracer.open returns"
            )
    pairs = align(a.steps, b.steps)
    equations, first, second = EquationComparison(a, b, pairs), _Tensors(a), _Tensors(b)
    partner = {right.id: left for left, right in pairs if left and right}
    partner_in_b = {left.id: right for left, right in pairs if left and right}

    def row(left: Step | None, right: Step | None) -> LinePair:
        if left and right:
            return LinePair(left, right, _values(left, right, first, second), equations.relation(left, right))
        base = _original_line(right, partner) or _original_line(left, partner_in_b)
        if base is None:
            return LinePair(left, right, TensorRelation(Relation.ALONE, note=f"only in {'a' if left else 'b'}"), None)
        values = _values(left or base, right or base, first, second)
        return LinePair(left, right, values._replace(note=values.note or f"beside {base.id}"), None, base)

    return Comparison(a, b, tuple(row(*pair) for pair in pairs), compare_outputs(a.output, b.output))


def _original_line(step: Step | None, partner: dict[str, Step]) -> Step | None:
    """Return the line of the other run that a changed line replaces; None for any other line."""
    return partner.get(step.id.removesuffix(CHANGED_SUFFIX)) if step and step.id.endswith(CHANGED_SUFFIX) else None


class _Tensors:
    """Values of a run's lines; those inside a fused op are recomputed while the model exists."""

    def __init__(self, trace: Trace):
        self._trace, self._recomputed = trace, trace.later and trace.later.values()

    def __call__(self, step: Step) -> torch.Tensor | None:
        value = self._trace.value(step)
        return self._recomputed(step.id) if value is None and step.recomputed and self._recomputed else value


def _values(left: Step, right: Step, first: _Tensors, second: _Tensors) -> TensorRelation:
    if left.recomputed and right.recomputed:
        return TensorRelation(Relation.MISSING, note="inside a fused op in both runs")
    return compare_tensors(first(left), second(right))
