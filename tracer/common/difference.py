"""How far two tensors are apart, as a share of the largest value.

Some masks have the lowest number of float32 where others have -∞. Beside it every other number would be nothing, so
a number that far out is compared with itself, and counts for no other.
"""

from __future__ import annotations

from math import inf

import torch

FAR = 1e30
"""Numbers beyond it are far out: they stand for infinities."""


def relative_difference(computed: torch.Tensor, reference: torch.Tensor) -> float:
    """max|computed - reference| / max|reference| over finite values; equal infinities count 0, 0 against 0 is 0.

    Both have one shape. Element by element such a ratio would say nothing near zeros.
    """
    reference = reference.to(computed.dtype)
    if computed.dtype == torch.float64 and computed.numel():  # as proofs have it: the same with fewer passes
        difference, scale = _largest(computed - reference), _largest(reference)
        if difference == 0:
            return 0.0
        if scale <= FAR and difference < inf:
            return difference / scale if scale else inf
    difference = (computed - reference).abs()
    if not difference.numel():
        return 0.0
    largest = difference.max()
    if largest.isnan():  # an infinity less itself is undefined too, and no difference
        difference = difference.masked_fill(computed == reference, 0)
        largest = difference.amax()
    if largest == 0:
        return 0.0
    scale = _scale(reference)
    return float((difference / scale).masked_fill(difference == 0, 0).max() if scale.dim() else largest / scale)


def first_beyond(computed: torch.Tensor, reference: torch.Tensor, tolerance: float) -> tuple[int, ...] | None:
    """The index of the first cell, row by row, whose difference is no share of the largest value within `tolerance`."""
    reference = reference.to(computed.dtype)
    off = (computed != reference) & ~((computed - reference).abs() <= tolerance * _scale(reference))
    found = off.nonzero()
    return tuple(found[0].tolist()) if len(found) else None


def _largest(tensor: torch.Tensor) -> float:
    """The largest absolute value, NaN where there is one."""
    least, most = tensor.aminmax()
    return max(-least.item(), most.item())


def _scale(reference: torch.Tensor) -> torch.Tensor:
    """The largest value that is not far out, 1 where there is none; of a number that is, the number itself."""
    sizes = reference.abs()
    if sizes.numel() and (largest := sizes.max()) <= FAR:
        return largest
    far = (sizes > FAR) & sizes.isfinite()
    near = sizes[sizes <= FAR]
    largest = near.max() if near.numel() else torch.ones((), dtype=reference.dtype)
    return torch.where(far, sizes, largest) if far.any() else largest
