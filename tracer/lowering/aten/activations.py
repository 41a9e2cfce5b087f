"""Lowerings of pointwise functions and of softmax."""

from __future__ import annotations

from math import pi

import torch

from tracer.expr import (
    ELU,
    GELU,
    GLU,
    SELU,
    Absolute,
    ArcTangent,
    Bool,
    Ceiling,
    Compare,
    Cosine,
    Div,
    Erf,
    Exp,
    Expm1,
    Floor,
    GELUTanh,
    HardShrink,
    HardSigmoid,
    HardSwish,
    HyperbolicCosine,
    HyperbolicSine,
    LeakyReLU,
    Log,
    Log1p,
    Log2,
    Log10,
    LogSigmoid,
    LogSoftmax,
    Maximum,
    Minimum,
    Mish,
    NanToNum,
    Negative,
    Node,
    Not,
    Power,
    PReLU,
    ReLU,
    ReLU6,
    Root,
    Round,
    Scalar,
    Sigmoid,
    Sign,
    SiLU,
    Sine,
    Softmax,
    SoftmaxAlong,
    Softplus,
    SoftShrink,
    Tangent,
    Tanh,
    Truncated,
    Where,
)
from tracer.lowering.aten import register_lowering
from tracer.lowering.call_arguments import BoundCall
from tracer.lowering.scalar_operands import node_of, scale

UNARY_NODES = {
    "abs": Absolute,
    "absolute": Absolute,
    "atan": ArcTangent,
    "arctan": ArcTangent,
    "ceil": Ceiling,
    "cos": Cosine,
    "cosh": HyperbolicCosine,
    "erf": Erf,
    "special_erf": Erf,
    "exp": Exp,
    "expm1": Expm1,
    "fix": Truncated,
    "floor": Floor,
    "hardsigmoid": HardSigmoid,
    "hardswish": HardSwish,
    "log": Log,
    "log10": Log10,
    "log1p": Log1p,
    "log2": Log2,
    "log_sigmoid": LogSigmoid,
    "logical_not": Not,
    "mish": Mish,
    "neg": Negative,
    "negative": Negative,
    "relu": ReLU,
    "relu6": ReLU6,
    "selu": SELU,
    "sgn": Sign,
    "sigmoid": Sigmoid,
    "sign": Sign,
    "silu": SiLU,
    "sin": Sine,
    "sinh": HyperbolicSine,
    "special_expit": Sigmoid,
    "sqrt": Root,
    "tan": Tangent,
    "tanh": Tanh,
    "trunc": Truncated,
}


def _register(name: str, node: type[Node]) -> None:
    register_lowering(name)(lambda call: node(call[call.first]))


for _name, _node in UNARY_NODES.items():
    _register(_name, _node)


@register_lowering("log_sigmoid_forward")
def log_sigmoid(call: BoundCall) -> Node | None:
    return None if call.position else LogSigmoid(call["self"])


@register_lowering("round")
def round_(call: BoundCall) -> Node | None:
    return None if call.get("decimals") else Round(call["self"])


@register_lowering("bitwise_not")
def bitwise_not(call: BoundCall) -> Node | None:
    return Not(call["self"]) if call.dtype("self") == torch.bool else None


@register_lowering("square")
def square(call: BoundCall) -> Node:
    return Power(call["self"], Scalar(2))


@register_lowering("rsqrt")
def rsqrt(call: BoundCall) -> Node:
    return Div(Scalar(1), Root(call["self"]))


@register_lowering("reciprocal")
def reciprocal(call: BoundCall) -> Node:
    return Div(Scalar(1), call["self"])


@register_lowering("gelu")
def gelu(call: BoundCall) -> Node:
    return (GELUTanh if call["approximate"] == "tanh" else GELU)(call["self"])


@register_lowering("leaky_relu")
def leaky_relu(call: BoundCall) -> Node:
    return LeakyReLU(call["self"], slope=call["negative_slope"])


@register_lowering("elu", "celu")
def elu(call: BoundCall) -> Node:
    alpha = call["alpha"]
    inner = call.get("input_scale", 1 / alpha)
    return ELU(call["self"], alpha=alpha, scale=call.get("scale", 1), input_scale=inner)


@register_lowering("prelu", "_prelu_kernel")
def prelu(call: BoundCall) -> Node | None:
    return PReLU(call["self"], call["weight"]) if call.rank("weight") < 2 else None


@register_lowering("softplus")
def softplus(call: BoundCall) -> Node:
    return Softplus(call["self"], beta=call["beta"], threshold=call["threshold"])


@register_lowering("softshrink")
def softshrink(call: BoundCall) -> Node:
    return SoftShrink(call["self"], edge=call["lambd"])


@register_lowering("hardshrink")
def hardshrink(call: BoundCall) -> Node:
    return HardShrink(call["self"], edge=call["lambd"])


@register_lowering("hardtanh")
def hardtanh(call: BoundCall) -> Node:
    return Minimum(Maximum(call["self"], node_of(call["min_val"])), node_of(call["max_val"]))


@register_lowering("threshold")
def threshold(call: BoundCall) -> Node:
    above = Compare(call["self"], node_of(call["threshold"]), sign=">")
    return Where(above, call["self"], node_of(call["value"]))


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


@register_lowering("log_softmax", "_log_softmax")
def log_softmax(call: BoundCall) -> Node:
    return LogSoftmax(call["self"], **call.unless_last())


@register_lowering("glu")
def glu(call: BoundCall) -> Node:
    return GLU(call["self"], **call.unless_last())


@register_lowering("to", "_to_copy", "type_as")
def cast(call: BoundCall) -> Node:
    """Lower a cast: to integers by truncation, to bool by `≠ 0`; other dtypes keep the number itself."""
    wanted = call.get("dtype")
    if isinstance(call.get("other"), Node):
        wanted = call.dtype("other")
    had = call.dtype("self")
    if wanted == torch.bool and had != torch.bool:
        return Bool(call["self"])
    whole = isinstance(wanted, torch.dtype) and not (wanted.is_floating_point or wanted.is_complex)
    return Truncated(call["self"]) if whole and had.is_floating_point else call["self"]


@register_lowering(
    "clone",
    "contiguous",
    "alias",
    "detach",
    "lift_fresh",
    "lift_fresh_copy",
    "positive",
    "resolve_conj",
    "resolve_neg",
)
def copy(call: BoundCall) -> Node:
    return call["self"]


@register_lowering("dropout", "feature_dropout", "alpha_dropout", "native_dropout")
def dropout(call: BoundCall) -> Node | None:
    return None if (call["train"] and call["p"]) or call.position else call[call.first]
