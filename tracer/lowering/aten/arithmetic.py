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
from tracer.lowering.aten import register_lowering
from tracer.lowering.call_arguments import BoundCall
from tracer.lowering.scalar_operands import minus, node_of, operand, over, plus, scale, times
from tracer.utils.internals.torch_internals import function_schema


def _pair(call: BoundCall) -> tuple[str, str]:
    """Return the names of the first two arguments."""
    return tuple(argument.name for argument in function_schema(call.func).arguments[:2])


@register_lowering("add")
def add(call: BoundCall) -> Node:
    right, alpha = call["other"], call.get("alpha", 1)
    if not isinstance(right, Node):
        return plus(call["self"], node_of(right * alpha))
    return minus(call["self"], right) if alpha == -1 else plus(call["self"], scale(call, right, alpha))


@register_lowering("sub", "subtract")
def subtract(call: BoundCall) -> Node:
    right, alpha = call["other"], call.get("alpha", 1)
    if not isinstance(right, Node):
        return minus(call["self"], node_of(right * alpha))
    return minus(call["self"], scale(call, right, alpha))


@register_lowering("rsub")
def from_other(call: BoundCall) -> Node:
    return minus(operand(call, "other"), scale(call, call["self"], call.get("alpha", 1)))


@register_lowering("mul", "multiply")
def multiply(call: BoundCall) -> Node:
    left, right = call["self"], call["other"]
    if not isinstance(right, Node):
        return scale(call, left, right)
    return times(left, right) if isinstance(left, Node) else scale(call, right, left)


@register_lowering("div", "divide", "true_divide")
def divide(call: BoundCall) -> Node:
    divisor = call["other"]
    mode = call.get("rounding_mode")
    if mode:
        quotient = Div(operand(call, "self"), node_of(divisor))
        return (Floor if mode == "floor" else Truncated)(quotient)
    return Div(operand(call, "self"), divisor) if isinstance(divisor, Node) else over(call, call["self"], divisor)


@register_lowering("floor_divide")
def floor_divide(call: BoundCall) -> Node:
    return Floor(Div(operand(call, "self"), operand(call, "other")))


@register_lowering("remainder")
def remainder(call: BoundCall) -> Node:
    return Remainder(operand(call, "self"), operand(call, "other"))


@register_lowering("fmod")
def fmod(call: BoundCall) -> Node:
    left, right = operand(call, "self"), operand(call, "other")
    return Minus(left, times(right, Truncated(Div(left, right))))


@register_lowering("pow")
def power(call: BoundCall) -> Node:
    base, exponent = operand(call, "self"), call["exponent"]
    if exponent == 0.5:
        return Root(base)
    if exponent in (-0.5, -1):
        return Div(Scalar(1), Root(base) if exponent == -0.5 else base)
    return Power(base, node_of(exponent))


@register_lowering("addcmul")
def addcmul(call: BoundCall) -> Node:
    return plus(call["self"], scale(call, Times(call["tensor1"], call["tensor2"]), call["value"]))


@register_lowering("addcdiv")
def addcdiv(call: BoundCall) -> Node:
    return plus(call["self"], scale(call, Div(call["tensor1"], call["tensor2"]), call["value"]))


@register_lowering("lerp")
def lerp(call: BoundCall) -> Node:
    return Lerp(call["self"], call["end"], operand(call, "weight"))


@register_lowering("logaddexp")
def logaddexp(call: BoundCall) -> Node:
    return Log(plus(Exp(call["self"]), Exp(call["other"])))


@register_lowering("atan2", "arctan2")
def atan2(call: BoundCall) -> Node:
    return ArcTangent2(call["self"], call["other"])


@register_lowering("minimum", "maximum", "fmin", "fmax")
def extreme(call: BoundCall) -> Node:
    return (Minimum if "min" in call.op_name else Maximum)(call["self"], call["other"])


@register_lowering("clamp", "clip", "clamp_min", "clamp_max")
def clamp(call: BoundCall) -> Node:
    clamped = call["self"]
    if call.get("min") is not None:
        clamped = Maximum(clamped, operand(call, "min"))
    return Minimum(clamped, operand(call, "max")) if call.get("max") is not None else clamped


SIGNS = {"eq": "=", "ne": r"\ne", "lt": "<", "gt": ">", "le": r"\le", "ge": r"\ge"}
COMPARISON_ALIASES = {"not_equal": "ne", "less": "lt", "greater": "gt", "less_equal": "le", "greater_equal": "ge"}


def _comparison(name: str, sign: str) -> None:
    register_lowering(name)(lambda call: Compare(call["self"], operand(call, "other"), sign=sign))


for _name, _sign in (SIGNS | {long: SIGNS[short] for long, short in COMPARISON_ALIASES.items()}).items():
    _comparison(_name, _sign)


@register_lowering("isnan")
def isnan(call: BoundCall) -> Node:
    return Compare(call["self"], call["self"], sign=r"\ne")


@register_lowering("isinf")
def isinf(call: BoundCall) -> Node:
    return Compare(Absolute(call["self"]), Scalar(float("inf")), sign="=")


@register_lowering("isfinite")
def isfinite(call: BoundCall) -> Node:
    return Compare(Absolute(call["self"]), Scalar(float("inf")), sign="<")


LOGIC = {"and": And, "or": Or, "xor": Xor}


def _logic(word: str, node: type[Node]) -> None:
    register_lowering(f"logical_{word}")(lambda call: node(call["self"], call["other"]))

    @register_lowering(f"bitwise_{word}", f"__{word}__", f"__i{word}__")
    def bitwise(call: BoundCall) -> Node | None:
        names = [name for name in _pair(call) if isinstance(call[name], Node)]
        truth = len(names) == 2 and all(call.dtype(name) == torch.bool for name in names)
        return node(call["self"], call["other"]) if truth else None


for _name, _node in LOGIC.items():
    _logic(_name, _node)


@register_lowering("where")
def where(call: BoundCall) -> Node | None:
    if "other" not in call.arguments:
        return None
    return Where(call["condition"], operand(call, "self"), operand(call, "other"))


@register_lowering("masked_fill")
def masked_fill(call: BoundCall) -> Node:
    return Where(call["mask"], operand(call, "value"), call["self"])


@register_lowering("view_as_complex")
def view_as_complex(call: BoundCall) -> Node:
    return Pairs(call["self"])


@register_lowering("view_as_real")
def view_as_real(call: BoundCall) -> Node:
    return RealAndImaginary(call["self"])


@register_lowering("complex")
def complex_of(call: BoundCall) -> Node:
    return Pairs(Stack(call["real"], call["imag"], axis=call.rank("real")))


@register_lowering("polar")
def polar(call: BoundCall) -> Node:
    return Polar(call["abs"], call["angle"])


@register_lowering("real")
def real(call: BoundCall) -> Node:
    return Real(call["self"])


@register_lowering("imag")
def imaginary(call: BoundCall) -> Node:
    return Imaginary(call["self"])


@register_lowering("conj", "_conj", "conj_physical")
def conjugate(call: BoundCall) -> Node:
    return Conjugate(call["self"])
