"""Lowerings of losses: a loss for each element, and its mean or sum."""

from __future__ import annotations

import sympy

from tracer.expr import (
    Absolute,
    Compare,
    Log,
    LogSigmoid,
    LogSoftmax,
    Maximum,
    Mean,
    Minus,
    Negative,
    NegativeLogLikelihood,
    Node,
    Over,
    Plus,
    Power,
    Scalar,
    Scaled,
    Sum,
    Times,
    Where,
)
from tracer.lowering.aten import register_lowering
from tracer.lowering.call_arguments import BoundCall
from tracer.lowering.scalar_operands import node_of
from tracer.ops import NO_LABEL

REDUCTIONS = ("none", "mean", "sum")


def _reduce(call: BoundCall, each: Node, name: str = "self") -> Node:
    """Return the loss of each element, or the mean or sum of all."""
    reduction = REDUCTIONS[call["reduction"]]
    if reduction == "none":
        return each
    return (Mean if reduction == "mean" else Sum)(each, **call.axis_labels(name, call.axes(name, None)), keep=False)


def _alike(call: BoundCall, *names: str) -> bool:
    """Return whether tensors have the same shape, so that none is broadcast."""
    return len({call.numeric(name) for name in names}) == 1


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
    return None if call.position else _likelihood(call, call["self"])


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


def _all_classes(call: BoundCall, logs: Node) -> Node:
    """Return the mean negative log-probability over all classes, with the mean or sum over examples."""
    every = call.axis_labels("self", call.axes("self", None))
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
    total = Sum(product, **call.axis_labels("self", call.axes("self", None)), keep=False)
    sizes = [size for i, size in enumerate(call.shape("self")) if i != axis]
    return Negative(Over(total, sympy.Mul(*sizes)) if reduction == "mean" and sizes else total)


@register_lowering("mse_loss")
def mean_squared_error(call: BoundCall) -> Node | None:
    difference = Minus(call["self"], call["target"])
    return _reduce(call, Power(difference, Scalar(2))) if _alike(call, "self", "target") else None


@register_lowering("l1_loss")
def mean_absolute_error(call: BoundCall) -> Node | None:
    difference = Minus(call["self"], call["target"])
    return _reduce(call, Absolute(difference)) if _alike(call, "self", "target") else None


@register_lowering("huber_loss", "smooth_l1_loss")
def huber(call: BoundCall) -> Node | None:
    """Lower the Huber loss: half the square of small differences, linear in large ones."""
    edge = call.get("delta", call.get("beta"))
    if not _alike(call, "self", "target") or not edge:
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
    if not _alike(call, "self", "target"):
        return None
    p, y, unit, least = call["self"], call["target"], Scalar(1), Scalar(-100)
    yes, no = Maximum(Log(p), least), Maximum(Log(Minus(unit, p)), least)
    return _binary(call, y, yes, no)


@register_lowering("binary_cross_entropy_with_logits")
def binary_cross_entropy_of_logits(call: BoundCall) -> Node | None:
    if not _alike(call, "self", "target"):
        return None
    yes, no = LogSigmoid(call["self"]), LogSigmoid(Negative(call["self"]))
    if call.has("pos_weight"):
        yes = Times(call["pos_weight"], yes)
    return _binary(call, call["target"], yes, no)


def _binary(call: BoundCall, y: Node, yes: Node, no: Node) -> Node:
    each = Plus(Times(y, yes), Times(Minus(Scalar(1), y), no))
    weighted = Times(call["weight"], each) if call.has("weight") else each
    if REDUCTIONS[call["reduction"]] == "none":
        return Negative(weighted)
    return Negative(_reduce(call, weighted))
