"""Kinds of positions for one block of attention, each a class that overrides what it changes; and none at all."""

from __future__ import annotations

from math import sqrt
from typing import Any, NamedTuple

import torch
from torch import nn

from tracer.lessons.positions import NO_POSITIONS
from tracer.models.llama import rotate_half
from tracer.models.transformer import DISTANCES, sinusoids
from tracer.textbook.claims import claim
from tracer.textbook.explanations import LONGER_TABLE_CLAIMS
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


class SinusoidalPositions(PositionEncoding):
    """`X + P`, with `P` of alternating sines and cosines (Vaswani et al. 2017, section 3.5)."""

    HINTS = (
        Hint(
            "positions",
            title="Sines and cosines",
            letter=r"\mathbf{P}",
            why=claim(
                "Every position gets its own pattern: waves from fast to slow, like the hands of many clocks.",
                "Sinusoids",
            ),
        ),
        Hint(
            "position",
            why=claim(
                "The dot products of attention compare what tokens contain, not where they are. The waves of each "
                "position are added, so that they compare positions too.",
                "Plus",
            ),
            note="The 2017 paper multiplies embeddings by √D before this sum; note 004 does not, and neither does "
            "this run.",
        ),
    )

    def add_to(self, x) -> torch.Tensor:
        return x + sinusoids(*x.shape[1:]).to(x)  # [B, T, D]

    def table(self, T) -> PositionTable:
        return PositionTable("P", sinusoids(T, self.D), "position", "dimension")

    def __init__(self, *, T_max, D, h, R):
        super().__init__(T_max=T_max, D=D, h=h, R=R)
        self.D = D


class LearnedPositions(PositionEncoding):
    """`X + P`, with `P` the first T rows of a table (Devlin et al. 2019, section 3)."""

    HINTS = (
        Hint(
            "position",
            note=LONGER_TABLE_CLAIMS,
        ),
    )

    def __init__(self, *, T_max, D, h, R):
        super().__init__(T_max=T_max, D=D, h=h, R=R)
        self.rows = nn.Parameter(torch.randn(T_max, D))

    def add_to(self, x) -> torch.Tensor:
        return x + self.rows[: x.shape[1]]  # [B, T, D]

    def table(self, T) -> PositionTable:
        return PositionTable("P", self.rows[:T], "position", "dimension")


class RelativePositions(PositionEncoding):
    """Scores `q·(k + a)/√d_k` and context `Σ A (v + b)`, with learned `a`, `b` for each distance (Shaw et al. 2018)."""

    HINTS = DISTANCES

    def __init__(self, *, T_max, D, h, R):
        super().__init__(T_max=T_max, D=D, h=h, R=R)
        self.R, d_k = R, D // h
        self.key_distances = nn.Parameter(torch.randn(2 * R + 1, d_k) / sqrt(d_k))
        self.value_distances = nn.Parameter(torch.randn(2 * R + 1, d_k) / sqrt(d_k))

    def between(self, T) -> tuple[torch.Tensor]:
        """Return how far each token is after the query, from -R to R, counted from 0: `[T, T]`."""
        place = torch.arange(T, device=self.key_distances.device)  # [T]
        return ((place - place[:, None]).clamp(-self.R, self.R) + self.R,)  # [T, T]

    def scores(self, q, k, distances) -> torch.Tensor:
        return (q @ k.transpose(-2, -1) + self._by_distance(q, distances)) / sqrt(q.shape[-1])  # [B, h, T, T]

    def context(self, weights, v, distances) -> torch.Tensor:
        B, h, T, _ = weights.shape
        pairs = distances.expand(B, h, T, T)  # [B, h, T, T]
        shares = weights.new_zeros(B, h, T, 2 * self.R + 1).scatter_add(-1, pairs, weights)  # [B, h, T, 2·R+1]
        return weights @ v + shares @ self.value_distances  # [B, h, T, d_k]

    def table(self, T) -> PositionTable:
        return PositionTable("A", self.key_distances, "distance j − i", "dimension", -self.R)

    def terms(self, q, k, distances) -> dict[str, torch.Tensor]:
        products = {"content–content": q @ k.transpose(-2, -1), "content–distance": self._by_distance(q, distances)}
        return {name: product / sqrt(q.shape[-1]) for name, product in products.items()}

    def _by_distance(self, q, distances):
        """Return each query times the vector of each pair's distance: `[B, h, T, T]`."""
        B, h, T, _ = q.shape
        by_distance = q @ self.key_distances.T  # [B, h, T, 2·R+1]
        return by_distance.gather(-1, distances.expand(B, h, T, T))  # [B, h, T, T]


class RotaryPositions(PositionEncoding):
    """`R_i q · R_j k / √d_k`, which depends on positions by `j - i` alone (Su et al. 2021, equation 34)."""

    def __init__(self, *, T_max, D, h, R):
        super().__init__(T_max=T_max, D=D, h=h, R=R)
        exponents = torch.arange(0, D // h, 2) / (D // h)
        self.register_buffer("frequencies", 10_000.0**-exponents, persistent=False)

    def between(self, T) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.arange(T, device=self.frequencies.device)  # [T]
        angles = torch.outer(places, self.frequencies)  # [T, d_k/2]
        angles = torch.cat([angles, angles], dim=-1)  # [T, d_k]
        return angles.cos(), angles.sin()  # [T, d_k]

    def scores(self, q, k, cosine, sine) -> torch.Tensor:
        q = q * cosine + rotate_half(q) * sine  # [B, h, T, d_k]
        k = k * cosine + rotate_half(k) * sine  # [B, h, T, d_k]
        return q @ k.transpose(-2, -1) / sqrt(q.shape[-1])  # [B, h, T, T]

    def table(self, T) -> PositionTable:
        angles = torch.outer(torch.arange(T), self.frequencies)  # [T, d_k/2]
        return PositionTable("P", torch.cat([angles.cos(), angles.sin()], dim=-1), "position", "cosines, then sines")

    def terms(self, q, k, *_) -> dict[str, torch.Tensor]:
        between = torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]  # [T, T]
        angles = between[..., None] * self.frequencies  # [T, T, d_k/2]
        cosine, sine = (torch.cat([wave, wave], dim=-1) for wave in (angles.cos(), angles.sin()))  # [T, T, d_k]
        products = {
            "by the cosine of the angle between": torch.einsum("bhid,bhjd,ijd->bhij", q, k, cosine),
            "by the sine of the angle between": torch.einsum("bhid,bhjd,ijd->bhij", q, rotate_half(k), sine),
        }
        return {name: product / sqrt(q.shape[-1]) for name, product in products.items()}


class AlibiPositions(PositionEncoding):
    """`q·k/√d_k - m |i - j|`, with a slope m for each head: `2^(-8/h)`, and its powers (Press et al. 2022)."""

    HINTS = (
        Hint(
            "mask",
            id="penalty",
            stage="position",
            title="Penalty of the distance",
            letter=r"\mathbf{B}",
            why=claim(
                "Each head has a slope m. The further apart two tokens are, the more is subtracted from their score.",
                "Times",
            ),
            note="In the paper, the mask is causal, so no key comes after its query. Without a mask, the distance "
            "counts in both directions here.",
        ),
        Hint(
            "*.scores",
            why=claim(
                "Every query meets every key, over √d_k as usual. The penalty is subtracted after that: the "
                "further away a token is, the less weight it gets, however well it fits.",
                "Plus",
                "Minus",
            ),
        ),
        Hint("parameter *.slopes", letter=r"\mathbf{m}"),
    )

    def __init__(self, *, T_max, D, h, R):
        super().__init__(T_max=T_max, D=D, h=h, R=R)
        exponents = 8 * torch.arange(1, h + 1) / h
        self.register_buffer("slopes", 2.0**-exponents, persistent=False)

    def between(self, T) -> tuple[torch.Tensor]:
        """Return the penalty of each pair of positions: `[h, T, T]`."""
        place = torch.arange(T, device=self.slopes.device)  # [T]
        distances = (place - place[:, None]).abs()  # [T, T]
        return (self.slopes[:, None, None] * distances,)  # [h, T, T]

    def scores(self, q, k, penalty) -> torch.Tensor:
        return q @ k.transpose(-2, -1) / sqrt(q.shape[-1]) - penalty  # [B, h, T, T]

    def terms(self, q, k, penalty) -> dict[str, torch.Tensor]:
        products = q @ k.transpose(-2, -1) / sqrt(q.shape[-1])
        return {"content–content": products, "penalty of the distance": -penalty.expand_as(products)}


CLASSES: dict[str, type[PositionEncoding]] = {
    NO_POSITIONS: PositionEncoding,
    "sinusoidal": SinusoidalPositions,
    "learned": LearnedPositions,
    "relative": RelativePositions,
    "rotary": RotaryPositions,
    "alibi": AlibiPositions,
}
"""The class of each kind of positions, by the names of `tracer.lessons.positions.KINDS`, and that of none."""
