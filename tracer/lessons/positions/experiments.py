"""Effect of a kind of positions on scores and outputs, measured on the model that all kinds share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from tracer.attention.score_decomposition import terms as of_tokens
from tracer.figures.attention.score_terms import difference
from tracer.figures.tensors.heatmap import as_array
from tracer.lessons import positions
from tracer.lessons.positions.base import PositionTable
from tracer.lessons.positions.demo_model import load
from tracer.models.shared.spec import Model
from tracer.record import Step, Trace, tolerance
from tracer.tracing.proofs import counterfactual_budget

SEED = 0
"""The seed of the order in which tokens are shuffled."""


class Curve(NamedTuple):
    """Scores over i - j, from `-(T - 1)` to `T - 1`, on equal tokens: mean, lowest and highest, `[h, 2T - 1]` each."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def distances(self) -> range:
        """Distances of its columns."""
        return range(-(self.mean.shape[1] // 2), self.mean.shape[1] // 2 + 1)

    @property
    def spread(self) -> float:
        """Largest difference of scores of one distance, as a share of the largest score."""
        return float((self.high - self.low).max() / max(np.abs(self.low).max(), np.abs(self.high).max()))


class ShuffleResult(NamedTuple):
    """A run on shuffled tokens, put back into order and compared with the run on the tokens in order.

    The largest difference of each token's output, `[T]`, is a share of the largest output.
    """

    positions: str
    mask: str
    differences: np.ndarray

    @property
    def same(self) -> bool:
        """True if outputs were shuffled as the tokens were, up to rounding."""
        return bool(self.differences.max() <= tolerance("float32"))


@dataclass(frozen=True, eq=False)
class PositionedModel:
    """A kind of positions on the model.

    It has the `lines` of its run beyond those of one without positions; its table, the table's product with itself, and
    that by distance if its rows are positions; the scores by distance; the terms of the scores, `[h, T, T]` each, their
    sum, and the `error` of that sum; and the effect of a shuffle of the tokens, without positions and with them,
    without a mask and with the causal one.
    """

    lines: tuple[Step, ...]
    table: PositionTable | None
    similar: np.ndarray | None
    product: Curve | None
    curve: Curve
    terms: dict[str, np.ndarray]
    scores: np.ndarray
    error: float
    shuffles: tuple[ShuffleResult, ...]


@torch.no_grad()
def placement(kind: str, *, causal: bool = False, T: int = 16, D: int = 32, h: int = 4) -> PositionedModel:
    """Return all measurements of a kind of positions at T tokens, width D and h heads, optionally with a causal
    mask."""
    mask = "causal" if causal else "bidirectional"
    model = load(kind, mask=mask, D=D, h=h)
    trace = counterfactual_budget.check(model.trace(T=T))
    tokens = model.inputs(T=T)[0]
    table = model.net.places.table(T)
    cells = None if table is None else table.cells.double().detach()
    terms = {name: as_array(term[0]) for name, term in _terms(model, trace, tokens).items()}
    scores = as_array(trace.value("block1.attention.scores"))[0]
    return PositionedModel(
        lines=changed_steps(trace, mask),
        table=table and table._replace(cells=as_array(table.cells)),
        similar=None if cells is None else as_array(cells @ cells.mT),
        product=None if cells is None or len(cells) != T else by_distance(as_array(cells @ cells.mT)[None]),
        curve=curve(model, tokens),
        terms=terms,
        scores=scores,
        error=difference(terms, scores),
        shuffles=tuple(
            shuffle(load(which, mask=mask, D=D, h=h), tokens)
            for mask in ("bidirectional", "causal")
            for which in (positions.NO_POSITIONS, kind)
        ),
    )


def changed_steps(trace: Trace, mask: str) -> tuple[Step, ...]:
    """Return the steps of a run that a run without positions lacks, or computes differently."""
    plain = _plain(mask)
    return tuple(step for step in trace.steps if step.latex not in plain)


@cache
def _plain(mask: str) -> frozenset[str]:
    """Return the equations of the model without positions."""
    return frozenset(step.latex for step in load(positions.NO_POSITIONS, mask=mask).trace(prove=False).steps)


def scores_of(model: Model, tokens: torch.Tensor) -> torch.Tensor:
    """Return the scores `[B, h, T, T]` of the model's attention before any mask, for token numbers `[B, T]`."""
    queries, keys, between = _queries_and_keys(model, tokens)
    return model.net.places.scores(queries, keys, *between)


def _queries_and_keys(
    model: Model, tokens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]:
    """Return queries and keys `[B, h, T, d_k]`, and the attention's arguments for positions."""
    net, attention = model.net, model.net.block1.attention
    x = net.places.add_to(net.tokens(tokens))  # [B, T, D]
    projected = [
        of(x).unflatten(-1, (attention.h, attention.d_k)).transpose(1, 2) for of in (attention.query, attention.key)
    ]
    return projected[0], projected[1], net.places.between(tokens.shape[1])


def _terms(model: Model, trace: Trace, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the terms of the scores: a kind's own, or the four of tokens plus positions."""
    queries, keys, between = _queries_and_keys(model, tokens)
    return model.net.places.terms(queries, keys, *between) or of_tokens(model, trace)


@torch.no_grad()
def curve(model: Model, tokens: torch.Tensor) -> Curve:
    """Return the scores by distance, of a sequence as long as these tokens `[1, T]` with its first token everywhere."""
    return by_distance(as_array(scores_of(model, tokens[:, :1].expand_as(tokens)))[0])


def by_distance(matrices: np.ndarray) -> Curve:
    """Return matrices `[h, T, T]` along their diagonals, on each of which i - j is the same."""
    most = matrices.shape[-1] - 1
    lines = [np.diagonal(matrices, -distance, axis1=-2, axis2=-1) for distance in range(-most, most + 1)]
    return Curve(*(np.stack([of(line, axis=-1) for line in lines], axis=-1) for of in (np.mean, np.min, np.max)))


@torch.no_grad()
def shuffle(model: Model, tokens: torch.Tensor, seed: int = SEED) -> ShuffleResult:
    """Return the effect of a shuffle of the tokens `[1, T]` after the outputs are put back into order."""
    order = torch.randperm(tokens.shape[1], generator=torch.Generator().manual_seed(seed))
    plain, moved = model.net(tokens), model.net(tokens[:, order])[:, order.argsort()]  # [1, T, D]
    differences = (moved - plain).abs().amax(dim=-1)[0] / plain.abs().max()
    return ShuffleResult(model.options["positions"], model.options["mask"], as_array(differences))
