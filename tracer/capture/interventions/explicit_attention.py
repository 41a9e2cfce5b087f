"""Attention as its formula, in place of a fused kernel (Vaswani et al. 2017, equation 1)."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor


def explicit_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return `softmax(QKᵀ/√d_k + M) V` of queries `[…, S_q, d_k]`, keys `[…, S_k, d_k]` and values `[…, S_k, d_v]`.

    The arguments are those of `torch.nn.functional.scaled_dot_product_attention`. A query without an open key attends
    to nothing: its weights are 0, as in PyTorch's kernels.
    """
    if enable_gqa and key.size(-3) != query.size(-3):
        repeats = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    scores = query @ key.transpose(-2, -1)
    scores = scores / sqrt(query.size(-1)) if scale is None else scores * scale
    if is_causal:
        closed = torch.full((query.size(-2), key.size(-2)), -torch.inf, dtype=query.dtype, device=query.device)
        scores = scores + closed.triu(1)
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = torch.where(attn_mask, scores, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = torch.softmax(scores, -1)
    if dropout_p:
        weights = torch.dropout(weights, dropout_p, True)
    return weights @ value
