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

PLAIN = {
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
    register_lowering(name)(lambda given: node(given[given.first]))


for _name, _node in PLAIN.items():
    _register(_name, _node)


@register_lowering("log_sigmoid_forward")
def log_sigmoid(given: BoundCall) -> Node | None:
    return None if given.position else LogSigmoid(given["self"])


@register_lowering("round")
def round_(given: BoundCall) -> Node | None:
    return None if given.get("decimals") else Round(given["self"])


@register_lowering("bitwise_not")
def bitwise_not(given: BoundCall) -> Node | None:
    return Not(given["self"]) if given.dtype("self") == torch.bool else None


@register_lowering("square")
def square(given: BoundCall) -> Node:
    return Power(given["self"], Scalar(2))


@register_lowering("rsqrt")
def rsqrt(given: BoundCall) -> Node:
    return Div(Scalar(1), Root(given["self"]))


@register_lowering("reciprocal")
def reciprocal(given: BoundCall) -> Node:
    return Div(Scalar(1), given["self"])


@register_lowering("gelu")
def gelu(given: BoundCall) -> Node:
    return (GELUTanh if given["approximate"] == "tanh" else GELU)(given["self"])


@register_lowering("leaky_relu")
def leaky_relu(given: BoundCall) -> Node:
    return LeakyReLU(given["self"], slope=given["negative_slope"])


@register_lowering("elu", "celu")
def elu(given: BoundCall) -> Node:
    alpha = given["alpha"]
    inner = given.get("input_scale", 1 / alpha)
    return ELU(given["self"], alpha=alpha, scale=given.get("scale", 1), input_scale=inner)


@register_lowering("prelu", "_prelu_kernel")
def prelu(given: BoundCall) -> Node | None:
    return PReLU(given["self"], given["weight"]) if given.rank("weight") < 2 else None


@register_lowering("softplus")
def softplus(given: BoundCall) -> Node:
    return Softplus(given["self"], beta=given["beta"], threshold=given["threshold"])


@register_lowering("softshrink")
def softshrink(given: BoundCall) -> Node:
    return SoftShrink(given["self"], edge=given["lambd"])


@register_lowering("hardshrink")
def hardshrink(given: BoundCall) -> Node:
    return HardShrink(given["self"], edge=given["lambd"])


@register_lowering("hardtanh")
def hardtanh(given: BoundCall) -> Node:
    return Minimum(Maximum(given["self"], node_of(given["min_val"])), node_of(given["max_val"]))


@register_lowering("threshold")
def threshold(given: BoundCall) -> Node:
    above = Compare(given["self"], node_of(given["threshold"]), sign=">")
    return Where(above, given["self"], node_of(given["value"]))


@register_lowering("deg2rad", "rad2deg")
def degrees(given: BoundCall) -> Node:
    return scale(given, given["self"], pi / 180 if given.func._schema.name.endswith("deg2rad") else 180 / pi)


@register_lowering("nan_to_num")
def nan_to_num(given: BoundCall) -> Node:
    most = torch.finfo(given.dtype("self")).max if given.dtype("self").is_floating_point else 0
    above = given["posinf"] if given.has("posinf") else most
    below = given["neginf"] if given.has("neginf") else -most
    return NanToNum(given["self"], nan=given["nan"] or 0, above=float(above), below=float(below))


def _axis(given: BoundCall) -> dict:
    """Return the axis of a call; empty for the last one."""
    rank = given.rank("self")
    axis = given["dim"] % rank if rank else 0
    return {} if axis == rank - 1 or not rank else given.axis_labels("self", (axis,))


@register_lowering("softmax", "_softmax")
def softmax(given: BoundCall) -> Node:
    axis = _axis(given)
    return SoftmaxAlong(given["self"], **axis) if axis else Softmax(given["self"])


@register_lowering("log_softmax", "_log_softmax")
def log_softmax(given: BoundCall) -> Node:
    return LogSoftmax(given["self"], **_axis(given))


@register_lowering("glu")
def glu(given: BoundCall) -> Node:
    return GLU(given["self"], **_axis(given))


@register_lowering("to", "_to_copy", "type_as")
def cast(given: BoundCall) -> Node:
    """Lower a cast: to integers by truncation, to bool by `≠ 0`; other dtypes hold the number itself."""
    wanted = given.get("dtype")
    if isinstance(given.get("other"), Node):
        wanted = given.dtype("other")
    had = given.dtype("self")
    if wanted == torch.bool and had != torch.bool:
        return Bool(given["self"])
    whole = isinstance(wanted, torch.dtype) and not (wanted.is_floating_point or wanted.is_complex)
    return Truncated(given["self"]) if whole and had.is_floating_point else given["self"]


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
def copy(given: BoundCall) -> Node:
    return given["self"]


@register_lowering("dropout", "feature_dropout", "alpha_dropout", "native_dropout")
def dropout(given: BoundCall) -> Node | None:
    return None if (given["train"] and given["p"]) or given.position else given[given.first]
