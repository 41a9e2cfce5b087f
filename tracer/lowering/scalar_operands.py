"""Nodes of operands that can be plain numbers, and products and quotients of tensors and numbers."""

from __future__ import annotations

from typing import Any

import sympy

from tracer.expr import Div, Full, Minus, Negative, Node, Over, Plus, Scalar, Scaled, Times
from tracer.lowering.call_arguments import BoundCall


def operand(call: BoundCall, name: str) -> Node:
    """Return the node of a tensor or number."""
    return node_of(call[name])


def node_of(value) -> Node:
    """Return a node unchanged, or the node of a number."""
    if isinstance(value, Node):
        return value
    if isinstance(value, sympy.Expr):
        return Scalar(value)
    return Scalar(value if isinstance(value, float) and value != int_or(value) else int_or(value))


def fill(call: BoundCall, value: Node) -> Node:
    """Return a tensor of the result's shape with one value; the value itself if the result is a scalar."""
    return Full(value, shape=call.result) if call.result else value


def int_or(value: Any) -> Any:
    """Return a float that is a whole number as an int: `2.0` is 2."""
    try:
        return int(value) if value == int(value) else value
    except (OverflowError, TypeError, ValueError):  # infinite, complex, NaN
        return value


def scale(call: BoundCall, x: Node, number) -> Node:
    """Return `number · x`, as `x / √d_k` if the number is the inverse root of a size."""
    if isinstance(number, sympy.Expr) and not number.is_number:
        if number.could_extract_minus_sign():
            return Negative(scale(call, x, -number))
        above, below = sympy.fraction(number)
        return _over(x, below) if above == 1 else Scaled(Scalar(number), x)
    if number == 1:
        return x
    if number == -1:
        return Negative(x)
    if root := call.match_sqrt_of_size(number, x):
        above, below = sympy.fraction(root) if root > 1 else (1, 1 / root)
        return Over(x, below) if above == 1 else Scaled(Scalar(root), x)
    return Scaled(node_of(number), x)


def over(call: BoundCall, x: Node, number) -> Node:
    """Return `x / number`, with the root of a size if it is one."""
    if isinstance(number, sympy.Expr) and not number.is_number:
        if number.could_extract_minus_sign():
            return Negative(over(call, x, -number))
        above, below = sympy.fraction(number)
        return Scaled(Scalar(below), x) if above == 1 else _over(x, number)
    if number == 1:
        return x
    if root := call.match_sqrt_of_size(number, x):
        return Over(x, root) if root > 1 else Scaled(Scalar(1 / root), x)
    return Div(x, node_of(number))


def _over(x: Node, number: sympy.Expr) -> Node:
    """Return a tensor divided by an expression of sizes."""
    return (
        Over(x, number)
        if any(not power.exp.is_Integer for power in number.atoms(sympy.Pow))
        else Div(x, Scalar(number))
    )


def plus(left: Node, right: Node) -> Node:
    """Return `left + right`, as a difference if the right one is negative; 0 is left out."""
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
    """Return `left - right`, as a sum if the right one is negative."""
    if isinstance(right, Negative):
        return Plus(left, right.args[0])
    if isinstance(right, Scalar) and right.value.is_extended_negative and right.value.is_number:
        return Plus(left, Scalar(-right.value))
    return Minus(left, right)


def times(left: Node, right: Node) -> Node:
    """Return `left ⊙ right`, as a fraction if one of them is a reciprocal."""
    for operand, factor in ((left, right), (right, left)):
        if isinstance(operand, Div) and operand.args[0] == Scalar(1):
            return Div(factor, operand.args[1])
    for operand, factor in ((left, right), (right, left)):
        if isinstance(operand, Scalar):
            return Scaled(operand, factor)
    return Times(left, right)
