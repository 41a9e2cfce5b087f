"""Interface of positions in a block, and no positions at all."""

from __future__ import annotations

from math import sqrt
from typing import Any, NamedTuple

import torch
from torch import nn

from tracer.textbook.names import Hint


class PositionTable(NamedTuple):
    """Vectors of positions `[rows, columns]`: the letter, the names of the axes, and the first row's number."""

    letter: str
    cells: Any
    row: str
    column: str
    first: int = 1


class PositionEncoding(nn.Module):
    """No positions: tokens, scores and context stay as attention computes them.

    Kinds of positions are built with the same sizes, and override one of the three.
    """

    HINTS: tuple[Hint, ...] = ()

    def __init__(self, *, T_max: int, D: int, h: int, R: int):
        super().__init__()

    def add_to(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tokens `[B, T, D]` that the block reads."""
        return x

    def between(self, T: int) -> tuple[torch.Tensor, ...]:
        """Return the arguments of attention for T positions, computed once."""
        return ()

    def scores(self, q: torch.Tensor, k: torch.Tensor, *between: torch.Tensor) -> torch.Tensor:
        """Return scores `[B, h, T, T]` of queries and keys `[B, h, T, d_k]`, before any mask."""
        return q @ k.transpose(-2, -1) / sqrt(q.shape[-1])  # [B, h, T, T]

    def context(self, weights: torch.Tensor, v: torch.Tensor, *between: torch.Tensor) -> torch.Tensor:
        """Return the mixture of values `[B, h, T, d_k]` by weights `[B, h, T, T]`."""
        return weights @ v  # [B, h, T, d_k]

    def table(self, T: int) -> PositionTable | None:
        """Return the vectors of positions or distances, or None if there are none."""
        return None

    def terms(self, q: torch.Tensor, k: torch.Tensor, *between: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the terms of scores with positions in them, by name: `[B, h, T, T]` each.

        Empty for kinds that are added to tokens: their four terms are those of `tracer.attention.textbook_claims`.
        """
        return {}
