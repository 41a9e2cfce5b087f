"""Lowerings of layers: products, norms, convolutions, losses, recurrence, rotation, experts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import sympy
import torch

from tracer.expr import (
    GRU,
    LSTM,
    RNN,
    Absolute,
    AllExperts,
    BatchNorm,
    ChannelNorm,
    ColumnProduct,
    Compare,
    Concat,
    Convolution,
    DeviationNorm,
    Div,
    Dot,
    Einsum,
    Experts,
    GroupedProduct,
    GroupNorm,
    Imaginary,
    Interpolate,
    LayerNorm,
    LayerNormOver,
    Log,
    LogSigmoid,
    LogSoftmax,
    Maximum,
    Mean,
    Minus,
    Negative,
    NegativeLogLikelihood,
    Node,
    Norm,
    Over,
    Plus,
    Polar,
    Power,
    Product,
    Real,
    Rearrange,
    RMSNorm,
    RMSNormOver,
    RotateEveryTwo,
    RotateHalf,
    RowProduct,
    Scalar,
    Scaled,
    Slice,
    Stack,
    Sum,
    Tensor,
    TransposedConvolution,
    Where,
    infer,
    latex,
)
from tracer.expr import Columns as Some
from tracer.expr.arithmetic import Times, Transposed
from tracer.expr.embeddings import HALVES, ApplyRotary, Cosine, Sine
from tracer.expr.indexing import FULL_SLICE, Full
from tracer.expr.mixture_of_experts import TOKEN, part
from tracer.expr.reductions import LETTERS
from tracer.graph.passes import mixtures
from tracer.lowering.aten import node, register_lowering
from tracer.lowering.aten.formulas import image_axes, per_axis
from tracer.lowering.call_arguments import BoundCall, node_of, plus, scale, split_factor
from tracer.ops import NO_LABEL
from tracer.symbols.axes import parse_einsum
from tracer.utils.torch_internals import function_schema

# Lowerings of matrix products and einsum.


@register_lowering("linear")
def linear(call: BoundCall) -> Node | None:
    if call.rank("weight") != 2:
        return None
    weight = call.weight("weight")
    product = (Product if call.rank("input") > 1 else RowProduct)(call["input"], weight)
    return Plus(product, call["bias"]) if call.has("bias") else product


@register_lowering("matmul", "mm", "bmm", "mv", "dot", "vdot", "inner")
def matmul(call: BoundCall) -> Node | None:
    left, right = (argument.name for argument in function_schema(call.func).arguments[:2])
    ranks = call.rank(left), call.rank(right)
    if call.op_name == "aten::inner" and ranks != (1, 1):
        return None
    if min(ranks) > 1:
        return product(call, call[left], call[right])
    node = RowProduct if ranks[1] > 1 else ColumnProduct if ranks[0] > 1 else Dot
    return node(call[left], call[right])


def product(call: BoundCall, left: Node, right: Node) -> Node:
    """Return a product of matrices; numbers that they were multiplied by stand in front of it, or below it."""
    (left, first), (right, second) = _split_factor(left), _split_factor(right)
    factor = first * second
    whole = Product(left, right)
    return whole if factor == 1 else scale(call, whole, float(factor) if factor.is_number else factor)


def _split_factor(node: Node) -> tuple[Node, sympy.Expr]:
    """Return a matrix, which may be transposed, without its factor, and the factor."""
    if isinstance(node, Transposed):
        inner, factor = split_factor(node.args[0])
        return (Transposed(inner), factor) if factor != 1 else (node, factor)
    return split_factor(node)


@register_lowering("addmm", "addmv", "baddbmm")
def add_product(call: BoundCall) -> Node:
    added, left, right = (argument.name for argument in function_schema(call.func).arguments[:3])
    whole = (Product if call.rank(right) > 1 else ColumnProduct)(call[left], call[right])
    scaled = scale(call, whole, call["alpha"])
    return scaled if call["beta"] == 0 else plus(scaled, scale(call, call[added], call["beta"]))


@register_lowering("_grouped_mm")
def grouped_mm(call: BoundCall) -> Node | None:
    ranks = call.rank("self"), call.rank("mat2")
    if ranks != (2, 3) or not call.has("offs"):
        return None
    product = GroupedProduct(call["self"], call["mat2"], call["offs"])
    return plus(product, call["bias"]) if call.has("bias") else product


@register_lowering("einsum")
def einsum(call: BoundCall) -> Node | None:
    """Lower an einsum, with the letters i, j, k … in the order of the result's axes, then of the contracted ones."""
    parts, output = parse_einsum(call["equation"], list(map(len, call.numeric("tensors"))))
    letters = list(dict.fromkeys(output + "".join(parts)))
    if len(letters) > len(LETTERS):
        return None
    if len(parts) == 2 and (product := _of_matrices(call, parts[0], parts[1], output)) is not None:
        return product
    new = str.maketrans(dict(zip(letters, LETTERS, strict=False)))
    return Einsum(*call["tensors"], axes=f"{','.join(parts)}->{output}".translate(new))


def _of_matrices(call: BoundCall, left: str, right: str, output: str) -> Node | None:
    """Return an einsum as a product of matrices, transposed where needed; None if it is none.

    A second operand without leading axes is broadcast over them.
    """
    if (
        min(map(len, (left, right, output))) < 2
        or max(Counter(letters).most_common(1)[0][1] for letters in (left, right, output)) > 1
    ):
        return None
    first, second = call["tensors"]
    for left_axes, a in ((first, left), (first.T, left[:-2] + left[:-3:-1])):
        for right_axes, b in ((second, right), (second.T, right[:-2] + right[:-3:-1])):
            alike = a[:-2] == output[:-2] and b[:-2] in ("", output[:-2])
            if alike and (a[-2], b[-1], a[-1]) == (output[-2], output[-1], b[-2]) and a[-1] not in output:
                return product(call, left_axes, right_axes)
    return None


@register_lowering("bilinear")
def bilinear(call: BoundCall) -> Node | None:
    """Lower a bilinear map: a weight for each pair of one element of each input."""
    count = call.rank("input1") - 1
    lead, output, left, right = LETTERS[:count], LETTERS[count], LETTERS[count + 1], LETTERS[count + 2]
    axes = f"{lead}{left},{output}{left}{right},{lead}{right}->{lead}{output}"
    equation = Einsum(call["input1"], call["weight"], call["input2"], axes=axes)
    return plus(equation, call["bias"]) if call.has("bias") else equation


# Lowerings of norms: layer, batch, group, instance and RMS norm.


def _affine(call: BoundCall) -> tuple[list[Node], str | None]:
    names = [name for name in ("weight", "bias") if call.has(name)]
    return [call[name] for name in names], " ".join(names) or None


def _last(call: BoundCall) -> dict:
    """Return the normalised axes; empty for the last one alone."""
    rank, count = call.rank("input"), len(call["normalized_shape"])
    return {} if count == 1 else call.axis_labels("input", range(rank - count, rank))


@register_lowering("layer_norm", "native_layer_norm")
def layer_norm(call: BoundCall) -> Node | None:
    vectors, names = _affine(call)
    if len(call["normalized_shape"]) == 1 and call.has("weight"):
        return LayerNorm(call["eps"], call["input"], *vectors)
    return LayerNormOver(call["input"], *vectors, eps=call["eps"], affine=names, **_last(call))


@register_lowering("deviation_norm")
def deviation_norm(call: BoundCall) -> Node:
    vectors, names = _affine(call)
    axes = {"axes": None, "labels": None} | _last(call)
    count = sympy.prod(call.shape("input")[-len(call["normalized_shape"]) :])
    settings = {name: call[name] for name in ("eps", "centred", "less", "how")}
    return DeviationNorm(call["input"], *vectors, affine=names, count=count, **axes, **settings)


@register_lowering("channel_norm")
def channel_norm(call: BoundCall) -> Node:
    vectors, names = _affine(call)
    axes = call.axis_labels("input", call["dims"])
    return ChannelNorm(call["input"], *vectors, eps=call["eps"], affine=names, **axes)


@register_lowering("rms_norm", "_fused_rms_norm")
def rms_norm(call: BoundCall) -> Node | None:
    eps = call["eps"] if call.has("eps") else torch.finfo(call.dtype("input")).eps
    if len(call["normalized_shape"]) == 1 and call.has("weight"):
        return RMSNorm(eps, call["input"], call["weight"])
    vectors, names = _affine(call)
    return RMSNormOver(call["input"], *vectors, eps=eps, affine=names, **_last(call))


@register_lowering("batch_norm", "native_batch_norm", "_batch_norm_no_update", "instance_norm")
@register_lowering("_native_batch_norm_legit", "_native_batch_norm_legit_no_training")
def batch_norm(call: BoundCall) -> Node | None:
    vectors, names = _affine(call)
    if call.get("use_input_stats", False):
        axes = range(2, call.rank("input"))
    elif call.get("training", False) or not call.has("running_mean"):
        axes = [axis for axis in range(call.rank("input")) if axis != 1]
    else:
        running = call["running_mean"], call["running_var"]
        wide = call.rank("input") > 2
        return BatchNorm(call["input"], *running, *vectors, eps=call["eps"], affine=names, wide=wide)
    return ChannelNorm(call["input"], *vectors, eps=call["eps"], affine=names, **call.axis_labels("input", axes))


@register_lowering("group_norm", "native_group_norm")
def group_norm(call: BoundCall) -> Node | None:
    vectors, names = _affine(call)
    groups = call.get("num_groups", call.get("group"))
    return GroupNorm(call["input"], *vectors, eps=call["eps"], affine=names, groups=groups)


# Lowerings of convolutions, transposed convolutions and image resizing.


def _groups(call: BoundCall, channels: int):
    """Return the number of groups; a size, if each channel of the input is a group."""
    axis = call.rank("input") - call.rank("weight") + 1
    alone = call.number("groups") == channels > 1
    return call.shape("input")[axis] if alone else call["groups"]


def _operands(call: BoundCall) -> list[Node]:
    return [call["input"], call["weight"], *([call["bias"]] if call.has("bias") else [])]


@register_lowering("conv1d", "conv2d", "conv3d")
def convolution(call: BoundCall) -> Node:
    kernel, count = call.numeric("weight")[2:], call.rank("weight") - 2
    dilation = per_axis(call["dilation"], count)
    if call["padding"] == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        before = tuple(n // 2 for n in total)
        after = tuple(n - n // 2 for n in total)
    else:
        before = after = per_axis(0 if call["padding"] == "valid" else call["padding"], count)
    channels = call.numeric("weight")[1] * call.number("groups")
    whole = per_axis(call.number("stride"), count) == tuple(kernel) and not any(before) and set(dilation) <= {1}
    sides = call.numeric("input")[-count:]
    whole = whole and not any(side % k for side, k in zip(sides, kernel, strict=True))  # else the last are left out
    stride = call.shape("weight")[2:] if whole else per_axis(call["stride"], count)
    settings = {"stride": stride, "before": before, "after": after, "dilation": dilation}
    return Convolution(*_operands(call), groups=_groups(call, channels), **settings)


@register_lowering("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(call: BoundCall) -> Node:
    count = call.rank("weight") - 2
    fields = {"stride": "stride", "padding": "padding", "extra": "output_padding", "dilation": "dilation"}
    settings = {field: per_axis(call[name], count) for field, name in fields.items()}
    return TransposedConvolution(*_operands(call), groups=_groups(call, call.numeric("weight")[0]), **settings)


@register_lowering("convolution", "_convolution")
def either(call: BoundCall) -> Node | None:
    return conv_transpose(call) if call["transposed"] else convolution(call)


RESIZES = {
    "nearest": "upsample_nearest1d upsample_nearest2d upsample_nearest3d",
    "exact": "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d",
    "linear": "upsample_linear1d upsample_bilinear2d upsample_trilinear3d",
    "cubic": "upsample_bicubic2d",
}
"""The ops of each interpolation."""


@register_lowering(*" ".join(RESIZES.values()).split())
def resize(call: BoundCall) -> Node:
    how, count = next(how for how, names in RESIZES.items() if call.op.name in names.split()), image_axes(call)
    factors = call.get("scale_factors")
    if factors is None:
        names = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}[count]
        factors = [call.get(name) for name in names]
    sizes = zip(call.numeric(call.first)[-count:], call.result_numeric[-count:], strict=True)
    usual = [n / m for n, m in sizes]
    ratios = [1 / factor if factor else ratio for ratio, factor in zip(usual, factors, strict=True)]
    corners = bool(call.get("align_corners", False))
    unusual = None if corners or ratios == usual else ratios
    return Interpolate(call[call.first], sizes=call.result[-count:], how=how, corners=corners, ratios=unusual)


# Lowerings of losses: a loss for each element, and its mean or sum.

REDUCTIONS = ("none", "mean", "sum")


def _reduce(call: BoundCall, each: Node) -> Node:
    """Return the loss of each element, or the mean or sum of all."""
    reduction = REDUCTIONS[call["reduction"]]
    if reduction == "none":
        return each
    return (Mean if reduction == "mean" else Sum)(each, **_all_axes(call), keep=False)


def _all_axes(call: BoundCall) -> dict:
    """Return the labels of all axes of the prediction."""
    return call.axis_labels("self", call.axes("self", None))


def _alike(call: BoundCall) -> bool:
    """Return whether prediction and target have the same shape, so that none is broadcast."""
    return call.numeric("self") == call.numeric("target")


def _likelihood(call: BoundCall, logs: Node) -> Node | None:
    """Return the negative log-likelihood of integer labels."""
    reduction, ignore = REDUCTIONS[call["reduction"]], call.number("ignore_index")
    if call.dtype("target").is_floating_point:
        return None
    left_out = None if ignore == NO_LABEL else ignore
    if left_out is not None and (reduction == "none" or not call.rank("target")):
        return None
    operands = [logs, call["target"], *([call["weight"]] if call.has("weight") else [])]
    if call.has("weight") and not call.rank("target"):
        return None
    return NegativeLogLikelihood(*operands, reduction=reduction, ignore=left_out, sizes=call.shape("target"))


def _log_softmax(call: BoundCall) -> Node:
    """Return the log-probabilities of logits, with classes along axis 1, or the only axis."""
    last, axis = call.rank("self") - 1, min(1, call.rank("self") - 1)
    return LogSoftmax(call["self"], **(call.axis_labels("self", (axis,)) if axis < last else {}))


@register_lowering("nll_loss_nd", "nll_loss", "nll_loss2d", "nll_loss_forward", "nll_loss2d_forward")
def likelihood(call: BoundCall) -> Node | None:
    return _likelihood(call, call["self"])


@register_lowering("cross_entropy_loss")
def cross_entropy(call: BoundCall) -> Node | None:
    """Lower the cross entropy of labels or of probabilities; smoothed labels are a mixture of both."""
    logs, smooth = _log_softmax(call), call["label_smoothing"]
    if call.dtype("target").is_floating_point:
        return _of_probabilities(call, logs) if not smooth and not call.has("weight") else None
    hard = _likelihood(call, logs)
    if not smooth or hard is None:
        return hard
    if call.has("weight") or hard.get("ignore") is not None or REDUCTIONS[call["reduction"]] == "none":
        return None
    soft = _all_classes(call, logs)
    return Plus(Scaled(Scalar(1 - smooth), hard), Scaled(Scalar(smooth), soft))


@register_lowering("label_entropy")
def label_entropy(call: BoundCall) -> Node:
    """Lower the mean cross-entropy of labels, with classes along the last axis, and the other axes as one."""
    logits, labels, smooth = call["self"], call["target"], call["label_smoothing"]
    sizes, last = call.shape("self"), call.rank("self") - 1
    if last > 1:
        rows = tuple(range(last))
        split = tuple((axis,) for axis in range(last + 1))
        logits = Rearrange(logits, sizes, split, (rows, (last,)), ())
        labels = Rearrange(labels, sizes[:-1], split[:-1], (rows,), ())
    logs, count = LogSoftmax(logits), (sympy.Mul(*sizes[:-1]),) if last else ()
    hard = NegativeLogLikelihood(logs, labels, reduction="mean", ignore=None, sizes=count)
    if not smooth:
        return hard
    axes = tuple(range(min(last, 1) + 1))
    soft = Negative(Mean(logs, axes=axes, labels=(*count, sizes[-1]), keep=False))
    return Plus(Scaled(Scalar(1 - smooth), hard), Scaled(Scalar(smooth), soft))


@register_lowering("vector_cosine")
def vector_cosine(call: BoundCall) -> Node:
    """Lower the cosine of the angle between two vectors along the last axis."""
    x, y = call["x1"], call["x2"]
    along = call.axis_labels("x1", (call.rank("x1") - 1,))
    lengths = (Norm(vector, p=2, keep=False, **along) for vector in (x, y))
    return Div(Sum(Times(x, y), **along, keep=False), Times(*lengths))


def _all_classes(call: BoundCall, logs: Node) -> Node:
    """Return the mean negative log-probability over all classes, with the mean or sum over examples."""
    every = _all_axes(call)
    if REDUCTIONS[call["reduction"]] == "mean":
        return Negative(Mean(logs, **every, keep=False))
    classes = call.shape("self")[min(1, call.rank("self") - 1)]
    return Negative(Over(Sum(logs, **every, keep=False), classes))


def _of_probabilities(call: BoundCall, logs: Node) -> Node:
    """Return minus the sum of log-probabilities, each times its target."""
    product, reduction = Times(call["target"], logs), REDUCTIONS[call["reduction"]]
    axis = min(1, call.rank("self") - 1)
    if reduction == "none":
        return Negative(Sum(product, **call.axis_labels("self", (axis,)), keep=False))
    total = Sum(product, **_all_axes(call), keep=False)
    sizes = [size for i, size in enumerate(call.shape("self")) if i != axis]
    return Negative(Over(total, sympy.Mul(*sizes)) if reduction == "mean" and sizes else total)


@register_lowering("mse_loss", "l1_loss")
def mean_error(call: BoundCall) -> Node | None:
    """Lower the mean of the squared or of the absolute errors."""
    difference = Minus(call["self"], call["target"])
    each = Power(difference, Scalar(2)) if call.op.name == "mse_loss" else Absolute(difference)
    return _reduce(call, each) if _alike(call) else None


@register_lowering("huber_loss", "smooth_l1_loss")
def huber(call: BoundCall) -> Node | None:
    """Lower the Huber loss: half the square of small differences, linear in large ones."""
    edge = call.get("delta", call.get("beta"))
    if not _alike(call) or not edge:
        return None
    size = Absolute(Minus(call["self"], call["target"]))
    square = Scaled(Scalar(sympy.Rational(1, 2)), Power(size, Scalar(2)))
    line = Minus(size, Scalar(edge / 2))
    if "delta" in call.arguments or call.op_name == "aten::huber_loss":
        line = line if edge == 1 else Scaled(node_of(edge), line)
    elif edge != 1:
        square = Over(square, node_of(edge).value)
    return _reduce(call, Where(Compare(size, node_of(edge), sign="<"), square, line))


@register_lowering("binary_cross_entropy")
def binary_cross_entropy(call: BoundCall) -> Node | None:
    """Lower the binary cross entropy; PyTorch bounds its logarithms below by -100."""
    if not _alike(call):
        return None
    p, y, unit, least = call["self"], call["target"], Scalar(1), Scalar(-100)
    yes, no = Maximum(Log(p), least), Maximum(Log(Minus(unit, p)), least)
    return _binary(call, y, yes, no)


@register_lowering("binary_cross_entropy_with_logits")
def binary_cross_entropy_of_logits(call: BoundCall) -> Node | None:
    if not _alike(call):
        return None
    yes, no = LogSigmoid(call["self"]), LogSigmoid(Negative(call["self"]))
    if call.has("pos_weight"):
        yes = Times(call["pos_weight"], yes)
    return _binary(call, call["target"], yes, no)


def _binary(call: BoundCall, y: Node, yes: Node, no: Node) -> Node:
    each = Plus(Times(y, yes), Times(Minus(Scalar(1), y), no))
    weighted = Times(call["weight"], each) if call.has("weight") else each
    return Negative(_reduce(call, weighted))


# Lowerings of recurrent layers: one node for each layer and direction.


def _swap_batch_and_time(x: Node, shape: tuple) -> Node:
    return Rearrange(x, shape, ((0,), (1,), (2,)), ((1,), (0,), (2,)))


def _states(call: BoundCall) -> list[Node]:
    """Return the initial states: two of an LSTM, one of other layers."""
    return call["hx"] if isinstance(call["hx"], list) else [call["hx"]]


def _lower_layers(call: BoundCall, node: Callable[..., Node]) -> Node | None:
    """Lower stacked layers; each reads the concatenated directions of the one before."""
    if "batch_sizes" in call.arguments or (call["train"] and call["dropout"]):
        return None
    hidden = _states(call)
    shape = call.shape("input")
    x = _swap_batch_and_time(call["input"], shape) if call["batch_first"] else call["input"]
    ways, weights = 1 + call["bidirectional"], call["params"]
    count = len(weights) // (call["num_layers"] * ways)
    ends = []
    for layer in range(call["num_layers"]):
        layers = []
        for way in range(ways):
            place = layer * ways + way
            states = [Slice(state, (place, FULL_SLICE, FULL_SLICE)) for state in hidden]
            operands = (x, *states, *weights[place * count : (place + 1) * count])
            layers.append(node(*operands, back=bool(way)))
            if call.position:
                ends.append(node(*operands, back=bool(way), last=call.position - 1))
        x = layers[0] if ways == 1 else Concat(*layers, axis=2, rank=3)
    if call.position:
        return Stack(*ends, axis=0)
    states = call.shape("hx")
    width = ways * (states[0] if isinstance(states, list) else states)[-1]
    return _swap_batch_and_time(x, (shape[1], shape[0], width)) if call["batch_first"] else x


def _lower_cell(call: BoundCall, node: Callable[..., Node]) -> Node | None:
    """Lower one step as a sequence of length 1."""
    if call.rank("input") != 2:
        return None
    batch, width = call.shape("input")
    x = Rearrange(call["input"], (batch, width), ((0,), (1,)), ((), (0,), (1,)))
    biases = [call[name] for name in ("b_ih", "b_hh") if call.has(name)]
    return node(x, *_states(call), call["w_ih"], call["w_hh"], *biases, last=call.position)


RECURRENT: dict[str, Callable[..., Node]] = {
    "lstm": LSTM,
    "gru": GRU,
    "rnn_tanh": RNN,
    "rnn_relu": partial(RNN, relu=True),
}

for _name, _node in RECURRENT.items():
    register_lowering(_name, every_output=True)(partial(_lower_layers, node=_node))
    register_lowering(f"{_name}_cell", every_output=True)(partial(_lower_cell, node=_node))


# Lowering of rotary position embeddings.


@register_lowering("rope")
def rope(call: BoundCall) -> Node:
    """Lower `x ⊙ cos + rotate_half(x) ⊙ sin`; tables with one number for each pair are expanded to both."""
    x, halves = call["x"], call["pairs"] == HALVES
    name = next(name for name in ("cosine", "table", "angles") if name in call.arguments)
    if name == "cosine":
        tables = call["cosine"], call["sine"]
    else:
        tables = _parts(call[name]) if name == "table" else (Cosine(call[name]), Sine(call[name]))
    shapes = [*map(infer, tables)]
    if call.numeric(name)[-1] != call.numeric("x")[-1]:
        tables = [_expand_pairs(operand, shape, halves) for operand, shape in zip(tables, shapes, strict=True)]
    elif (
        halves
        and all(isinstance(operand, Tensor) for operand in (x, *tables))
        and [*map(len, (x.shape, *shapes))] == [4, 3, 3]
    ):
        return ApplyRotary(x, *tables)
    return Plus(Times(x, tables[0]), Times((RotateHalf if halves else RotateEveryTwo)(x), tables[1]))


def _parts(table: Node) -> tuple[Node, Node]:
    """Return the real and the imaginary part: cosine and sine of a table of angles."""
    if isinstance(table, Polar) and isinstance(table.args[0], Full) and table.args[0].args[0] == Scalar(1):
        return Cosine(table.args[1]), Sine(table.args[1])
    return Real(table), Imaginary(table)


def _expand_pairs(table: Node, shape: tuple, halves: bool) -> Node:
    """Return a table with one number for each pair, expanded to both elements."""
    axes, last = [(axis,) for axis in range(len(shape))], len(shape) - 1
    if halves:
        return Concat(table, table, axis=last, rank=last + 1)
    return Rearrange(table, (*shape, 2), axes, [*axes[:-1], (last, last + 1)], (last + 1,))


# Lowering of a mixture of experts; the expert is lowered from a token and its weights.


@register_lowering("experts")
def mixture(call: BoundCall) -> Node:
    weights = [
        Tensor(tensor.name, (*tensor.shape[:-2], *tensor.shape[:-3:-1]), tensor.key, transposed=True)
        if transposed
        else tensor
        for tensor, transposed in zip(call["weights"], call["transposed"], strict=True)
    ]
    x = call["x"]
    token = Tensor(x.name if isinstance(x, Tensor) else rf"{{{latex(x)}}}", call.shape("x"), TOKEN)
    body = _Body(call, token, [part(weight, number) for number, weight in enumerate(weights)])
    expert, gates, chosen = body.of(call["body"]), call["gates"], call["chosen"]
    if chosen is None:
        return AllExperts(expert, call.shape("gates")[-1], x, gates, *weights)
    return Experts(expert, x, gates, chosen, *weights)


class _Body:
    """Lowering of the expression tree of one expert."""

    def __init__(self, call: BoundCall, token: Tensor, parts: list[Tensor]):
        self.call, self.token, self.parts = call, token, parts

    def of(self, tree: mixtures.ExpertTree) -> Node:
        """Return the node of a tree of an expert."""
        match tree:
            case mixtures.ExpertInput():
                return self.token
            case mixtures.ExpertWeight(number):
                return self.parts[number]
            case mixtures.MatMul(left, weight, bias):
                product = Product(self.of(left), self.of(weight))
                return Plus(product, self.of(bias)) if bias is not None else product
            case mixtures.ColumnSlice(inner, start, stop, step):
                return self._lower_columns(self.of(inner), start, stop, step)
            case mixtures.Pointwise(_, arguments, call):
                return self._lower_pointwise(call, arguments)
        raise TypeError(tree)

    def _lower_columns(self, inner: Node, start: int, stop: int, step: int) -> Node:
        size = infer(inner)[-1]
        whole = self.call.size_value(size) or stop
        first, last = (size * n / whole if (size * n / whole).is_polynomial() else n for n in (start, stop))
        if step == 1:
            return Some(inner, first, last)
        rest = [(None, None, None)] * (len(infer(inner)) - 1)
        return Slice(inner, (*rest, (start or None, None, step)))

    def _numeric_shape(self, shape: tuple, ran: tuple[int, ...]) -> tuple[int, ...]:
        """Return a shape of all tokens in numbers; the last axis as in the run, on the tokens of one expert."""
        return (*(self.call.size_value(size) or 1 for size in shape[:-1]), *ran[-1:])

    def _lower_pointwise(self, call, arguments) -> Node:
        nodes: dict[str, Any] = {}
        shapes, numerics, dtypes = {}, {}, {}
        for name, value in arguments.items():
            if isinstance(value, mixtures.ExpertTree):
                nodes[name] = self.of(value)
                shapes[name], dtypes[name] = infer(nodes[name]), call.arguments[name].dtype
                numerics[name] = self._numeric_shape(shapes[name], call.arguments[name].shape)
            else:
                nodes[name] = list(value) if isinstance(value, tuple) else value
        shape = next(iter(shapes.values()))
        output_shape = self._numeric_shape(shape, call.outputs[0].shape)
        return node(BoundCall(call.func, nodes, shapes, numerics, dtypes, 0, shape, output_shape))
