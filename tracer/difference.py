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
    return float(largest / _scale(reference))


def first_beyond(computed: torch.Tensor, reference: torch.Tensor, tolerance: float) -> tuple[int, ...] | None:
    """The index of the first cell, row by row, whose difference is no share of the largest value within `tolerance`."""
    reference = reference.to(computed.dtype)
    off = (computed != reference) & ~((computed - reference).abs() <= tolerance * _scale(reference))
    found = off.nonzero()
    return tuple(found[0].tolist()) if len(found) else None


def _scale(reference: torch.Tensor) -> torch.Tensor:
    """The largest finite value, 1 where there is none."""
    finite = reference[reference.isfinite()].abs()
    return finite.max() if finite.numel() else torch.ones((), dtype=reference.dtype)
