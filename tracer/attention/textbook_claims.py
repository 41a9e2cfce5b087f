"""Claims of texts on attention, as numbers that anybody can compute."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING

import torch

from tracer.utils.errors import quote

if TYPE_CHECKING:
    from tracer.record import Trace
    from tracer.spec.spec import Model


# Steps that a step of a run reads, by its ops.


def reads(trace: Trace, id: str) -> list[str]:
    """Return the ids of the other steps whose ops produced the inputs of a step's ops, in order; none if the run has no
    such step.

    >>> import tracer
    >>> reads(tracer.load("vit", L=1).trace(prove=False), "block1.attention.query")
    ['block1.norm1']
    """
    makers = {op.index: op.step for op in trace.ops}
    taken = [tensor.maker for op in trace.ops if op.step == id for tensor in op.inputs]
    steps = dict.fromkeys(makers.get(maker) for maker in taken if isinstance(maker, int))
    return [step for step in steps if step not in (None, id)]


# Scores of the first block as the sum of four terms: content and position against content and position.

TERMS = ("content–content", "content–position", "position–content", "position–position")
"""Of which part of the query's token, against which part of the key's token."""


def terms(model: Model, trace: Trace) -> dict[str, torch.Tensor]:
    """Return the four terms of `QKᵀ/√d_k` in block 1, by the names in `TERMS`: `[B, h, S, S]` each; their sum is the
    scores.

    Where the block reads `X_t + P`, its queries are `X_t W_Q + P W_Q`, and its keys likewise; biases, where there
    are any, count as content. A mask is not part of the sum. ValueError for a model whose first block reads
    something else, and where the trace did not keep the embeddings. Source: Ke et al. 2021, equation 6.
    """
    if "position" not in reads(trace, "block1.attention.query"):
        raise ValueError(
            f"the first block of {quote(model.name)} does not read tokens plus positions as they are, "
            f"so its scores don't fall into four terms"
        )
    content, both = (trace.value(trace.changed_step(id) or id) for id in ("embedding", "position"))
    if content is None or both is None:
        raise ValueError("the trace did not keep the embeddings, of which the four terms are made")
    attention = model.net.get_submodule("block1.attention")

    def parts(linear: torch.nn.Linear) -> list[torch.Tensor]:
        projected = linear(content), torch.nn.functional.linear(both - content, linear.weight)  # [B, S, h·d_k]
        return [
            part.unflatten(-1, (attention.h, attention.d_k)).transpose(1, 2) for part in projected
        ]  # [B, h, S, d_k]

    with torch.no_grad():
        queries, keys = parts(attention.query), parts(attention.key)
        products = [q @ k.transpose(-2, -1) / sqrt(attention.d_k) for q in queries for k in keys]
    return dict(zip(TERMS, products, strict=True))


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
