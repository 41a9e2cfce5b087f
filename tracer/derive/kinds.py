"""What calls do, by the names of their ops: the one table that all of deriving looks names up in."""

from __future__ import annotations

from functools import cache

import torch


@cache
def base(name: str) -> str:
    """The name of what an op computes, in place or not: `"aten::add_.Tensor"`, `"add_"` and `"add"` are `"add"`."""
    name = name.split("::")[-1].removeprefix("aten.").split(".")[0]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def _set(names: str) -> frozenset[str]:
    return frozenset(names.split())


RESHAPES = _set("view reshape view_as reshape_as flatten unflatten ravel _unsafe_view _reshape_alias view_copy")
"""Layouts that leave numbers in their order and take their axes together, or apart."""
ONES = _set("squeeze unsqueeze unsqueeze_copy")
"""Layouts that put in axes of size 1 or leave them out."""
TURNS = _set("transpose permute t numpy_T mT matrix_H adjoint swapaxes swapdims movedim moveaxis permute_copy")
"""Layouts that exchange axes."""
LAYOUT = (
    RESHAPES
    | ONES
    | TURNS
    | _set(
        """expand expand_as slice select unbind chunk split split_with_sizes repeat repeat_interleave narrow diagonal
        tensor_split broadcast_to pixel_shuffle pixel_unshuffle channel_shuffle tile hsplit vsplit dsplit unsafe_split
        unsafe_chunk unsafe_split_with_sizes select_copy slice_copy expand_copy"""
    )
)
"""Calls that only move numbers, as one pattern of axes."""
STILL = RESHAPES | _set("slice narrow expand expand_as")
"""Layouts that change nothing where they give the shape that they are given."""
SAME = _set(
    """contiguous clone alias detach lift_fresh lift lift_fresh_copy to _to_copy type_as requires_grad positive
    resolve_conj resolve_neg dropout feature_dropout alpha_dropout native_dropout copy"""
)
"""Calls that give the numbers they are given, perhaps in another dtype."""
PADS = _set("pad constant_pad_nd")
JOINS = _set("cat concat")
PICKS = _set("gather")
"""Calls that take some of what they are given."""
FINDS = _set("argmax argmin")
"""Calls that say where something stands."""
TOTALS = _set("scatter_add scatter_reduce index_add")
"""Calls that add up what has one place."""

EMPTY = _set("empty empty_like new_empty empty_strided new_empty_strided")
"""Calls that take memory, whatever it holds: it is written into before anything is made of it."""


MADE = EMPTY | _set("zeros ones full")
"""Calls that make numbers of nothing."""


def loses(before: torch.dtype, after: torch.dtype) -> bool:
    """Whether a cast to 16 bits rounds some numbers, or has no room for them. One from float64 to float32 does no more
    than the operations around it."""
    if not before.is_floating_point or after not in (torch.float16, torch.bfloat16):
        return False
    held, room = torch.finfo(before), torch.finfo(after)
    return room.eps > held.eps or room.max < held.max


def takes_shape(name: str) -> bool:
    """Whether a call takes of a tensor its shape alone, as `zeros_like` does."""
    return "_like" in name or "new_" in name


ATTENTION = "scaled_dot_product_attention"
PRODUCTS = _set("matmul bmm einsum baddbmm mm")
MAPS = _set("linear addmm einsum mm")
"""Linear maps of a token alone."""
CONVOLVED = _set("conv1d conv2d conv3d conv_transpose1d conv_transpose2d convolution")
PROJECTIONS = MAPS | _set("conv1d conv2d")
SOFTMAXES = _set("softmax _softmax _safe_softmax")
NORMS = _set("layer_norm batch_norm group_norm rms_norm native_layer_norm instance_norm native_group_norm")
ARITHMETIC = _set("mul div add sub rsub masked_fill where true_divide")
ACTIVATIONS = _set("gelu silu relu tanh sigmoid hardswish relu6 elu mish softplus leaky_relu glu")
BENDS = (
    ARITHMETIC
    | (ACTIVATIONS - {"glu"})
    | _set("pow erf exp clamp clamp_min clamp_max hardtanh maximum minimum square neg log1p")
)
"""What an activation is made of, cell by cell, where a model writes it out."""
HIDING = _set("where masked_fill mul triu")
"""Calls that masks are made by."""
