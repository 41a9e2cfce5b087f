"""Lowerings that are one formula, as data: an op, and the node that it becomes.

A gap, such as `X`, stands for the op's argument of that name, and one node of the table for several ops if their names
are divided by spaces. What the arguments do not say as they are, such as axes and their labels, a function behind the
node computes.
"""

from __future__ import annotations

import torch
from sympy import oo

from tracer.expr import (
    GLU,
    SELU,
    Absolute,
    AdaptiveAverage,
    AdaptiveMax,
    AllOf,
    And,
    AnyOf,
    ArcTangent,
    ArcTangent2,
    ArgMax,
    ArgMin,
    ArgSort,
    AveragePool,
    Ceiling,
    Compare,
    Conjugate,
    Cosine,
    CountNonzero,
    CumProd,
    CumSum,
    Div,
    Erf,
    Exp,
    Expm1,
    Flip,
    Floor,
    HardShrink,
    HardSigmoid,
    HardSwish,
    HyperbolicCosine,
    HyperbolicSine,
    Imaginary,
    LeakyReLU,
    Lerp,
    Linspace,
    Log,
    Log1p,
    Log2,
    Log10,
    LogSigmoid,
    LogSoftmax,
    LogSumExp,
    Lookup,
    MaskedScatter,
    Max,
    Maximum,
    MaxPool,
    Mean,
    Min,
    Minimum,
    Mish,
    Negative,
    Node,
    Nonzero,
    Not,
    OneHot,
    Or,
    Outer,
    Pad,
    Pairs,
    Plus,
    Polar,
    Power,
    PReLU,
    Prod,
    Real,
    RealAndImaginary,
    ReLU,
    ReLU6,
    Remainder,
    Root,
    Round,
    Scalar,
    Sigmoid,
    Sign,
    SiLU,
    Sine,
    Softplus,
    SoftShrink,
    Sum,
    Tangent,
    Tanh,
    Tril,
    Triu,
    Truncated,
    UnitLength,
    Where,
    WindowColumns,
    WindowSums,
    Xor,
)
from tracer.lowering.call_arguments import BoundCall, is_bit
from tracer.lowering.patterns import Settings, Wild


def per_axis(value, count: int) -> tuple[int, ...]:
    """Return one number for each axis; a single one is repeated."""
    value = (value,) if isinstance(value, int) else tuple(value)
    return value * count if len(value) == 1 else value


def image_axes(call: BoundCall) -> int:
    """Return the number of axes of a picture that an op is for: 2 for `max_pool2d`."""
    return next(count for count in (1, 2, 3) if f"{count}d" in call.op_name)


def _windows(call: BoundCall) -> dict:
    """Return the settings of a pooling."""
    count = image_axes(call)
    window = per_axis(call["kernel_size"], count)
    stride = per_axis(call["stride"], count) if call.get("stride") else window
    dilation = per_axis(call.get("dilation", 1), count)
    padding = per_axis(call["padding"], count)
    return {"window": window, "stride": stride, "padding": padding, "dilation": dilation, "up": call["ceil_mode"]}


def _average_windows(call: BoundCall) -> dict:
    return {**_windows(call), "bare": not call["count_include_pad"], "divisor": call.get("divisor_override")}


def _columns(call: BoundCall) -> dict:
    fields = {"window": "kernel_size", "stride": "stride", "padding": "padding", "dilation": "dilation"}
    return {field: per_axis(call.number(name), 2) for field, name in fields.items()}


def _sizes(call: BoundCall) -> dict:
    return {"sizes": call.result[-image_axes(call) :]}


def _count(call: BoundCall) -> dict:
    return {"count": call.result[0]}


def _booleans(call: BoundCall) -> dict | None:
    """Return no settings; None if not all arguments are tensors of bools."""
    tensors = all(isinstance(value, Node) and call.dtype(name) == torch.bool for name, value in call.arguments.items())
    return {} if tensors else None


def _bits(call: BoundCall) -> dict | None:
    """Return no settings; None if not all arguments are tensors of bools, or of whole numbers that are 0 or 1."""
    operands = [(value, call.dtype(name)) for name, value in call.arguments.items() if isinstance(value, Node)]
    both = len(operands) == len(call.arguments) and all(dtype == torch.bool or is_bit(x) for x, dtype in operands)
    return {} if both else None


def _sorted(call: BoundCall) -> dict | None:
    """Return the settings of a sort whose indices are determined, but for equal fractions, which are seldom."""
    determined = call.get("stable") or call.dtype("self").is_floating_point
    return {"down": call["descending"], **call.unless_last()} if determined else None


X, OTHER, VALUE, WEIGHT = Wild("self"), Wild("other"), Wild("value"), Wild("weight")

FORMULAS: dict[str, Node | tuple[Node, Settings]] = {
    # the number itself
    "clone contiguous alias detach lift_fresh lift_fresh_copy positive resolve_conj resolve_neg": X,
    # functions of each number
    "abs absolute": Absolute(X),
    "atan arctan": ArcTangent(X),
    "ceil": Ceiling(X),
    "cos": Cosine(X),
    "cosh": HyperbolicCosine(X),
    "erf special_erf": Erf(X),
    "exp": Exp(X),
    "expm1": Expm1(X),
    "floor": Floor(X),
    "log": Log(X),
    "log10": Log10(X),
    "log1p": Log1p(X),
    "log2": Log2(X),
    "neg negative": Negative(X),
    "reciprocal": Div(Scalar(1), X),
    "rsqrt": Div(Scalar(1), Root(X)),
    "sign sgn": Sign(X),
    "sin": Sine(X),
    "sinh": HyperbolicSine(X),
    "sqrt": Root(X),
    "square": Power(X, Scalar(2)),
    "tan": Tangent(X),
    "tanh": Tanh(X),
    "trunc fix": Truncated(X),
    "round": (Round(X), lambda call: None if call.get("decimals") else {}),
    "dropout feature_dropout alpha_dropout native_dropout": (
        Wild("input"),
        lambda call: None if call["train"] and call["p"] else {},
    ),
    # activations
    "hardshrink": HardShrink(X, edge=Wild("lambd")),
    "hardsigmoid": HardSigmoid(X),
    "hardswish": HardSwish(X),
    "hardtanh": Minimum(Maximum(X, Wild("min_val")), Wild("max_val")),
    "leaky_relu": LeakyReLU(X, slope=Wild("negative_slope")),
    "log_sigmoid log_sigmoid_forward": LogSigmoid(X),
    "mish": Mish(X),
    "prelu _prelu_kernel": (PReLU(X, WEIGHT), lambda call: {} if call.rank("weight") < 2 else None),
    "relu": ReLU(X),
    "relu6": ReLU6(X),
    "selu": SELU(X),
    "sigmoid special_expit": Sigmoid(X),
    "silu": SiLU(X),
    "softplus": Softplus(X, beta=Wild("beta"), threshold=Wild("threshold")),
    "softshrink": SoftShrink(X, edge=Wild("lambd")),
    "threshold": Where(Compare(X, Wild("threshold"), sign=">"), X, VALUE),
    # arithmetic of two tensors
    "atan2 arctan2": ArcTangent2(X, OTHER),
    "floor_divide": Floor(Div(X, OTHER)),
    "lerp": Lerp(X, Wild("end"), WEIGHT),
    "logaddexp": Log(Plus(Exp(X), Exp(OTHER))),
    "maximum fmax": Maximum(X, OTHER),
    "minimum fmin": Minimum(X, OTHER),
    "outer ger": Outer(X, Wild("vec2")),
    "remainder": Remainder(X, OTHER),
    # comparisons and logic
    "eq": Compare(X, OTHER, sign="="),
    "ne not_equal": Compare(X, OTHER, sign=r"\ne"),
    "lt less": Compare(X, OTHER, sign="<"),
    "gt greater": Compare(X, OTHER, sign=">"),
    "le less_equal": Compare(X, OTHER, sign=r"\le"),
    "ge greater_equal": Compare(X, OTHER, sign=r"\ge"),
    "isnan": Compare(X, X, sign=r"\ne"),
    "isinf": Compare(Absolute(X), Scalar(oo), sign="="),
    "isfinite": Compare(Absolute(X), Scalar(oo), sign="<"),
    "logical_and": And(X, OTHER),
    "logical_or": Or(X, OTHER),
    "logical_xor": Xor(X, OTHER),
    "logical_not": Not(X),
    "bitwise_and __and__ __iand__": (And(X, OTHER), _bits),
    "bitwise_or __or__ __ior__": (Or(X, OTHER), _bits),
    "bitwise_xor __xor__ __ixor__": (Xor(X, OTHER), _bits),
    "bitwise_not": (Not(X), _booleans),
    "where": (Where(Wild("condition"), X, OTHER), lambda call: {} if "other" in call.arguments else None),
    "masked_fill": Where(Wild("mask"), VALUE, X),
    # complex numbers
    "view_as_complex": Pairs(X),
    "view_as_real": RealAndImaginary(X),
    "polar": Polar(Wild("abs"), Wild("angle")),
    "real": Real(X),
    "imag": Imaginary(X),
    "conj _conj conj_physical": Conjugate(X),
    # along axes
    "mean": (Mean(X), BoundCall.reduced_axes),
    "sum": (Sum(X), BoundCall.reduced_axes),
    "prod": (Prod(X), BoundCall.reduced_axes),
    "amax": (Max(X), BoundCall.reduced_axes),
    "amin": (Min(X), BoundCall.reduced_axes),
    "logsumexp special_logsumexp": (LogSumExp(X), BoundCall.reduced_axes),
    "argmax": (ArgMax(X), BoundCall.reduced_axes),
    "argmin": (ArgMin(X), BoundCall.reduced_axes),
    "any _is_any_true": (AnyOf(X), BoundCall.reduced_axes),
    "all _is_all_true": (AllOf(X), BoundCall.reduced_axes),
    "count_nonzero": (CountNonzero(X), BoundCall.reduced_axes),
    "cumsum": (CumSum(X), BoundCall.along),
    "cumprod": (CumProd(X), BoundCall.along),
    "argsort": (ArgSort(X), _sorted),
    "log_softmax _log_softmax": (LogSoftmax(X), BoundCall.unless_last),
    "glu": (GLU(X), BoundCall.unless_last),
    "unit_length": UnitLength(Wild("input")),
    # indexing
    "embedding": Lookup(WEIGHT, Wild("indices")),
    "flip": (Flip(X), lambda call: call.axis_labels("self", call.axes("self", call["dims"]))),
    "masked_scatter": MaskedScatter(X, Wild("mask"), Wild("source")),
    "nonzero": (Nonzero(X), _count),
    "one_hot": (OneHot(X), lambda call: {"classes": call.result[-1]}),
    "reflection_pad1d reflection_pad2d reflection_pad3d": Pad(X, pads=Wild("padding"), mode="reflect"),
    "replication_pad1d replication_pad2d replication_pad3d": Pad(X, pads=Wild("padding"), mode="replicate"),
    "tril": Tril(X, diagonal=Wild("diagonal")),
    "triu": Triu(X, diagonal=Wild("diagonal")),
    "linspace": (Linspace(Wild("start"), Wild("end")), _count),
    # windows of pictures
    "im2col": (WindowColumns(X), _columns),
    "col2im": (WindowSums(X), lambda call: _columns(call) | {"sizes": call.result[-2:]}),
    "max_pool1d max_pool2d max_pool3d": (MaxPool(X), _windows),
    "max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices": (MaxPool(X), _windows),
    "avg_pool1d avg_pool2d avg_pool3d": (AveragePool(X), _average_windows),
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d": (AdaptiveAverage(X), _sizes),
    "_adaptive_avg_pool2d _adaptive_avg_pool3d": (AdaptiveAverage(X), _sizes),
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d": (AdaptiveMax(X), _sizes),
}
