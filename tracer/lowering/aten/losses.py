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
from tracer.lowering.aten import of
from tracer.lowering.call_arguments import Given
from tracer.lowering.scalar_operands import node_of
from tracer.ops import NO_LABEL

REDUCTIONS = ("none", "mean", "sum")


def _reduced(given: Given, each: Node, name: str = "self") -> Node:
    """Return the loss of each element, or the mean or sum of all."""
    reduction = REDUCTIONS[given["reduction"]]
    if reduction == "none":
        return each
    return (Mean if reduction == "mean" else Sum)(each, **given.named(name, given.axes(name, None)), keep=False)


def _alike(given: Given, *names: str) -> bool:
    """Return whether tensors have the same shape, so that none is broadcast."""
    return len({given.numeric(name) for name in names}) == 1


def _likelihood(given: Given, logs: Node) -> Node | None:
    """Return the negative log-likelihood of integer labels."""
    reduction, ignore = REDUCTIONS[given["reduction"]], given.number("ignore_index")
    if given.dtype("target").is_floating_point:
        return None
    left_out = None if ignore == NO_LABEL else ignore
    if left_out is not None and (reduction == "none" or not given.rank("target")):
        return None
    operands = [logs, given["target"], *([given["weight"]] if given.has("weight") else [])]
    if given.has("weight") and not given.rank("target"):
        return None
    return NegativeLogLikelihood(*operands, reduction=reduction, ignore=left_out, sizes=given.shape("target"))


def _log_softmax(given: Given) -> Node:
    """Return the log-probabilities of logits, with classes along axis 1, or the only axis."""
    last, axis = given.rank("self") - 1, min(1, given.rank("self") - 1)
    return LogSoftmax(given["self"], **(given.named("self", (axis,)) if axis < last else {}))


@of("nll_loss_nd", "nll_loss", "nll_loss2d", "nll_loss_forward", "nll_loss2d_forward")
def likelihood(given: Given) -> Node | None:
    return None if given.position else _likelihood(given, given["self"])


@of("cross_entropy_loss")
def cross_entropy(given: Given) -> Node | None:
    """Lower the cross entropy of labels or of probabilities; smoothed labels are a mixture of both."""
    logs, smooth = _log_softmax(given), given["label_smoothing"]
    if given.dtype("target").is_floating_point:
        return _of_probabilities(given, logs) if not smooth and not given.has("weight") else None
    hard = _likelihood(given, logs)
    if not smooth or hard is None:
        return hard
    if given.has("weight") or hard.get("ignore") is not None or REDUCTIONS[given["reduction"]] == "none":
        return None
    soft = _all_classes(given, logs)
    return Plus(Scaled(Scalar(1 - smooth), hard), Scaled(Scalar(smooth), soft))


def _all_classes(given: Given, logs: Node) -> Node:
    """Return the mean negative log-probability over all classes, with the mean or sum over examples."""
    every = given.named("self", given.axes("self", None))
    if REDUCTIONS[given["reduction"]] == "mean":
        return Negative(Mean(logs, **every, keep=False))
    classes = given.shape("self")[min(1, given.rank("self") - 1)]
    return Negative(Over(Sum(logs, **every, keep=False), classes))


def _of_probabilities(given: Given, logs: Node) -> Node:
    """Return minus the sum of log-probabilities, each times its target."""
    product, reduction = Times(given["target"], logs), REDUCTIONS[given["reduction"]]
    axis = min(1, given.rank("self") - 1)
    if reduction == "none":
        return Negative(Sum(product, **given.named("self", (axis,)), keep=False))
    total = Sum(product, **given.named("self", given.axes("self", None)), keep=False)
    sizes = [size for i, size in enumerate(given.shape("self")) if i != axis]
    return Negative(Over(total, sympy.Mul(*sizes)) if reduction == "mean" and sizes else total)


@of("mse_loss")
def mean_squared_error(given: Given) -> Node | None:
    difference = Minus(given["self"], given["target"])
    return _reduced(given, Power(difference, Scalar(2))) if _alike(given, "self", "target") else None


@of("l1_loss")
def mean_absolute_error(given: Given) -> Node | None:
    difference = Minus(given["self"], given["target"])
    return _reduced(given, Absolute(difference)) if _alike(given, "self", "target") else None


@of("huber_loss", "smooth_l1_loss")
def huber(given: Given) -> Node | None:
    """Lower the Huber loss: half the square of small differences, linear in large ones."""
    edge = given.get("delta", given.get("beta"))
    if not _alike(given, "self", "target") or not edge:
        return None
    size = Absolute(Minus(given["self"], given["target"]))
    square = Scaled(Scalar(sympy.Rational(1, 2)), Power(size, Scalar(2)))
    line = Minus(size, Scalar(edge / 2))
    if "delta" in given.arguments or given.func._schema.name == "aten::huber_loss":
        line = line if edge == 1 else Scaled(node_of(edge), line)
    elif edge != 1:
        square = Over(square, node_of(edge).value)
    return _reduced(given, Where(Compare(size, node_of(edge), sign="<"), square, line))


@of("binary_cross_entropy")
def binary_cross_entropy(given: Given) -> Node | None:
    """Lower the binary cross entropy; PyTorch bounds its logarithms below by -100."""
    if not _alike(given, "self", "target"):
        return None
    p, y, one, least = given["self"], given["target"], Scalar(1), Scalar(-100)
    yes, no = Maximum(Log(p), least), Maximum(Log(Minus(one, p)), least)
    return _binary(given, y, yes, no)


@of("binary_cross_entropy_with_logits")
def binary_cross_entropy_of_logits(given: Given) -> Node | None:
    if not _alike(given, "self", "target"):
        return None
    yes, no = LogSigmoid(given["self"]), LogSigmoid(Negative(given["self"]))
    if given.has("pos_weight"):
        yes = Times(given["pos_weight"], yes)
    return _binary(given, given["target"], yes, no)


def _binary(given: Given, y: Node, yes: Node, no: Node) -> Node:
    each = Plus(Times(y, yes), Times(Minus(Scalar(1), y), no))
    weighted = Times(given["weight"], each) if given.has("weight") else each
    if REDUCTIONS[given["reduction"]] == "none":
        return Negative(weighted)
    return Negative(_reduced(given, weighted))
