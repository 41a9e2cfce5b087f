"""Codes: the number of the nearest row of a codebook, and the row of a table that this number looks up."""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from tracer.lessons.tokenization import embedding
from tracer.textbook.claims import Claim
from tracer.textbook.claims import predicates as so
from tracer.textbook.hints import Hint

ROUNDS = 25
"""Rounds of k-means at most."""


class Nearest(nn.Module):
    """Number of the row of a codebook `[V, K]` that is nearest to each vector, and its row in a table `[V, D]`.

    It takes `[B, n, K]` and returns `[B, n, D]`. Source: van den Oord et al. 2017, equations 1 and 2.
    """

    def __init__(self, rows: Tensor, D: int):
        super().__init__()
        self.rows = nn.Parameter(rows, requires_grad=False)
        self.table = nn.Embedding(len(rows), D, _weight=embedding(len(rows), D))

    def forward(self, x) -> Tensor:
        return self.table(self.codes(x))  # [B, n, D]

    def codes(self, x) -> Tensor:
        distances = x.square().sum(-1, keepdim=True) - 2 * x @ self.rows.T + self.rows.square().sum(-1)  # [B, n, V]
        return distances.argmin(-1)  # [B, n]


NEAREST = (
    Hint("parameter *.rows", letter=r"\mathbf{C}"),
    Hint(
        "tokens.codebook.sum",
        title="Lengths of the codebook's rows",
        letter=r"\mathbf{c}",
        why=(Claim("This is the square of the length of each row of the codebook C.", so.equation_is("Sum")),),
    ),
    Hint(
        "tokens.codebook.add",
        title="Distances to the codebook",
        letter=r"\boldsymbol{\Delta}",
        why=(
            Claim(
                "This is the square of the distance from each vector to each row, |x − c|² = |x|² − 2 x·c + |c|².",
                so.equation_is("Plus"),
            ),
        ),
    ),
    Hint(
        "tokens.codebook.argmin",
        title="Codes",
        letter=r"\mathbf{t}",
        why=(
            Claim(
                "This is the number of the nearest row. All that is left of the vector is an id, as for a piece of "
                "text.",
                so.equation_is("ArgMin"),
            ),
        ),
        source="van den Oord et al. 2017, equations 1 and 2",
    ),
    Hint(
        "embedding",
        title="Look up",
        why=(Claim("The id selects a row of a separate table E.", so.equation_is("Lookup")),),
    ),
)


def k_means(points: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """Return the rows of k-means, float32 `[V, K]`, each the mean of its nearest points among `[M, K]`.

    It begins with points far from one another, drawn with a probability that grows with the square of the distance to
    those drawn before (Arthur and Vassilvitskii 2007). Raise ValueError for more rows than points.
    """
    if not 1 <= count <= len(points):
        raise ValueError(f"{count} rows can't be learned from {len(points)} points")
    random, points = np.random.default_rng(seed), points.astype(np.float64)
    rows = points[random.integers(len(points))][None]
    away = ((points - rows[0]) ** 2).sum(axis=1)
    while len(rows) < count:
        chance = away / away.sum() if away.sum() > 0 else None
        rows = np.concatenate([rows, points[random.choice(len(points), p=chance)][None]])
        away = np.minimum(away, ((points - rows[-1]) ** 2).sum(axis=1))
    nearest = None
    for _ in range(ROUNDS):
        before, nearest = nearest, ((rows**2).sum(axis=1) - 2 * points @ rows.T).argmin(axis=1)
        if before is not None and (before == nearest).all():
            break
        for row in np.unique(nearest):
            rows[row] = points[nearest == row].mean(axis=0)
    return rows.astype(np.float32)
