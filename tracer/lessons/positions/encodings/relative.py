"""Relative positions: a learned vector for each distance, inside the attention (Shaw et al. 2018)."""

from math import sqrt

import torch
from torch import nn

from tracer.lessons.positions.encodings import PositionEncoding, PositionTable
from tracer.models.transformer import DISTANCES

TITLE = "Relative"
ORDER = 3
PAPER = "Shaw et al. 2018, equations 3 to 5"
SAYS = "Each query also meets a vector for its distance to the key. Distances beyond R count as R."
SCORE_NOTE = (
    "Nothing is added to the tokens, so no position meets a position. Each score is the match of the query with the "
    "key, plus its match with the vector for their distance."
)


class Positions(PositionEncoding):
    """Scores `q·(k + a)/√d_k` and context `Σ A (v + b)`, with `a` and `b` by the distance of the two tokens."""

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
