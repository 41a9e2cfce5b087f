"""Where places may come into a block, and no positions at all: what each kind of positions changes."""

from __future__ import annotations

from math import sqrt
from typing import Any, NamedTuple

import torch
from torch import nn

from tracer.derive.hints import Hint


class Table(NamedTuple):
    """The numbers that stand for places `[rows, columns]`: the letter, what rows and columns are, and the number that
    the rows count from."""

    letter: str
    cells: Any
    row: str
    column: str
    first: int = 0


class Places(nn.Module):
    """No positions: tokens, scores and context stay as attention makes them.

    Kinds of positions are made with the same sizes, and add what is theirs in one of three places.
    """

    HINTS: tuple[Hint, ...] = ()

    def __init__(self, *, T_max: int, D: int, h: int, R: int):
        super().__init__()

    def added(self, x: torch.Tensor) -> torch.Tensor:
        """The tokens `[B, T, D]` that the block reads."""
        return x

    def between(self, T: int) -> tuple[torch.Tensor, ...]:
        """What attention is given of T places, made once."""
        return ()

    def scores(self, q: torch.Tensor, k: torch.Tensor, *between: torch.Tensor) -> torch.Tensor:
        """Scores `[B, h, T, T]` of queries and keys `[B, h, T, d_k]`, before any mask."""
        return q @ k.transpose(-2, -1) / sqrt(q.shape[-1])  # [B, h, T, T]

    def context(self, weights: torch.Tensor, v: torch.Tensor, *between: torch.Tensor) -> torch.Tensor:
        """What weights `[B, h, T, T]` take of values `[B, h, T, d_k]`."""
        return weights @ v  # [B, h, T, d_k]

    def table(self, T: int) -> Table | None:
        """The vectors that stand for places or distances; None where there are none."""
        return None

    def terms(self, q: torch.Tensor, k: torch.Tensor, *between: torch.Tensor) -> dict[str, torch.Tensor]:
        """What adds up to the scores, where places come into them, by name: `[B, h, T, T]` each. Empty for kinds that
        are added to tokens: their four terms are those of `tracer.attention.terms`."""
        return {}
