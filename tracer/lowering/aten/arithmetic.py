"""Lowerings of arithmetic, bounds, comparisons, logic and complex numbers."""

from __future__ import annotations

import torch

from tracer.expr import (
    Absolute,
    And,
    ArcTangent2,
    Compare,
    Conjugate,
    Div,
    Exp,
    Floor,
    Imaginary,
    Lerp,
    Log,
    Maximum,
    Minimum,
    Minus,
    Node,
    Or,
    Pairs,
    Polar,
    Power,
    Real,
    RealAndImaginary,
    Remainder,
    Root,
    Scalar,
    Stack,
    Times,
    Truncated,
    Where,
    Xor,
)
from tracer.lowering.aten import of
from tracer.lowering.call_arguments import Given
from tracer.lowering.scalar_operands import minus, node_of, operand, over, plus, scaled, times


def _pair(given: Given) -> tuple[str, str]:
    """Return the names of the first two arguments."""
    return tuple(argument.name for argument in given.func._schema.arguments[:2])


@of("add")
def add(given: Given) -> Node:
    other, alpha = given["other"], given.get("alpha", 1)
    if not isinstance(other, Node):
        return plus(given["self"], node_of(other * alpha))
    return minus(given["self"], other) if alpha == -1 else plus(given["self"], scaled(given, other, alpha))


@of("sub", "subtract")
def subtract(given: Given) -> Node:
    other, alpha = given["other"], given.get("alpha", 1)
    if not isinstance(other, Node):
        return minus(given["self"], node_of(other * alpha))
    return minus(given["self"], scaled(given, other, alpha))


@of("rsub")
def from_other(given: Given) -> Node:
    return minus(operand(given, "other"), scaled(given, given["self"], given.get("alpha", 1)))


@of("mul", "multiply")
def multiply(given: Given) -> Node:
    left, right = given["self"], given["other"]
    if not isinstance(right, Node):
        return scaled(given, left, right)
    return times(left, right) if isinstance(left, Node) else scaled(given, right, left)


@of("div", "divide", "true_divide")
def divide(given: Given) -> Node:
    other = given["other"]
    mode = given.get("rounding_mode")
    if mode:
        made = Div(operand(given, "self"), node_of(other))
        return (Floor if mode == "floor" else Truncated)(made)
    return Div(operand(given, "self"), other) if isinstance(other, Node) else over(given, given["self"], other)


@of("floor_divide")
def floor_divide(given: Given) -> Node:
    return Floor(Div(operand(given, "self"), operand(given, "other")))


@of("remainder")
def remainder(given: Given) -> Node:
    return Remainder(operand(given, "self"), operand(given, "other"))


@of("fmod")
def fmod(given: Given) -> Node:
    left, right = operand(given, "self"), operand(given, "other")
    return Minus(left, times(right, Truncated(Div(left, right))))


@of("pow")
def power(given: Given) -> Node:
    base, exponent = operand(given, "self"), given["exponent"]
    if exponent == 0.5:
        return Root(base)
    if exponent in (-0.5, -1):
        return Div(Scalar(1), Root(base) if exponent == -0.5 else base)
    return Power(base, node_of(exponent))


@of("addcmul")
def addcmul(given: Given) -> Node:
    return plus(given["self"], scaled(given, Times(given["tensor1"], given["tensor2"]), given["value"]))


@of("addcdiv")
def addcdiv(given: Given) -> Node:
    return plus(given["self"], scaled(given, Div(given["tensor1"], given["tensor2"]), given["value"]))


@of("lerp")
def lerp(given: Given) -> Node:
    return Lerp(given["self"], given["end"], operand(given, "weight"))


@of("logaddexp")
def logaddexp(given: Given) -> Node:
    return Log(plus(Exp(given["self"]), Exp(given["other"])))


@of("atan2", "arctan2")
def atan2(given: Given) -> Node:
    return ArcTangent2(given["self"], given["other"])


@of("minimum", "maximum", "fmin", "fmax")
def extreme(given: Given) -> Node:
    return (Minimum if "min" in given.func._schema.name else Maximum)(given["self"], given["other"])


@of("clamp", "clip", "clamp_min", "clamp_max")
def clamp(given: Given) -> Node:
    made = given["self"]
    if given.get("min") is not None:
        made = Maximum(made, operand(given, "min"))
    return Minimum(made, operand(given, "max")) if given.get("max") is not None else made


SIGNS = {"eq": "=", "ne": r"\ne", "lt": "<", "gt": ">", "le": r"\le", "ge": r"\ge"}
LONG = {"not_equal": "ne", "less": "lt", "greater": "gt", "less_equal": "le", "greater_equal": "ge"}


def _comparison(name: str, sign: str) -> None:
    of(name)(lambda given: Compare(given["self"], operand(given, "other"), sign=sign))


for _name, _sign in (SIGNS | {long: SIGNS[short] for long, short in LONG.items()}).items():
    _comparison(_name, _sign)


@of("isnan")
def isnan(given: Given) -> Node:
    return Compare(given["self"], given["self"], sign=r"\ne")


@of("isinf")
def isinf(given: Given) -> Node:
    return Compare(Absolute(given["self"]), Scalar(float("inf")), sign="=")


@of("isfinite")
def isfinite(given: Given) -> Node:
    return Compare(Absolute(given["self"]), Scalar(float("inf")), sign="<")


LOGIC = {"and": And, "or": Or, "xor": Xor}


def _logic(word: str, node: type[Node]) -> None:
    of(f"logical_{word}")(lambda given: node(given["self"], given["other"]))

    @of(f"bitwise_{word}", f"__{word}__", f"__i{word}__")
    def bitwise(given: Given) -> Node | None:
        names = [name for name in _pair(given) if isinstance(given[name], Node)]
        truth = len(names) == 2 and all(given.dtype(name) == torch.bool for name in names)
        return node(given["self"], given["other"]) if truth else None


for _name, _node in LOGIC.items():
    _logic(_name, _node)


@of("where")
def where(given: Given) -> Node | None:
    if "other" not in given.arguments:
        return None
    return Where(given["condition"], operand(given, "self"), operand(given, "other"))


@of("masked_fill")
def masked_fill(given: Given) -> Node:
    return Where(given["mask"], operand(given, "value"), given["self"])


@of("view_as_complex")
def view_as_complex(given: Given) -> Node:
    return Pairs(given["self"])


@of("view_as_real")
def view_as_real(given: Given) -> Node:
    return RealAndImaginary(given["self"])


@of("complex")
def complex_of(given: Given) -> Node:
    return Pairs(Stack(given["real"], given["imag"], axis=given.rank("real")))


@of("polar")
def polar(given: Given) -> Node:
    return Polar(given["abs"], given["angle"])


@of("real")
def real(given: Given) -> Node:
    return Real(given["self"])


@of("imag")
def imaginary(given: Given) -> Node:
    return Imaginary(given["self"])


@of("conj", "_conj", "conj_physical")
def conjugate(given: Given) -> Node:
    return Conjugate(given["self"])
