"""The draw of a next token as the page does it in the browser: the temperature, then the k largest, then the nucleus.

Sources: Fan et al. 2018, section 5.1 (top-k); Holtzman et al. 2020, section 3.1 (top-p)."""

from __future__ import annotations

import numpy as np


def probabilities(logits: np.ndarray, temperature: float, top_k: int | None = None, top_p: float = 1.0) -> np.ndarray:
    """Return the probabilities of the tokens, float64 `[V]`, from their logits `[V]`.

    `temperature` 0 gives 1 to the largest logit. `top_k` keeps the k largest, and `top_p` the fewest of these that have
    at least this share together; of equal ones, the first come first. What is left is scaled to a sum of 1. Raise
    ValueError for settings out of range.
    """
    if temperature < 0 or not 0 < top_p <= 1 or (top_k is not None and top_k < 1):
        raise ValueError(
            f"temperature={temperature}, top_k={top_k}, top_p={top_p} are not possible, expected a temperature from 0, "
            "k from 1, and p above 0 and up to 1"
        )
    logits = np.asarray(logits, np.float64)
    order = np.argsort(-logits, kind="stable")
    if temperature == 0:
        return np.where(np.arange(len(logits)) == order[0], 1.0, 0.0)
    shares = np.exp((logits - logits.max()) / temperature)
    shares[order[len(order) if top_k is None else top_k :]] = 0
    shares /= shares.sum()
    before = np.cumsum(shares[order]) - shares[order]
    shares[order[before >= top_p - 1e-12]] = 0
    return shares / shares.sum()


def draw(shares: np.ndarray, u: float) -> int:
    """Return the token on which a number `u` from 0 to 1 falls, where the tokens lie side by side, the likeliest first,
    each as wide as its probability."""
    order = np.argsort(-shares, kind="stable")
    return int(order[min(np.searchsorted(np.cumsum(shares[order]), u, side="right"), np.count_nonzero(shares) - 1)])
