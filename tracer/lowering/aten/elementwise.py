"""Lowerings of arithmetic, activations and reductions."""

from __future__ import annotations

from math import pi

import torch

from tracer.expr import (
    ELU,
    GELU,
    GLU,
    SELU,
    Absolute,
    AllOf,
    And,
    AnyOf,
    ArcTangent,
    ArcTangent2,
    ArgMax,
    ArgMin,
    ArgSort,
    ArgTopK,
    Bool,
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
    Floor,
    GELUTanh,
    HardShrink,
    HardSigmoid,
    HardSwish,
    HyperbolicCosine,
    HyperbolicSine,
    Imaginary,
    LeakyReLU,
    Lerp,
    Log,
    Log1p,
    Log2,
    Log10,
    LogSigmoid,
    LogSoftmax,
    LogSumExp,
    Max,
    Maximum,
    Mean,
    Min,
    Minimum,
    Minus,
    Mish,
    NanToNum,
    Negative,
    Node,
    Norm,
    Not,
    OneHot,
    Or,
    Pairs,
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
    Softmax,
    SoftmaxAlong,
    Softplus,
    SoftShrink,
    Sort,
    Stack,
    Std,
    Sum,
    Tangent,
    Tanh,
    Times,
    TopK,
    Truncated,
    Variance,
    Where,
    Xor,
)
from tracer.lowering.aten import register_lowering
from tracer.lowering.call_arguments import BoundCall, minus, node_of, operand, over, plus, scale, times
from tracer.utils.torch_internals import function_schema

# Lowerings of arithmetic, bounds, comparisons, logic and complex numbers.


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


# Lowerings of pointwise functions and of softmax.

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


def _register_activation(name: str, node: type[Node]) -> None:
    register_lowering(name)(lambda call: node(call[call.first]))


for _activation_name, _activation_node in UNARY_NODES.items():
    _register_activation(_activation_name, _activation_node)


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


# Lowerings of reductions, cumulative sums and sorting.

REDUCTION_NODES = {
    "mean": Mean,
    "sum": Sum,
    "prod": Prod,
    "amax": Max,
    "amin": Min,
    "logsumexp": LogSumExp,
    "special_logsumexp": LogSumExp,
    "argmax": ArgMax,
    "argmin": ArgMin,
    "any": AnyOf,
    "all": AllOf,
    "_is_any_true": AnyOf,
    "_is_all_true": AllOf,
    "count_nonzero": CountNonzero,
}


def reduced_axes(call: BoundCall) -> dict:
    """Return the reduced axes, and whether they stay with size 1."""
    return call.axis_labels("self", call.axes("self", call.get("dim"))) | {"keep": bool(call.get("keepdim", False))}


def _register_reduction(name: str, node: type[Node]) -> None:
    register_lowering(name)(lambda call: node(call["self"], **reduced_axes(call)))


for _reduction_name, _reduction_node in REDUCTION_NODES.items():
    _register_reduction(_reduction_name, _reduction_node)


def _extreme(name: str, two: type[Node], many: type[Node], place: type[Node]) -> None:
    @register_lowering(name)
    def extreme(call: BoundCall) -> Node:
        if "other" in call.arguments:
            return two(call["self"], call["other"])
        return (place if call.position else many)(call["self"], **reduced_axes(call))


_extreme("max", Maximum, Max, ArgMax)
_extreme("min", Minimum, Min, ArgMin)


@register_lowering("var", "std", "var_mean", "std_mean")
def variance(call: BoundCall) -> Node:
    less = call.get("correction")
    if less is None:
        less = int(call.get("unbiased", True))
    if call.position:
        return Mean(call["self"], **reduced_axes(call))
    node = Std if "std" in call.op_name else Variance
    return node(call["self"], less=less, **reduced_axes(call))


@register_lowering("norm", "linalg_vector_norm", "frobenius_norm", "linalg_norm")
def length(call: BoundCall) -> Node | None:
    p = call.get("p", call.get("ord"))
    p = 2 if p is None else p
    axes = reduced_axes(call)
    if isinstance(p, str) or p == -float("inf"):
        return None
    if call.op_name == "aten::linalg_norm" and call.get("ord") is not None and len(axes["axes"]) > 1:
        return None
    last = axes["axes"] == (call.rank("self") - 1,)
    usual = p == 2 and last and axes["keep"]
    return Norm(call["self"], p=int(p) if p == _as_int(p) else p, usual=usual, **axes)


def _as_int(p: float) -> int | None:
    return int(p) if p != float("inf") else None


def _along(call: BoundCall) -> dict:
    rank = call.rank("self")
    return call.axis_labels("self", (call["dim"] % rank,)) if rank else {}


@register_lowering("cumsum")
def cumsum(call: BoundCall) -> Node:
    return CumSum(call["self"], **_along(call))


@register_lowering("cumprod")
def cumprod(call: BoundCall) -> Node:
    return CumProd(call["self"], **_along(call))


@register_lowering("topk")
def topk(call: BoundCall) -> Node | None:
    """Lower a sorted top-k; the order of an unsorted one is the kernel's own."""
    if not call["sorted"]:
        return None
    k = call.result[call["dim"] % call.rank("self")]
    if not k.free_symbols:
        call.get("k")  # for the remark on one that moves
    node = ArgTopK if call.position else TopK
    return node(call["self"], k=k, down=call["largest"], **call.unless_last())


@register_lowering("sort")
def sort(call: BoundCall) -> Node | None:
    """Lower a sort; its indices only if it is stable, since the order of equal elements is the kernel's own
    otherwise."""
    if call.position and not call.get("stable"):
        return None
    node = ArgSort if call.position else Sort
    return node(call["self"], down=call["descending"], **call.unless_last())


@register_lowering("argsort")
def argsort(call: BoundCall) -> Node | None:
    if not call.get("stable"):
        return None
    return ArgSort(call["self"], down=call["descending"], **call.unless_last())


@register_lowering("one_hot")
def one_hot(call: BoundCall) -> Node:
    return OneHot(call["self"], classes=call.result[-1])
