"""Lowerings of arithmetic, activations and reductions."""

from __future__ import annotations

from math import pi

import torch

from tracer.expr import (
    ELU,
    GELU,
    ArgMax,
    ArgMin,
    ArgSort,
    ArgTopK,
    Div,
    Floor,
    GELUTanh,
    Max,
    Maximum,
    Mean,
    Min,
    Minimum,
    Minus,
    NanToNum,
    Node,
    Norm,
    Pairs,
    Power,
    Root,
    Scalar,
    Softmax,
    SoftmaxAlong,
    Sort,
    Stack,
    Std,
    Times,
    TopK,
    Truncated,
    Variance,
)
from tracer.lowering.aten import register_lowering
from tracer.lowering.call_arguments import BoundCall, convert, int_or, minus, node_of, operand, over, plus, scale, times

# Lowerings of arithmetic, bounds and complex numbers.


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


@register_lowering("addcmul", "addcdiv")
def add_scaled(call: BoundCall) -> Node:
    joined = (Times if call.op.name == "addcmul" else Div)(call["tensor1"], call["tensor2"])
    return plus(call["self"], scale(call, joined, call["value"]))


@register_lowering("clamp", "clip", "clamp_min", "clamp_max")
def clamp(call: BoundCall) -> Node:
    clamped = call["self"]
    if call.get("min") is not None:
        clamped = Maximum(clamped, operand(call, "min"))
    return Minimum(clamped, operand(call, "max")) if call.get("max") is not None else clamped


@register_lowering("complex")
def complex_of(call: BoundCall) -> Node:
    return Pairs(Stack(call["real"], call["imag"], axis=call.rank("real")))


# Lowerings of functions of each number, and of softmax.


@register_lowering("gelu")
def gelu(call: BoundCall) -> Node:
    return (GELUTanh if call["approximate"] == "tanh" else GELU)(call["self"])


@register_lowering("elu", "celu")
def elu(call: BoundCall) -> Node:
    alpha = call["alpha"]
    inner = call.get("input_scale", 1 / alpha)
    return ELU(call["self"], alpha=alpha, scale=call.get("scale", 1), input_scale=inner)


@register_lowering("deg2rad", "rad2deg")
def degrees(call: BoundCall) -> Node:
    return scale(call, call["self"], pi / 180 if call.op_name.endswith("deg2rad") else 180 / pi)


@register_lowering("nan_to_num")
def nan_to_num(call: BoundCall) -> Node:
    most = torch.finfo(call.dtype("self")).max if call.dtype("self").is_floating_point else 0
    above = call["posinf"] if call.has("posinf") else most
    below = call["neginf"] if call.has("neginf") else -most
    return NanToNum(call["self"], nan=call["nan"] or 0, above=float(above), below=float(below))


@register_lowering("softmax", "_softmax")
def softmax(call: BoundCall) -> Node:
    axis = call.unless_last()
    return SoftmaxAlong(call["self"], **axis) if axis else Softmax(call["self"])


@register_lowering("to", "_to_copy", "type_as")
def cast(call: BoundCall) -> Node:
    """Lower a cast: to integers by truncation, to bool by `≠ 0`; other dtypes keep the number itself."""
    wanted = call.get("dtype")
    if isinstance(call.get("other"), Node):
        wanted = call.dtype("other")
    return convert(call, "self", wanted if isinstance(wanted, torch.dtype) else None)


# Lowerings of reductions and sorting.


@register_lowering("max", "min", every_output=True)
def extreme(call: BoundCall) -> Node:
    two, many, place = (Minimum, Min, ArgMin) if "min" in call.op_name else (Maximum, Max, ArgMax)
    if "other" in call.arguments:
        return two(call["self"], call["other"])
    return (place if call.position else many)(call["self"], **call.reduced_axes())


@register_lowering("var", "std", "var_mean", "std_mean", every_output=True)
def variance(call: BoundCall) -> Node:
    less = call.get("correction")
    if less is None:
        less = int(call.get("unbiased", True))
    if call.position:
        return Mean(call["self"], **call.reduced_axes())
    node = Std if "std" in call.op_name else Variance
    return node(call["self"], less=less, **call.reduced_axes())


@register_lowering("norm", "linalg_vector_norm", "frobenius_norm", "linalg_norm")
def length(call: BoundCall) -> Node | None:
    p = call.get("p", call.get("ord"))
    p = 2 if p is None else p
    axes = call.reduced_axes()
    if isinstance(p, str) or p == -float("inf"):
        return None
    if call.op_name == "aten::linalg_norm" and call.get("ord") is not None and len(axes["axes"]) > 1:
        return None
    last = axes["axes"] == (call.rank("self") - 1,)
    usual = p == 2 and last and axes["keep"]
    return Norm(call["self"], p=int_or(p), usual=usual, **axes)


@register_lowering("topk", every_output=True)
def topk(call: BoundCall) -> Node | None:
    """Lower a sorted top-k; the order of an unsorted one is the kernel's own."""
    if not call["sorted"]:
        return None
    k = call.result[call["dim"] % call.rank("self")]
    if not k.free_symbols:
        call.get("k")  # for the remark on one that moves
    node = ArgTopK if call.position else TopK
    return node(call["self"], k=k, down=call["largest"], **call.unless_last())


@register_lowering("sort", every_output=True)
def sort(call: BoundCall) -> Node | None:
    """Lower a sort; its indices only if it is stable, or of fractions, which are seldom equal, since the order of equal
    elements is the kernel's own otherwise."""
    if call.position and not call.get("stable") and not call.dtype("self").is_floating_point:
        return None
    node = ArgSort if call.position else Sort
    return node(call["self"], down=call["descending"], **call.unless_last())
