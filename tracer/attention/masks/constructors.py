"""Masks that models add to their scores: 0 where a query may look, -∞ where it may not."""

from __future__ import annotations

import torch


def causal(length: int, past: int = 0, device=None) -> torch.Tensor:
    """Return `[S, S]`: 0 for j ≤ i, -∞ for j > i: no token sees a later one. Vaswani et al. 2017, section 3.2.3.

    With `past` earlier tokens, which are keys alone, it has the rows of the others: `[S, past + S]`.
    """
    return torch.full((length, past + length), float("-inf"), device=device).triu(past + 1)


def prefix(length: int, visible: int, device=None) -> torch.Tensor:
    """Return `[S, S]`: causal, but the first `visible` tokens see each other fully. Raffel et al. 2020, section
    3.2.1."""
    later = torch.arange(length, device=device) > torch.arange(length, device=device)[:, None]
    hidden = later & (torch.arange(length, device=device) >= visible)
    return torch.zeros(length, length, device=device).masked_fill(hidden, float("-inf"))


def padding(lengths: torch.Tensor, length: int) -> torch.Tensor:
    """Return `[B, 1, 1, S]`: 0 for the first `lengths[b]` keys, -∞ for the padding after them."""
    hidden = torch.arange(length, device=lengths.device) >= lengths[:, None, None, None]
    return torch.zeros(hidden.shape, device=lengths.device).masked_fill(hidden, float("-inf"))
