"""Comparisons, which are 1 where they hold and 0 elsewhere (Iverson's brackets), logic, and cases."""

from __future__ import annotations

import torch

from tracer.expr.function_call import _WithFields, tight
from tracer.expr.math.elementwise import _Named, _UnaryFunction, function
from tracer.expr.node import Node, Shape, broadcast
from tracer.expr.provenance_rules import Elementwise, SelectOne


def holds(x) -> torch.Tensor:
    """Return where a tensor is not 0."""
    return x != 0


def condition(node: Node, printer) -> str:
    """Return the LaTeX of a node as condition: a comparison without its brackets, else `M = 1`."""
    return node.relation(printer) if isinstance(node, Compare) else f"{tight(node, printer)} = 1"


COMPARISONS = {"=": torch.eq, r"\ne": torch.ne, "<": torch.lt, ">": torch.gt, r"\le": torch.le, r"\ge": torch.ge}
"""The function of each sign."""


class Compare(Elementwise, _WithFields):
    r"""`[a ≤ b]`; `Compare(a, b, sign=r"\le")`."""

    fields = ("sign",)

    def relation(self, printer) -> str:
        left, right = map(printer._print, self.operands)
        return f"{left} {self.get('sign')} {right}"

    def _latex(self, printer) -> str:
        return rf"\left[\,{self.relation(printer)}\,\right]"

    def infer(self, same, *shapes) -> Shape:
        return broadcast(same, *shapes)

    def run(self, size, left, right) -> torch.Tensor:
        return COMPARISONS[self.get("sign")](left, right).double()


class _Logic(_UnaryFunction):
    needs_parens = True

    def _latex(self, printer) -> str:
        return f" {self.word} ".join(tight(operand, printer) for operand in self.operands)


And = function(
    "And", r"\land", lambda a, b: (holds(a) & holds(b)).double(), "1 where both operands are not 0, else 0.", _Logic
)
Or = function(
    "Or",
    r"\lor",
    lambda a, b: (holds(a) | holds(b)).double(),
    "1 where at least one of two operands is not 0, else 0.",
    _Logic,
)
Xor = function(
    "Xor",
    r"\oplus",
    lambda a, b: (holds(a) ^ holds(b)).double(),
    "1 where exactly one of two operands is not 0, else 0.",
    _Logic,
)
Not = function(
    "Not",
    r"\lnot",
    lambda x: (~holds(x)).double(),
    "1 where the operand is 0, else 0.",
    _Named,
    needs_parens_in_script=True,
)


class Where(SelectOne, Node):
    """a where a condition holds, b elsewhere: `Where(m, a, b)`."""

    linear = counted = (1, 2)

    def _latex(self, printer) -> str:
        mask, then, otherwise = self.operands
        first = rf"{printer._print(then)} & {condition(mask, printer)}"
        return rf"\begin{{cases}} {first} \\ {printer._print(otherwise)} & \text{{else}} \end{{cases}}"

    def infer(self, same, *shapes) -> Shape:
        return broadcast(same, *shapes)

    def run(self, size, condition, then, otherwise) -> torch.Tensor:
        return torch.where(holds(condition), then, otherwise)
