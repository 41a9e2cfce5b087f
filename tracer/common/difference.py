"""How far two tensors are apart: as a share of the largest value, and cell by cell as a share of what is allowed.

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


def margins(computed: torch.Tensor, reference: torch.Tensor, allowed: torch.Tensor | None) -> torch.Tensor:
    """|computed - reference| of each cell as a share of what is allowed there, infinite where nothing is.

    Equal numbers count 0, infinities too, and so do cells that are NaN in both. What is no number in one of them, or
    infinite in one of them, is infinitely far off. All have one shape.
    """
    reference = reference.to(computed.dtype)
    difference = (computed - reference).abs()
    if allowed is None:
        allowed = torch.zeros((), dtype=difference.dtype)
    shares = difference / allowed
    if shares.numel() and not shares.amax() < inf:  # an infinity less itself, 0 over 0, or beyond
        shares = shares.masked_fill(difference.isinf() | shares.isnan(), inf)
        shares = shares.masked_fill((computed == reference) | (computed.isnan() & reference.isnan()), 0)
    return shares


def first_beyond(shares: torch.Tensor) -> tuple[int, ...] | None:
    """The index of the first cell, row by row, whose difference is more than is allowed."""
    found = (shares > 1).nonzero()
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
