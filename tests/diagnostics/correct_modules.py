"""Correct modules that look like a mistake: none of them is accused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.diagnostics.wrong_modules import CausalHeads, D, DistanceBias, H, Heads, V, later

CORRECT: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]], dict[str, Any]]] = {}


def correct(args, **symbols):
    """Register a class, its arguments and its symbols."""

    def register(build):
        CORRECT[build.__name__] = build, args, symbols or {"B": 0, "T": 1}
        return build

    return register


def stream() -> tuple[Tensor]:
    return (torch.randn(2, 5, D),)


class Cache(Heads):
    def __init__(self):
        super().__init__(False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(2, H, 12, D // H))
        self.register_buffer("seen", torch.ones(12, 12, dtype=torch.bool).tril())


@correct(lambda: (torch.randn(2, 5, D), torch.arange(5)), B=("x", 0))
class CacheWithEmptyPlaces(Cache):
    """A cache of fixed length, whose places behind the queries are not written yet."""

    def forward(self, x, places):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        self.keys[:, :, places], self.values[:, :, places] = k, v
        return self.out(self.merge(F.scaled_dot_product_attention(q, self.keys, self.values, self.seen[places])))


@correct(lambda: (torch.randn(2, 3, D), 5), B=("x", 0))
class CacheOfEachSample(Cache):
    """A cache that holds what each sample said before."""

    def forward(self, x, start: int):
        length = x.shape[1]
        end = start + length
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        self.keys[:, :, start:end], self.values[:, :, start:end] = k, v
        seen = torch.ones(length, end, dtype=torch.bool).tril(start)
        return self.out(
            self.merge(F.scaled_dot_product_attention(q, self.keys[:, :, :end], self.values[:, :, :end], seen))
        )


def packed() -> tuple[Tensor, ...]:
    return torch.randn(2, 4, D), torch.tensor([[0, 0, 1, 1], [0, 0, 0, 0]]), torch.tensor([[True, True], [True, False]])


@correct(packed, B=("x", 0))
class EmptyRowThatNothingReads(nn.Module):
    """A query that may look at no key, and whose result is left out."""

    def __init__(self):
        super().__init__()
        self.queries, self.key, self.out = nn.Parameter(torch.randn(2, D)), nn.Linear(D, D), nn.Linear(D, 3)

    def forward(self, x, owner, real):
        mask = owner[:, None, :] == torch.arange(2)[None, :, None]
        y = F.scaled_dot_product_attention(self.queries.expand(len(x), -1, -1), self.key(x), x, attn_mask=mask)
        return self.out(y[real])


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.end = (nn.LayerNorm(D) for _ in range(3))
        self.attention, self.mlp = Heads(False), nn.Linear(D, D)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        x = x + self.mlp(self.norm2(x)).relu()
        return self.end(x)


@correct(stream)
class StackThatEndsInANorm(nn.Module):
    """A sum on the result of a stack whose last layer is a norm."""

    def __init__(self):
        super().__init__()
        self.stack, self.mix = Stack(), nn.Linear(D, D)

    def forward(self, x):
        x = self.stack(x)
        return x + self.mix(x).relu()


@correct(lambda: (torch.randint(0, V, (2, 6)),))
class DecoderOfItsOwnEncoder(nn.Module):
    """An encoder and a causal decoder of one text, as BART runs without other ids: the encoder sees all of it."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(V, D), nn.Linear(D, V)
        self.encoder, self.decoder = (nn.MultiheadAttention(D, H, batch_first=True) for _ in range(2))
        self.cross = nn.MultiheadAttention(D, H, batch_first=True)

    def forward(self, ids):
        x, y = self.table(ids), self.table(F.pad(ids[:, :-1], (1, 0), value=1))
        x = x + self.encoder(x, x, x, need_weights=False)[0]
        y = y + self.decoder(y, y, y, attn_mask=later(ids), need_weights=False)[0]
        return self.head(y + self.cross(y, x, x, need_weights=False)[0])


class TwoSided(nn.Module):
    """Scores of the ids of its own table, from both sides, and no sign that it predicts the next token."""

    def __init__(self):
        super().__init__()
        self.table, self.lm_head = nn.Embedding(V, D), nn.Linear(D, V)
        self.attention = nn.MultiheadAttention(D, H, batch_first=True)
        self.lm_head.weight = self.table.weight

    def forward(self, ids):
        x = self.table(ids)
        return self.lm_head(x + self.attention(x, x, x, need_weights=False)[0])


@correct(lambda: (torch.randint(0, V, (2, 6)),))
class MaskedTokenModel(TwoSided):
    """A model of hidden tokens."""


@correct(lambda: (torch.randint(0, V, (2, 6)),))
class HiddenTokensLM(TwoSided):
    """A loss of tokens that are hidden in forward."""

    def forward(self, ids):
        hidden = torch.arange(ids.shape[1]).expand_as(ids) % 3 == 0
        logits, labels = super().forward(ids.masked_fill(hidden, V - 1)), ids.masked_fill(~hidden, -100)
        return F.cross_entropy(logits.transpose(1, 2), labels)


@correct(lambda: (torch.randint(0, V, (2, 6)),))
class TokenScores(nn.Module):
    """Nothing says what the scores are for."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(V, D), nn.Linear(D, V)
        self.attention = nn.MultiheadAttention(D, H, batch_first=True)

    def forward(self, ids):
        x = self.table(ids)
        return self.out(x + self.attention(x, x, x, need_weights=False)[0])


@correct(lambda: (torch.randn(3, 7, D), torch.arange(7)[None] < torch.tensor([[7], [4], [5]])))
class SegmentsOfTokens(nn.Module):
    """Flags of two segments, which look like a mask of padding: both segments are read."""

    def __init__(self):
        super().__init__()
        self.kinds, self.out = nn.Parameter(torch.randn(2, D)), nn.Linear(D, D)

    def forward(self, x, segments):
        return self.out((x + torch.where(segments[..., None], self.kinds[0], self.kinds[1])).relu().mean(1))


@correct(lambda: (torch.randint(0, V, (2, 6)),))
class BeginningInFront(nn.Module):
    """A learned token in front of the text: the logits at each position predict the token of that position."""

    def __init__(self):
        super().__init__()
        self.begin, self.table, self.head = nn.Parameter(torch.randn(1, 1, D)), nn.Embedding(V, D), nn.Linear(D, V)
        self.attention = CausalHeads(False)

    def forward(self, ids):
        x = torch.cat([self.begin.expand(len(ids), -1, -1), self.table(ids[:, :-1])], 1)
        return F.cross_entropy(self.head(self.attention(x)).transpose(1, 2), ids)


@correct(stream)
class ShuffledChannels(nn.Module):
    """A shuffle of channels: features change their order on purpose."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        y = self.first(x).unflatten(-1, (4, D // 4)).transpose(2, 3).flatten(2)
        return self.second(y).unflatten(-1, (4, D // 4)).sum(2)


@correct(lambda: (torch.randn(4, D), torch.randn(4, D)), B=0)
class AllPairs(nn.Module):
    """A loss of all pairs: the axis of 1 was inserted."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(D, 1)

    def forward(self, x, y):
        good, bad = self.score(x).squeeze(-1), self.score(y).squeeze(-1)
        return (1 - good[:, None] + bad).relu().mean()


@correct(stream)
class SoftBias(CausalHeads):
    """A bias of two values that is learned."""

    def __init__(self):
        super().__init__(False)
        self.bias = nn.Parameter(torch.eye(5))

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)


@correct(stream)
class HeadsOfOneModule(nn.Module):
    """One head in several places, for the results of several layers: no use goes on from another."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(D, D) for _ in range(2))
        self.heads = nn.ModuleList([nn.Linear(D, 3)] * 2)

    def forward(self, x):
        results = []
        for layer, head in zip(self.layers, self.heads, strict=True):
            x = x + layer(x).relu()
            results.append(head(x))
        return torch.stack(results)


@correct(stream)
class OneLayerInALoop(nn.Module):
    """Layers that share their weights on purpose."""

    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(D), nn.Linear(D, D)

    def forward(self, x):
        for _ in range(3):
            x = x + self.layer(self.norm(x)).relu()
        return x


@correct(stream)
class FrozenPart(nn.Module):
    """A part without gradients that says so, and a table that is no parameter."""

    def __init__(self):
        super().__init__()
        self.backbone, self.head = [nn.Linear(D, D).requires_grad_(False)], nn.Linear(D, 3)
        self.frozen = nn.Linear(D, D).requires_grad_(False)
        self.table = (torch.arange(32)[:, None] / 100 ** (torch.arange(D) / D)).sin()

    def forward(self, x):
        with torch.no_grad():
            x = self.frozen(self.backbone[0](x + self.table[: x.shape[1]]))
        return self.head(x)


@correct(stream)
class StraightThrough(nn.Module):
    """A codebook, whose loss is not in this forward: the gradient goes past it on purpose."""

    def __init__(self):
        super().__init__()
        self.encoder, self.codes, self.decoder = nn.Linear(D, D), nn.Embedding(8, D), nn.Linear(D, D)

    def forward(self, x):
        x = self.encoder(x)
        nearest = self.codes((x @ self.codes.weight.T).argmax(-1))
        return self.decoder(x + (nearest - x).detach())


@correct(lambda: (torch.randint(0, V, (2, 6)),))
class PrefixModel(TwoSided):
    """The first tokens see each other, and later ones see what is before them."""

    def forward(self, ids):
        hidden, x = later(ids), self.table(ids)
        hidden[:, :3] = False
        return self.lm_head(x + self.attention(x, x, x, attn_mask=hidden, need_weights=False)[0])


@correct(stream)
class SkipOverTwoBranches(nn.Module):
    """A stream that is added behind two branches, and a projection behind a norm: no sum is missing or too many."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(D, D), nn.Linear(D, D), nn.LayerNorm(D)
        self.attention, self.head = Heads(False), nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, 3))

    def forward(self, x):
        y = x + self.first(x).relu()
        y = x + self.second(y + self.attention(y))
        return self.head(self.norm(y))


class UnscaledWithDistances(DistanceBias):
    """Scores as in T5: a learned bias of distances, and no scale."""

    def __init__(self):
        super().__init__(False)

    def attend(self, q, k, v):
        return super().attend(q * q.shape[-1] ** 0.5, k, v)


class TokensFirst(nn.Module):
    """Ids `[T, B]` with positions along axis 0, as attention reads them unless it is told otherwise."""

    def __init__(self):
        super().__init__()
        self.table, self.positions = nn.Embedding(V, D), nn.Embedding(20, D)
        self.attention, self.out = nn.MultiheadAttention(D, H), nn.Linear(D, 3)

    def forward(self, ids):
        x = self.table(ids) + self.positions(torch.arange(len(ids)))[:, None]
        return self.out(x + self.attention(x, x, x, need_weights=False)[0])


class TokensFirstPooled(TokensFirst):
    """The same with one answer for each sample."""

    def forward(self, ids):
        return super().forward(ids).mean(0)


class ClosedGates(Heads):
    """A branch that a gate of zero shuts when training begins, beside learned tokens that this run has no use for."""

    def __init__(self):
        super().__init__(False)
        self.gate, self.token = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.randn(5, D))

    def forward(self, x):
        x = torch.where(torch.zeros(5, 1, dtype=torch.bool), self.token, x)
        return x + self.gate * super().forward(x)


class OneToken(Heads):
    """Attention of one token, whose weights are 1 whatever queries and keys are."""

    def __init__(self):
        super().__init__(False)


class Routed(nn.Module):
    """Experts of which each token reads one, so that some may read none."""

    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(D, 6), nn.ModuleList(nn.Linear(D, D) for _ in range(6))

    def forward(self, x):
        weight, chosen = self.router(x).softmax(-1).topk(1, -1)
        own = torch.stack([expert(x) for expert in self.experts], -2)
        return x + weight * own.gather(-2, chosen[..., None].expand(*chosen.shape, D)).squeeze(-2)


class SmearedKeys(Heads):
    """Attention of a stream that was moved on by one token, beside the stream itself."""

    def __init__(self):
        super().__init__(False)

    def forward(self, x):
        before = F.pad(x, (0, 0, 1, 0))[:, :-1]
        return x + super().forward(0.5 * x + 0.5 * before)


def numbers() -> tuple[Tensor]:
    return (torch.arange(1, 16).reshape(5, 3),)


for unnamed, arguments in (
    (TokensFirst, numbers),
    (TokensFirstPooled, numbers),
    (ClosedGates, stream),
    (UnscaledWithDistances, stream),
    (OneToken, lambda: (torch.randn(2, 1, D),)),
    (Routed, stream),
    (SmearedKeys, stream),
):
    CORRECT[unnamed.__name__] = unnamed, arguments, {}
