"""Nodes of operands that may be plain numbers, and of tensors times and over a number."""

from __future__ import annotations

import sympy

from tracer.expr import Div, Full, Minus, Negative, Node, Over, Plus, Scalar, Scaled, Times
from tracer.lowering.call_arguments import Given


def operand(given: Given, name: str) -> Node:
    """A tensor's node, or the number that stands for it."""
    return node_of(given[name])


def node_of(value) -> Node:
    """A node, or that of a number."""
    if isinstance(value, Node):
        return value
    if isinstance(value, sympy.Expr):
        return Scalar(value)
    return Scalar(value if isinstance(value, float) and value != int_or(value) else int_or(value))


def filled(given: Given, value: Node) -> Node:
    """A number, or a tensor, for all cells of the result; itself where that has no axes."""
    return Full(value, shape=given.result) if given.result else value


def int_or(value):
    """A float that is whole as an int: `2.0` is 2."""
    try:
        return int(value) if value == int(value) else value
    except (OverflowError, TypeError, ValueError):  # infinite, complex, NaN
        return value


def scaled(given: Given, x: Node, number) -> Node:
    """`number · x`, as `x / √d_k` where the number is the inverse root of a size."""
    if isinstance(number, sympy.Expr) and not number.is_number:
        if number.could_extract_minus_sign():
            return Negative(scaled(given, x, -number))
        above, below = sympy.fraction(number)
        return _over(x, below) if above == 1 else Scaled(Scalar(number), x)
    if number == 1:
        return x
    if number == -1:
        return Negative(x)
    if root := given.root(number, x):
        above, below = sympy.fraction(root) if root > 1 else (1, 1 / root)
        return Over(x, below) if above == 1 else Scaled(Scalar(root), x)
    return Scaled(node_of(number), x)


def over(given: Given, x: Node, number) -> Node:
    """`x / number`, with a root of a size where it is one."""
    if isinstance(number, sympy.Expr) and not number.is_number:
        if number.could_extract_minus_sign():
            return Negative(over(given, x, -number))
        above, below = sympy.fraction(number)
        return Scaled(Scalar(below), x) if above == 1 else _over(x, number)
    if number == 1:
        return x
    if root := given.root(number, x):
        return Over(x, root) if root > 1 else Scaled(Scalar(1 / root), x)
    return Div(x, node_of(number))


def _over(x: Node, number: sympy.Expr) -> Node:
    """A tensor over a number made of sizes."""
    return (
        Over(x, number)
        if any(not power.exp.is_Integer for power in number.atoms(sympy.Pow))
        else Div(x, Scalar(number))
    )


def plus(left: Node, right: Node) -> Node:
    """`left + right`, a difference where the right one has a minus in front; 0 is not written."""
    if right == Scalar(0):
        return left
    if isinstance(right, Negative):
        return Minus(left, right.args[0])
    if isinstance(right, Scalar) and right.value.is_extended_negative and right.value.is_number:
        return Minus(left, Scalar(-right.value))
    if isinstance(right, Scaled) and right.args[0].needs_parens and right.args[0].value.is_number:
        return Minus(left, Scaled(Scalar(-right.args[0].value), right.args[1]))
    return Plus(left, right)


def minus(left: Node, right: Node) -> Node:
    """`left - right`, a sum where the right one has a minus in front."""
    if isinstance(right, Negative):
        return Plus(left, right.args[0])
    if isinstance(right, Scalar) and right.value.is_extended_negative and right.value.is_number:
        return Plus(left, Scalar(-right.value))
    return Minus(left, right)


def times(left: Node, right: Node) -> Node:
    """`left ⊙ right`; a fraction where one of them is 1 over something."""
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Div) and one.args[0] == Scalar(1):
            return Div(other, one.args[1])
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Scalar):
            return Scaled(one, other)
    return Times(left, right)
