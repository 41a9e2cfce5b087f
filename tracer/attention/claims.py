"""What texts claim of attention, as numbers that anybody can make again."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

import torch

from tracer.attention.reads import reads
from tracer.common.quoting import quoted
from tracer.record import tolerance

if TYPE_CHECKING:
    from tracer.models.shared.model import Model
    from tracer.record import Trace


def lookup(book: dict[str, float], word: str, *, sharpness: float = 10.0) -> tuple[dict[str, float], float]:
    """A dictionary that forgives spelling mistakes: the share of each key, and the mixture of their values.

    The shares are softmax(sharpness · similarity); similarity is the cosine of letter-pair counts. As sharpness grows,
    it becomes the lookup of the nearest key. ValueError for an empty book. Source: note 002, "Idea".
    """
    if not book:
        raise ValueError(f"{quoted(word)} can't be looked up: the book is empty")
    query, keys = spelled(word), torch.stack([spelled(key) for key in book])
    values = torch.tensor(list(book.values()), dtype=torch.float64)
    weights, value = soft_lookup(query[None], keys, values[:, None], scale=1 / sharpness)
    return dict(zip(book, weights[0].tolist(), strict=True)), float(value)


def soft_lookup(queries, keys, values, *, scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention as a lookup: weights softmax(QKᵀ/scale), `[n, m]`, and their mixtures of the values, `[n, d]`.

    Queries `[n, d_k]`, keys `[m, d_k]`, values `[m, d]`; scale is √d_k where it is not given. Source: Vaswani et al.
    2017, equation 1.
    """
    weights = (queries @ keys.T / (scale or sqrt(keys.shape[-1]))).softmax(dim=-1)
    return weights, weights @ values


def spelled(word: str) -> torch.Tensor:
    """A word as a unit vector: how often each pair of letters stands in it, its ends counted, `[27²]`."""
    letters = [0, *(max(0, min(26, ord(letter) - 96)) for letter in word.lower()), 0]
    pairs = torch.zeros(27 * 27, dtype=torch.float64)
    for first, second in pairwise(letters):
        pairs[27 * first + second] += 1
    return pairs / pairs.norm()


def asymmetry(matrix: torch.Tensor) -> float:
    """max|M - Mᵀ| / max|M|: 0 for a symmetric matrix `[…, n, n]`."""
    return float((matrix - matrix.mT).abs().max() / matrix.abs().max())


def shared_projection(tokens: torch.Tensor, projection: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and weights `[n, n]` of tokens `[n, D]` where one matrix `[D, d_k]` makes both queries and keys."""
    projected = tokens @ projection
    scores = projected @ projected.T / sqrt(projection.shape[-1])
    return scores, scores.softmax(dim=-1)


@torch.no_grad()
def shuffled(function, tokens: torch.Tensor, order: torch.Tensor) -> tuple[float, float]:
    """What shuffling tokens `[B, S, D]` does to a function of them, as shares of its largest output.

    The first number is max|f(X_π) - f(X)_π|: 0 if f is equivariant. The second is max|f(X_π) - f(X)|: 0 if it is
    invariant.
    """
    plain, moved = function(tokens), function(tokens[:, order])
    largest = plain.abs().max()
    return float((moved - plain[:, order]).abs().max() / largest), float((moved - plain).abs().max() / largest)


def spread(width: int, *, scaled: bool, count: int = 4096, seed: int = 0) -> float:
    """The standard deviation of q·k, over √d_k if `scaled`, for vectors of `width` independent standard normals."""
    q, k = torch.randn(2, count, width, generator=torch.Generator().manual_seed(seed))
    products = (q * k).sum(dim=-1)
    return float((products / sqrt(width) if scaled else products).std())


SHARPNESS = (1, 10, 100)
"""What the scores are multiplied by in `Measured.lookup`; 1 is the attention that ran."""


READ = ("query", "key", "value", "scores", "context")
"""The steps of a block's attention whose tensors are measured."""


class Measured(NamedTuple):
    """What the texts claim of attention, measured in the first block of a run; differences are shares of the largest.

    `lookup` has, for each of `SHARPNESS`, the largest weight of a row, on average over queries and heads; `mixture` is
    how far weights times values are from the context that ran. `shared_scores` and `shared_weights` are the asymmetry
    with one projection for queries and keys, `own_scores` that of the model's two. `equivariant` and `invariant` are
    those of `shuffled` for the block's attention without positions, `positioned` is the first of them with positions.
    """

    lookup: tuple[float, ...]
    mixture: float
    shared_scores: float
    shared_weights: float
    own_scores: float
    equivariant: float
    invariant: float
    positioned: float

    @staticmethod
    def same(error: float) -> bool:
        """Whether a difference is no more than rounding: at most what an equation may be off to count as proven."""
        return error <= tolerance("float32")


@torch.no_grad()
def measured(model: Model, trace: Trace, *, seed: int = 0) -> Measured:
    """The claims of notes 001 and 002, on the tensors of a run and the attention of its first block.

    ValueError for a model that masks, has no positions, or whose first block does not normalise what it reads, and
    for a run that did not keep its tensors.
    """
    places = reads(trace, "position")
    masked = not trace.attentions or trace.attentions[0].mask != "none"
    if masked or not places or "block1.norm1" not in reads(trace, "block1.attention.query"):
        raise ValueError(f"the first block of {model.name!r} does not attend to tokens plus positions without a mask")
    names = (places[0], "position", *(f"block1.{n}" for n in ("norm1", *(f"attention.{n}" for n in READ))))
    found = [trace.value(name) for name in names]
    if any(value is None for value in found):
        raise ValueError("the trace did not keep the tensors that the claims are about")
    content, both, normed, queries, keys, values, scores, context = found
    block, width = model.net.get_submodule("block1"), keys.shape[-1]
    products = queries @ keys.mT / sqrt(width)
    mixed = products.softmax(dim=-1) @ values
    mixed = mixed.transpose(1, 2).flatten(2) if mixed.dim() == 4 else mixed  # heads side by side, or one head
    projection = block.attention.query.weight.T[:, :width]
    shared_scores, shared_weights = shared_projection(normed[0], projection)
    order = torch.randperm(content.shape[1], generator=torch.Generator().manual_seed(seed))

    def attend(x: torch.Tensor) -> torch.Tensor:
        return block.attention(block.norm1(x))

    equivariant, invariant = shuffled(attend, content, order)
    return Measured(
        lookup=tuple(float((products * sharp).softmax(dim=-1).amax(dim=-1).mean()) for sharp in SHARPNESS),
        mixture=float((mixed - context).abs().max() / context.abs().max()),
        shared_scores=asymmetry(shared_scores),
        shared_weights=asymmetry(shared_weights),
        own_scores=asymmetry(scores),
        equivariant=equivariant,
        invariant=invariant,
        positioned=shuffled(lambda x: attend(x + both - content), content, order)[0],
    )
