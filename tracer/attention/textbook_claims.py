"""Claims of texts on attention, as numbers that anybody can compute."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt

import torch

from tracer.utils.error_text import quote


def lookup(book: dict[str, float], word: str, *, sharpness: float = 10.0) -> tuple[dict[str, float], float]:
    """Look a word up in a dictionary that forgives spelling mistakes: return the share of each key, and the mixture of
    their values.

    The shares are softmax(sharpness · similarity); similarity is the cosine of letter-pair counts. As sharpness grows,
    it becomes the lookup of the nearest key. ValueError for an empty book. Source: note 002, "Idea".
    """
    if not book:
        raise ValueError(f"{quote(word)} can't be looked up: the book is empty")
    query, keys = letter_pairs(word), torch.stack([letter_pairs(key) for key in book])
    values = torch.tensor(list(book.values()), dtype=torch.float64)
    weights, value = soft_lookup(query[None], keys, values[:, None], scale=1 / sharpness)
    return dict(zip(book, weights[0].tolist(), strict=True)), float(value)


def soft_lookup(queries, keys, values, *, scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Look queries up by attention: return weights softmax(QKᵀ/scale), `[n, m]`, and their mixtures of the values, `[n,
    d]`.

    Queries `[n, d_k]`, keys `[m, d_k]`, values `[m, d]`; scale is √d_k where it is not given. Source: Vaswani et al.
    2017, equation 1.
    """
    weights = (queries @ keys.T / (scale or sqrt(keys.shape[-1]))).softmax(dim=-1)
    return weights, weights @ values


def letter_pairs(word: str) -> torch.Tensor:
    """Return a word as a unit vector: the count of each pair of letters in it, its ends counted, `[27²]`."""
    letters = [0, *(max(0, min(26, ord(letter) - 96)) for letter in word.lower()), 0]
    pairs = torch.zeros(27 * 27, dtype=torch.float64)
    for first, second in pairwise(letters):
        pairs[27 * first + second] += 1
    return pairs / pairs.norm()


def asymmetry(matrix: torch.Tensor) -> float:
    """Return max|M - Mᵀ| / max|M|: 0 for a symmetric matrix `[…, n, n]`."""
    return float((matrix - matrix.mT).abs().max() / matrix.abs().max())


def shared_projection(tokens: torch.Tensor, projection: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores and weights `[n, n]` of tokens `[n, D]` if one matrix `[D, d_k]` projects to both queries and
    keys."""
    projected = tokens @ projection
    scores = projected @ projected.T / sqrt(projection.shape[-1])
    return scores, scores.softmax(dim=-1)


@torch.no_grad()
def shuffle_effect(function, tokens: torch.Tensor, order: torch.Tensor) -> tuple[float, float]:
    """Measure the effect of shuffling tokens `[B, S, D]` on a function of them, as shares of its largest output.

    The first number is max|f(X_π) - f(X)_π|: 0 if f is equivariant. The second is max|f(X_π) - f(X)|: 0 if it is
    invariant.
    """
    plain, moved = function(tokens), function(tokens[:, order])
    largest = plain.abs().max()
    return float((moved - plain[:, order]).abs().max() / largest), float((moved - plain).abs().max() / largest)


def spread(width: int, *, scaled: bool, count: int = 4096, seed: int = 0) -> float:
    """Return the standard deviation of q·k, over √d_k if `scaled`, for vectors of `width` independent standard
    normals."""
    q, k = torch.randn(2, count, width, generator=torch.Generator().manual_seed(seed))
    products = (q * k).sum(dim=-1)
    return float((products / sqrt(width) if scaled else products).std())
