r"""Cases that depend on where a cell lies alone, written by its indices: 0 where k = 1, and `A_{kij}` elsewhere."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import sympy

from tracer.expr.function_call import Scalar, tight
from tracer.expr.layout.arange import Arange
from tracer.expr.layout.rearrange import Rearrange
from tracer.expr.math.arithmetic import Minus
from tracer.expr.math.comparisons import And, Compare, Or, Where
from tracer.expr.math.elementwise import Absolute
from tracer.expr.node import Node, ShapeError, Tensor, infer, with_subscript

LETTERS = "kij"
"""Indices of the last three axes, each counted from 0."""
NEGATIONS = {"=": r"\ne", r"\ne": "=", "<": r"\ge", r"\ge": "<", ">": r"\le", r"\le": ">"}
"""For each sign, the one that holds where it does not."""


class IndexCondition(NamedTuple):
    """Comparisons of indices, at least one of which holds where a mask is 1, or, if `negated`, where it is 0."""

    comparisons: tuple[Compare, ...]
    letters: str
    negated: bool


class CellCases(Where):
    r"""`Where` of indices: `\begin{cases} 0 & k = 1 \\ A_{kij} & \text{else} \end{cases}`; `CellCases(m, a, b)`.

    The condition m is one of counted numbers; `by_cells` returns the node where it is.
    """

    @property
    def cells(self) -> str:  # type: ignore[override]
        condition = index_condition(self.operands[0])
        return condition.letters if condition else ""

    def _latex(self, printer) -> str:
        condition = index_condition(self.operands[0])
        if condition is None:  # of one cell, with its number in place of the condition
            return super()._latex(printer)
        first, second = (_cell(branch, condition.letters, printer) for branch in self.operands[1:])
        if condition.negated:
            first, second = second, first
        relations = r" \text{ or } ".join(comparison.relation(printer) for comparison in condition.comparisons)
        return rf"\begin{{cases}} {first} & {relations} \\ {second} & \text{{else}} \end{{cases}}"


def _cell(branch: Node, letters: str, printer) -> str:
    if isinstance(branch, Scalar):
        return printer._print(branch)
    if isinstance(branch, Tensor) and not branch.transposed:
        return with_subscript(branch.name, letters)
    return rf"{{{tight(branch, printer)}}}_{{{letters}}}"


def by_cells(node: Node) -> Node:
    """Return a `Where` whose condition is one of indices as `CellCases`; any other node as it is."""
    if type(node) is not Where or (condition := index_condition(node.operands[0])) is None:
        return node
    count = len(condition.letters)
    try:
        sizes = infer(node)[-count:]
        fit = len(sizes) == count and all(
            isinstance(branch, Scalar) or infer(branch)[-count:] == sizes for branch in node.operands[1:]
        )
    except ShapeError:
        return node
    return CellCases(*node.args) if fit else node


@lru_cache(maxsize=256)
def index_condition(mask: Node) -> IndexCondition | None:
    """Return a mask as comparisons of indices; None for one that depends on anything else."""
    indexed = _with_indices(mask)
    kind = And if isinstance(indexed, And) else Or
    comparisons = tuple(_operands(indexed, kind)) if indexed is not None else ()
    if not comparisons or not all(isinstance(comparison, Compare) for comparison in comparisons):
        return None
    negated = kind is And or [comparison.get("sign") for comparison in comparisons] == [r"\ne"]
    if negated:
        comparisons = tuple(Compare(*c.operands, sign=NEGATIONS[c.get("sign")]) for c in comparisons)
    used = {symbol.name for comparison in comparisons for symbol in comparison.free_symbols}
    first = min((place for place, letter in enumerate(LETTERS) if letter in used), default=None)
    return None if first is None else IndexCondition(comparisons, LETTERS[first:], negated)


def _operands(node: Node, kind: type[Node]):
    """Yield the operands of nested nodes of one kind."""
    if not isinstance(node, kind):
        yield node
        return
    for operand in node.operands:
        yield from _operands(operand, kind)


def _with_indices(node: Node, behind: int = 0) -> Node | None:
    """Return a node with an index for counted numbers, which lie along the axis with so many axes `behind` it; None
    where it reads anything else."""
    if isinstance(node, Rearrange):
        left, right = node.get("left"), node.get("right")
        aligned = right[: len(left)] == left and not any(right[len(left) :])
        return _with_indices(node.operands[0], behind + len(right) - len(left)) if aligned else None
    if isinstance(node, Arange):
        return Scalar(sympy.Symbol(LETTERS[-1 - behind])) if behind < len(LETTERS) else None
    if isinstance(node, Scalar):
        return node
    if not isinstance(node, (And, Or, Compare, Minus, Absolute)):
        return None
    operands = [_with_indices(operand, behind) for operand in node.operands]
    return None if None in operands else node.func(*operands, *node.args[len(operands) :])
