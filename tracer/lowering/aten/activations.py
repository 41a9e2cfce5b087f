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
from tracer.lowering.aten import of
from tracer.lowering.call_arguments import Given
from tracer.lowering.scalar_operands import node_of, scaled

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


def _registered(name: str, node: type[Node]) -> None:
    of(name)(lambda given: node(given[given.first]))


for _name, _node in PLAIN.items():
    _registered(_name, _node)


@of("log_sigmoid_forward")
def log_sigmoid(given: Given) -> Node | None:
    return None if given.position else LogSigmoid(given["self"])


@of("round")
def rounded(given: Given) -> Node | None:
    return None if given.get("decimals") else Round(given["self"])


@of("bitwise_not")
def bitwise_not(given: Given) -> Node | None:
    return Not(given["self"]) if given.dtype("self") == torch.bool else None


@of("square")
def square(given: Given) -> Node:
    return Power(given["self"], Scalar(2))


@of("rsqrt")
def rsqrt(given: Given) -> Node:
    return Div(Scalar(1), Root(given["self"]))


@of("reciprocal")
def reciprocal(given: Given) -> Node:
    return Div(Scalar(1), given["self"])


@of("gelu")
def gelu(given: Given) -> Node:
    return (GELUTanh if given["approximate"] == "tanh" else GELU)(given["self"])


@of("leaky_relu")
def leaky_relu(given: Given) -> Node:
    return LeakyReLU(given["self"], slope=given["negative_slope"])


@of("elu", "celu")
def elu(given: Given) -> Node:
    alpha = given["alpha"]
    inner = given.get("input_scale", 1 / alpha)
    return ELU(given["self"], alpha=alpha, scale=given.get("scale", 1), input_scale=inner)


@of("prelu", "_prelu_kernel")
def prelu(given: Given) -> Node | None:
    return PReLU(given["self"], given["weight"]) if given.rank("weight") < 2 else None


@of("softplus")
def softplus(given: Given) -> Node:
    return Softplus(given["self"], beta=given["beta"], threshold=given["threshold"])


@of("softshrink")
def softshrink(given: Given) -> Node:
    return SoftShrink(given["self"], edge=given["lambd"])


@of("hardshrink")
def hardshrink(given: Given) -> Node:
    return HardShrink(given["self"], edge=given["lambd"])


@of("hardtanh")
def hardtanh(given: Given) -> Node:
    return Minimum(Maximum(given["self"], node_of(given["min_val"])), node_of(given["max_val"]))


@of("threshold")
def threshold(given: Given) -> Node:
    above = Compare(given["self"], node_of(given["threshold"]), sign=">")
    return Where(above, given["self"], node_of(given["value"]))


@of("deg2rad", "rad2deg")
def degrees(given: Given) -> Node:
    return scaled(given, given["self"], pi / 180 if given.func._schema.name.endswith("deg2rad") else 180 / pi)


@of("nan_to_num")
def nan_to_num(given: Given) -> Node:
    most = torch.finfo(given.dtype("self")).max if given.dtype("self").is_floating_point else 0
    above = given["posinf"] if given.has("posinf") else most
    below = given["neginf"] if given.has("neginf") else -most
    return NanToNum(given["self"], nan=given["nan"] or 0, above=float(above), below=float(below))


def _axis(given: Given) -> dict:
    """Return the axis of a call; empty for the last one."""
    rank = given.rank("self")
    axis = given["dim"] % rank if rank else 0
    return {} if axis == rank - 1 or not rank else given.named("self", (axis,))


@of("softmax", "_softmax")
def softmax(given: Given) -> Node:
    axis = _axis(given)
    return SoftmaxAlong(given["self"], **axis) if axis else Softmax(given["self"])


@of("log_softmax", "_log_softmax")
def log_softmax(given: Given) -> Node:
    return LogSoftmax(given["self"], **_axis(given))


@of("glu")
def glu(given: Given) -> Node:
    return GLU(given["self"], **_axis(given))


@of("to", "_to_copy", "type_as")
def cast(given: Given) -> Node:
    """Lower a cast: to integers by truncation, to bool by `≠ 0`; other dtypes hold the number itself."""
    wanted = given.get("dtype")
    if isinstance(given.get("other"), Node):
        wanted = given.dtype("other")
    had = given.dtype("self")
    if wanted == torch.bool and had != torch.bool:
        return Bool(given["self"])
    whole = isinstance(wanted, torch.dtype) and not (wanted.is_floating_point or wanted.is_complex)
    return Truncated(given["self"]) if whole and had.is_floating_point else given["self"]


@of(
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
def copied(given: Given) -> Node:
    return given["self"]


@of("dropout", "feature_dropout", "alpha_dropout", "native_dropout")
def dropout(given: Given) -> Node | None:
    return None if (given["train"] and given["p"]) or given.position else given[given.first]
