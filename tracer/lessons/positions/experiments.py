"""Effect of a kind of positions on scores and outputs, measured on the model that all kinds share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from tracer.attention.textbook_claims import terms as of_tokens
from tracer.figures.attention_charts import difference
from tracer.figures.tensors import as_array
from tracer.inputs.model_inputs import Characters
from tracer.lessons import positions
from tracer.lessons.positions.encodings import CLASSES, PositionTable
from tracer.models.transformer import FeedForward
from tracer.record import Segment, Step, Trace, tolerance
from tracer.spec import blocks
from tracer.spec.blocks import causal
from tracer.spec.preparation import text_input
from tracer.spec.spec import Model, Spec, build_seeded
from tracer.textbook.names import Hint
from tracer.tracing import counterfactual

# Model that all kinds of positions share: a post-norm block whose attention they enter.

ALPHABET = " abcdefghijklmnopqrstuvwxyz"
TEXT = "the cat sat on the mat and slept"


class Attention(blocks.Attention):
    """Attention with `places`: `[B, T, D]` in and out."""

    def forward(self, x, places, between, mask=None) -> torch.Tensor:
        B, T, D, h, d_k = *x.shape, self.h, self.d_k
        q = self.query(x).view(B, T, h, d_k).transpose(1, 2)  # [B, h, T, d_k]
        k = self.key(x).view(B, T, h, d_k).transpose(1, 2)  # [B, h, T, d_k]
        v = self.value(x).view(B, T, h, d_k).transpose(1, 2)  # [B, h, T, d_k]
        scores = places.scores(q, k, *between)  # [B, h, T, T]
        if mask is not None:
            scores = scores + mask  # [B, h, T, T]
        weights = scores.softmax(dim=-1)  # [B, h, T, T]
        context = places.context(weights, v, *between)  # [B, h, T, d_k]
        context = context.transpose(1, 2).reshape(B, T, h * d_k)  # [B, T, h·d_k]
        return self.output(context)  # [B, T, D]


class Block(nn.Module):
    """Post-norm block (Vaswani et al. 2017, section 3.1); `[B, T, D]` in and out."""

    def __init__(self, *, D: int, h: int, d_ff: int):
        super().__init__()
        self.attention = Attention(D=D, h=h, bias=False)
        self.norm1 = nn.LayerNorm(D)
        self.mlp = FeedForward(D=D, d_ff=d_ff)
        self.norm2 = nn.LayerNorm(D)
        for norm in (self.norm1, self.norm2):  # here, and not after what positions draw
            nn.init.normal_(norm.bias, std=0.02)

    def forward(self, x, places, between, mask=None) -> torch.Tensor:
        x = self.norm1(x + self.attention(x, places, between, mask))  # [B, T, D]
        return self.norm2(x + self.mlp(x))  # [B, T, D]


class PositionModel(nn.Module):
    """Tokens, the positions added to them, and one block.

    It takes token numbers `[B, T]`, T at most T_max, and returns `[B, T, D]`. The parameters of positions are drawn
    last, so that all other weights are the same for every kind.
    """

    def __init__(self, *, V: int, T_max: int, D: int, h: int, d_ff: int, R: int, positions: str, mask: str):
        super().__init__()
        self.mask = mask
        self.tokens = nn.Embedding(V, D)
        self.block1 = Block(D=D, h=h, d_ff=d_ff)
        self.places = CLASSES[positions](T_max=T_max, D=D, h=h, R=R)

    def forward(self, tokens) -> torch.Tensor:
        _, T = tokens.shape
        between = self.places.between(T)
        mask = causal(T, device=tokens.device) if self.mask == "causal" else None  # [T, T]
        x = self.places.add_to(self.tokens(tokens))  # [B, T, D]
        return self.block1(x, self.places, between, mask)  # [B, T, D]


HINTS = (Hint("embedding", title="Look up", letter=r"\mathbf{X}_t"),)


def spec(kind: str) -> Spec:
    """Return the specification of the model with a kind of positions."""
    return Spec(
        net=PositionModel,
        hints=(*HINTS, *CLASSES[kind].HINTS),
        takes=("text",),
        sizes={"V": len(ALPHABET), "T_max": 32, "D": 32, "h": 4, "d_ff": 64, "R": 6},
        derived={"d_k": "D/h"},
        names=("B", "d_k", "d_k/2", "T", "D", "D/2", "V", "T_max", "h", "d_ff", "R", "2*R + 1"),
        probes=(
            {"B": 13, "T": 7, "V": 17, "T_max": 11, "D": 36, "h": 3, "d_ff": 23, "R": 2},
            {"B": 3, "T": 5, "V": 29, "T_max": 19, "D": 56, "h": 4, "d_ff": 31, "R": 8},
            {"B": 10, "T": 13, "V": 37, "T_max": 27, "D": 80, "h": 5, "d_ff": 41, "R": 11},
        ),
        example=lambda sizes: (torch.arange(sizes["B"] * sizes["T"]).view(sizes["B"], sizes["T"]) % sizes["V"],),
        prepare=text_input(Characters, ALPHABET, TEXT),
        result=lambda model, inputs, output: {},
        segments=lambda sizes: (Segment("text", 0, sizes["T"]),),
        runs=("B", "T"),
        options={"positions": (kind,), "mask": ("bidirectional", "causal")},
    )


def load(kind: str, *, mask: str = "bidirectional", D: int = 32, h: int = 4) -> Model:
    """Return the model with a kind of positions, or `positions.NO_POSITIONS`, at these sizes and with seeded weights.

    Raise ValueError if a head could not rotate pairs of numbers.
    """
    if D % (2 * h):
        raise ValueError(
            f"D={D} does not fit h={h}: rotary heads rotate pairs of their D/h numbers, so 2·h must divide D"
        )
    loaded = spec(kind)
    config = {**loaded.sizes, "D": D, "h": h, "d_ff": 2 * D, "positions": kind, "mask": mask}
    return Model.of(
        f"one block, {kind}",
        loaded,
        build_seeded(PositionModel, config),
        config,
        weights="seeded random weights",
        fixed=True,
    )


# Similarity of the learned positions of patches: cosines between the rows of a model's table, on its grid.


@dataclass(frozen=True, eq=False)
class Grid:
    """Cosines between the positions of N patches in rows and columns, `[N, N]`.

    It also has the table's letter in the equations, and its number of rows.
    """

    rows: int
    columns: int
    cosines: np.ndarray
    letter: str
    length: int

    def distances(self) -> np.ndarray:
        """Return the number of steps between two patches, the larger of those down and across: `[N, N]`."""
        down, across = np.divmod(np.arange(self.rows * self.columns), self.columns)
        return np.maximum(np.abs(down[:, None] - down), np.abs(across[:, None] - across))

    def mean(self, steps: int) -> float:
        """Return the mean cosine of patches that are that many steps apart."""
        return float(self.cosines[self.distances() == steps].mean())

    @property
    def farthest(self) -> int:
        """Largest number of steps between two patches."""
        return max(self.rows, self.columns) - 1


def grid(trace: Trace, net: torch.nn.Module) -> Grid | None:
    """Return the learned positions of the patches of a run's photo, or None if the run adds no such table.

    Rows of the table before those of the patches, such as that of the CLS token, are left out. Source: Dosovitskiy et
    al. 2021, figure 7, center.
    """
    if (picture := trace.picture) is None:
        return None
    count = picture.rows * picture.columns
    named = dict(net.named_parameters())
    used = [name for step in trace.steps if step.stage == "position" for name in step.names]
    for row in used:
        rows = named.get(row.of.removeprefix("parameter "))
        if rows is not None and rows.dim() == 2 and len(rows) == picture.first + count > 1:
            with torch.no_grad():
                unit = torch.nn.functional.normalize(rows[picture.first :].double(), dim=1)
                return Grid(picture.rows, picture.columns, as_array(unit @ unit.mT), row.symbol, len(rows))
    return None


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
    trace = counterfactual.check(model.trace(T=T))
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
    queries, keys, between = _queries_and_keys(model, tokens[:, :1].expand_as(tokens))
    return by_distance(as_array(model.net.places.scores(queries, keys, *between))[0])


def by_distance(matrices: np.ndarray) -> Curve:
    """Return matrices `[h, T, T]` along their diagonals, on each of which i - j is the same."""
    most = matrices.shape[-1] - 1
    lines = [np.diagonal(matrices, -distance, axis1=-2, axis2=-1) for distance in range(-most, most + 1)]
    return Curve(*(np.stack([of(line, axis=-1) for line in lines], axis=-1) for of in (np.mean, np.min, np.max)))


@torch.no_grad()
def shuffle(model: Model, tokens: torch.Tensor) -> ShuffleResult:
    """Return the effect of a shuffle of the tokens `[1, T]` after the outputs are put back into order."""
    order = torch.randperm(tokens.shape[1], generator=torch.Generator().manual_seed(SEED))
    plain, moved = model.net(tokens), model.net(tokens[:, order])[:, order.argsort()]  # [1, T, D]
    differences = (moved - plain).abs().amax(dim=-1)[0] / plain.abs().max()
    return ShuffleResult(model.options["positions"], model.options["mask"], as_array(differences))
