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
from tracer.lowering.aten import of
from tracer.lowering.call_arguments import Given


def _affine(given: Given) -> tuple[list[Node], str | None]:
    names = [name for name in ("weight", "bias") if given.has(name)]
    return [given[name] for name in names], " ".join(names) or None


def _last(given: Given) -> dict:
    """Return the normalised axes; empty for the last one alone."""
    rank, count = given.rank("input"), len(given["normalized_shape"])
    return {} if count == 1 else given.named("input", range(rank - count, rank))


@of("layer_norm", "native_layer_norm")
def layer_norm(given: Given) -> Node | None:
    if given.position:
        return None
    vectors, said = _affine(given)
    if len(given["normalized_shape"]) == 1 and given.has("weight"):
        return LayerNorm(given["eps"], given["input"], *vectors)
    return LayerNormOver(given["input"], *vectors, eps=given["eps"], given=said, **_last(given))


@of("deviation_norm")
def deviation_norm(given: Given) -> Node:
    vectors, said = _affine(given)
    axes = {"axes": None, "labels": None} | _last(given)
    count = sympy.prod(given.shape("input")[-len(given["normalized_shape"]) :])
    settings = {name: given[name] for name in ("eps", "centred", "less", "how")}
    return DeviationNorm(given["input"], *vectors, given=said, count=count, **axes, **settings)


@of("unit_length")
def unit_length(given: Given) -> Node:
    return UnitLength(given["input"])


@of("channel_norm")
def channel_norm(given: Given) -> Node:
    vectors, said = _affine(given)
    axes = given.named("input", given["dims"])
    return ChannelNorm(given["input"], *vectors, eps=given["eps"], given=said, **axes)


@of("rms_norm", "_fused_rms_norm")
def rms_norm(given: Given) -> Node | None:
    if given.position:
        return None
    eps = given["eps"] if given.has("eps") else torch.finfo(given.dtype("input")).eps
    if len(given["normalized_shape"]) == 1 and given.has("weight"):
        return RMSNorm(eps, given["input"], given["weight"])
    vectors, said = _affine(given)
    return RMSNormOver(given["input"], *vectors, eps=eps, given=said, **_last(given))


@of(
    "batch_norm",
    "native_batch_norm",
    "_native_batch_norm_legit_no_training",
    "_native_batch_norm_legit",
    "_batch_norm_no_update",
    "instance_norm",
)
def batch_norm(given: Given) -> Node | None:
    if given.position:
        return None
    vectors, said = _affine(given)
    if given.get("use_input_stats", False):
        axes = range(2, given.rank("input"))
    elif given.get("training", False) or not given.has("running_mean"):
        axes = [axis for axis in range(given.rank("input")) if axis != 1]
    else:
        running = given["running_mean"], given["running_var"]
        wide = given.rank("input") > 2
        return BatchNorm(given["input"], *running, *vectors, eps=given["eps"], given=said, wide=wide)
    return ChannelNorm(given["input"], *vectors, eps=given["eps"], given=said, **given.named("input", axes))


@of("group_norm", "native_group_norm")
def group_norm(given: Given) -> Node | None:
    if given.position:
        return None
    vectors, said = _affine(given)
    groups = given.get("num_groups", given.get("group"))
    return GroupNorm(given["input"], *vectors, eps=given["eps"], given=said, groups=groups)
