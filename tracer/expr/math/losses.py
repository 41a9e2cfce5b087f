r"""Likelihood of labels: `-\frac{1}{n} \sum_{i} \log\operatorname{softmax}\left(Z\right)_{i,\,y_{i}}`."""

from __future__ import annotations

import sympy
import torch

from tracer.expr.function_call import COMMA, _WithFields, decimal, tight
from tracer.expr.index_sets import IndexSet, shape_of
from tracer.expr.math.cumulative import LogSoftmax
from tracer.expr.math.einsum import LETTERS
from tracer.expr.node import Node, Shape, ShapeError, with_subscript
from tracer.expr.provenance_rules import Linear


class NegativeLogLikelihood(Linear, _WithFields):
    """Minus the log-probability of each label's class, classes along the axis behind the batch; with a third operand
    each is multiplied by the weight of its class.

    `reduction` is "mean" (over the weights, where there are some), "sum" or "none". `ignore` is the label that is left
    out; None where there is no such label. `sizes` are those of the labels.
    """

    linear, alone = (0,), False

    fields = ("reduction", "ignore", "sizes")
    needs_parens = True

    @property
    def rank(self) -> int:
        """Return the rank of the labels."""
        return len(self.get("sizes"))

    def _latex(self, printer) -> str:
        logs, labels, *weights = self.operands
        letters, ignore = LETTERS[: self.rank], self.get("ignore")
        label = self._cell(labels, letters, printer)
        log = printer._print(logs) if isinstance(logs, LogSoftmax) else rf"{{{tight(logs, printer)}}}"
        term = rf"{log}_{{{COMMA.join([*letters[:1], label, *letters[1:]])}}}"
        share = self._cell(weights[0], label, printer) if weights else ""
        term = rf"{share}\,{term}" if share else term
        if self.get("reduction") == "none" or not letters:
            return rf"\left[\,-{term}\,\right]_{{{letters}}}" if letters else f"-{term}"
        condition = "" if ignore is None else rf"{label} \ne {decimal(ignore)}"
        total = rf"\sum_{{{letters}\,:\,{condition}}} {term}" if condition else rf"\sum_{{{letters}}} {term}"
        if self.get("reduction") == "sum":
            return f"-{total}"
        if share:
            count = rf"\sum_{{{letters}\,:\,{condition}}} {share}" if condition else rf"\sum_{{{letters}}} {share}"
        elif condition:
            count = rf"\sum_{{{letters}}} \left[\,{condition}\,\right]"
        else:
            count = printer._print(sympy.Mul(*self.get("sizes")))
        return rf"-\frac{{1}}{{{count}}} {total}"

    @staticmethod
    def _cell(node: Node, indices: str, printer) -> str:
        return with_subscript(tight(node, printer), indices) if indices else printer._print(node)

    def infer(self, same, logs, labels, *weights) -> Shape:
        classes = logs[1] if len(logs) > 1 else logs[0]
        rest = (*logs[:1], *logs[2:]) if len(logs) > 1 else ()
        if len(rest) != len(labels) or not all(map(same, rest, labels)):
            raise ShapeError(f"labels {labels} for log-probabilities {logs}")
        if weights and not same(weights[0][0], classes):
            raise ShapeError(f"weights {weights[0]} for {classes} classes")
        return labels if self.get("reduction") == "none" else ()

    def run(self, size, logs, labels, *weights) -> torch.Tensor:
        ignore = self.get("ignore")
        there = torch.ones_like(labels, dtype=torch.bool) if ignore is None else labels != ignore
        places = torch.where(there, labels, 0)
        axis = min(1, logs.dim() - 1)
        picked = logs.gather(axis, places.unsqueeze(axis)).squeeze(axis)
        shares = torch.where(there, weights[0][places] if weights else 1.0, 0.0)
        losses = torch.where(there, -picked * shares, 0.0) if weights else torch.where(there, -picked, 0.0)
        if self.get("reduction") == "none":
            return losses
        return losses.sum() / shares.sum() if self.get("reduction") == "mean" else losses.sum()

    def _dependencies(self, size, cells, logs, labels, *weights) -> tuple[IndexSet, ...]:
        shapes = [shape_of(operand) for operand in (logs, labels, *weights)]
        whole = self.get("reduction") != "none"
        axes = (None,) * len(shapes[1]) if whole else cells.axes
        chosen = IndexSet.of(shapes[1], axes)
        classes = None
        if hasattr(labels, "flatten"):
            classes = {int(label) for label in chosen.select(labels).flatten() if int(label) != self.get("ignore")}
        lying = IndexSet.of(shapes[0], (*axes[:1], classes, *axes[1:]))
        return lying, chosen, *(IndexSet.of(shape, (classes,)) for shape in shapes[2:])
