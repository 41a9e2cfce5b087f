"""Comparisons, which are 1 where they hold and 0 elsewhere (Iverson's brackets), logic, and cases."""

from __future__ import annotations

import torch

from tracer.equations.call import _Held, tight
from tracer.equations.cells import plain
from tracer.equations.node import Node, broadcast
from tracer.equations.ways import ByCell


def holds(x):
    """Where a tensor is not 0."""
    return x != 0


def condition(node: Node, printer) -> str:
    """A node as what has to hold: a comparison without its brackets, and `M = 1` of anything else."""
    return node.relation(printer) if isinstance(node, Compared) else f"{tight(node, printer)} = 1"


class Compared(ByCell, _Held):
    r"""`[a ≤ b]`; `Compared(a, b, sign=r"\le")`."""

    fields = ("sign",)

    def relation(self, printer) -> str:
        left, right = map(printer._print, self.operands)
        return f"{left} {self.get('sign')} {right}"

    def _latex(self, printer):
        return rf"\left[\,{self.relation(printer)}\,\right]"

    def infer(self, same, *shapes):
        return broadcast(same, *shapes)

    def run(self, size, left, right):
        match self.get("sign"):
            case "=":
                return (left == right).double()
            case r"\ne":
                return (left != right).double()
            case "<":
                return (left < right).double()
            case ">":
                return (left > right).double()
            case r"\le":
                return (left <= right).double()
        return (left >= right).double()


class _Logic(ByCell, Node):
    loose = True
    sign = ""

    def _latex(self, printer):
        return f" {self.sign} ".join(tight(operand, printer) for operand in self.operands)

    def infer(self, same, *shapes):
        return broadcast(same, *shapes)


class And(_Logic):
    """1 where both are, else 0."""

    sign = r"\land"

    def run(self, size, left, right):
        return (holds(left) & holds(right)).double()


class Or(_Logic):
    """1 where one of two is or both are, else 0."""

    sign = r"\lor"

    def run(self, size, left, right):
        return (holds(left) | holds(right)).double()


class Either(_Logic):
    """1 where one of two is and the other is not, else 0."""

    sign = r"\oplus"

    def run(self, size, left, right):
        return (holds(left) ^ holds(right)).double()


class Not(ByCell, Node):
    """1 where the operand is 0, else 0."""

    open = True

    def _latex(self, printer):
        return rf"\lnot {tight(self.operands[0], printer)}"

    def infer(self, same, shape):
        return shape

    def run(self, size, x):
        return (~holds(x)).double()


class Where(ByCell, Node):
    """a where a condition holds, b elsewhere: `Where(m, a, b)`."""

    def _latex(self, printer):
        said, then, other = self.operands
        first = rf"{printer._print(then)} & {condition(said, printer)}"
        return rf"\begin{{cases}} {first} \\ {printer._print(other)} & \text{{else}} \end{{cases}}"

    def infer(self, same, *shapes):
        return broadcast(same, *shapes)

    def run(self, size, said, then, other):
        return torch.where(holds(said), then, other)

    def shares(self, size, said, then, other):
        chosen = bool(holds(said))
        made = [(plain(x), 1.0) if chosen is first else (0.0, None) for x, first in ((then, True), (other, False))]
        return [(None, None, False), *made]
