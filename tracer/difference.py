"""How far two tensors are apart, as a share of the largest value."""

from __future__ import annotations

import torch


def relative_difference(computed: torch.Tensor, reference: torch.Tensor) -> float:
    """max|computed - reference| / max|reference| over finite values; equal infinities count 0, 0 against 0 is 0.

    Both have one shape. Element by element such a ratio would say nothing near zeros.
    """
    reference = reference.to(computed.dtype)
    difference = torch.where(computed == reference, torch.zeros_like(computed), (computed - reference).abs())
    if not difference.numel():
        return 0.0
    largest = difference.max()
    if largest == 0:
        return 0.0
    finite = reference[reference.isfinite()].abs()
    scale = finite.max() if finite.numel() else torch.ones((), dtype=computed.dtype)
    return float(largest / scale)
