"""Lowerings of norms: layer, batch, group, instance and RMS norm."""

from __future__ import annotations

import sympy
import torch

from tracer.expr import (
    BatchNorm,
    ChannelNorm,
    DeviationNorm,
    GroupNorm,
    LayerNorm,
    LayerNormOver,
    Node,
    RMSNorm,
    RMSNormOver,
    UnitLength,
)
from tracer.lowering.aten import register_lowering
from tracer.lowering.call_arguments import BoundCall


def _affine(call: BoundCall) -> tuple[list[Node], str | None]:
    names = [name for name in ("weight", "bias") if call.has(name)]
    return [call[name] for name in names], " ".join(names) or None


def _last(call: BoundCall) -> dict:
    """Return the normalised axes; empty for the last one alone."""
    rank, count = call.rank("input"), len(call["normalized_shape"])
    return {} if count == 1 else call.axis_labels("input", range(rank - count, rank))


@register_lowering("layer_norm", "native_layer_norm")
def layer_norm(call: BoundCall) -> Node | None:
    if call.position:
        return None
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


@register_lowering("unit_length")
def unit_length(call: BoundCall) -> Node:
    return UnitLength(call["input"])


@register_lowering("channel_norm")
def channel_norm(call: BoundCall) -> Node:
    vectors, names = _affine(call)
    axes = call.axis_labels("input", call["dims"])
    return ChannelNorm(call["input"], *vectors, eps=call["eps"], affine=names, **axes)


@register_lowering("rms_norm", "_fused_rms_norm")
def rms_norm(call: BoundCall) -> Node | None:
    if call.position:
        return None
    eps = call["eps"] if call.has("eps") else torch.finfo(call.dtype("input")).eps
    if len(call["normalized_shape"]) == 1 and call.has("weight"):
        return RMSNorm(eps, call["input"], call["weight"])
    vectors, names = _affine(call)
    return RMSNormOver(call["input"], *vectors, eps=eps, affine=names, **_last(call))


@register_lowering(
    "batch_norm",
    "native_batch_norm",
    "_native_batch_norm_legit_no_training",
    "_native_batch_norm_legit",
    "_batch_norm_no_update",
    "instance_norm",
)
def batch_norm(call: BoundCall) -> Node | None:
    if call.position:
        return None
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
    if call.position:
        return None
    vectors, names = _affine(call)
    groups = call.get("num_groups", call.get("group"))
    return GroupNorm(call["input"], *vectors, eps=call["eps"], affine=names, groups=groups)
