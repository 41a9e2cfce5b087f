"""Modules with a mistake each, and the same module without it: the difference is on the lines marked `# wrong`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

B, T, D, H, V = 2, 6, 16, 4, 30


@dataclass(frozen=True)
class Pair:
    """A wrong module and its correct twin, built by one class, and the rule that finds the mistake."""

    kind: str
    build: Callable[[bool], nn.Module]
    args: Callable[[], tuple[Any, ...]]
    symbols: dict[str, Any] = field(default_factory=lambda: {"B": 0, "T": 1})


PAIRS: dict[str, Pair] = {}


def tokens() -> tuple[Tensor, ...]:
    return (torch.randn(B, T, D),)


def pair(kind: str, args: Callable[[], tuple[Any, ...]] = tokens, **more: Any):
    """Register a class whose constructor takes whether the module is wrong."""

    def register(build):
        PAIRS[build.__name__] = Pair(kind, build, args, **more)
        return build

    return register


class Heads(nn.Module):
    """Projections of an attention of several heads; `attend` is defined by subclasses."""

    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong = wrong
        self.query, self.key, self.value, self.out = (nn.Linear(D, D) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], H, D // H).transpose(1, 2)

    def merge(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).reshape(x.shape[0], -1, D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        return self.out(self.merge(self.attend(q, k, v)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1) @ v


@pair("axes mixed")
class MergedHeads(Heads):
    def merge(self, x):
        if self.wrong:
            return x.reshape(x.shape[0], -1, D)  # wrong
        return super().merge(x)


@pair("axes mixed")
class SplitHeads(Heads):
    def split(self, x):
        if self.wrong:
            return x.view(x.shape[0], H, x.shape[1], D // H)  # wrong
        return super().split(x)


@pair("axes mixed", lambda: (torch.randn(2, 3, 8, 12),), symbols={"B": 0, "H": 2, "W": 3})
class Patches(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong, self.embed = wrong, nn.Linear(3 * 4 * 4, D)

    def forward(self, image):
        batch, _, height, width = image.shape
        if self.wrong:
            return self.embed(image.reshape(batch, -1, 3 * 4 * 4))  # wrong
        patches = image.reshape(batch, 3, height // 4, 4, width // 4, 4).permute(0, 2, 4, 3, 5, 1)
        return self.embed(patches.reshape(batch, -1, 3 * 4 * 4))


@pair("samples mixed")
class BatchFirst(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.attention = nn.MultiheadAttention(D, H, batch_first=not wrong)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]  # wrong


@pair("samples mixed", lambda: (torch.randn(1, T, D),))
class BatchFirstOfOne(BatchFirst):
    """Attention with a batch of one: the second run has two samples."""


@pair("samples mixed")
class NormOverBatch(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.axis, self.out = 0 if wrong else -1, nn.Linear(D, D)

    def forward(self, x):
        centred = x - x.mean(self.axis, keepdim=True)  # wrong
        return self.out(centred / (x.std(self.axis, keepdim=True) + 1e-5))


@pair("samples told apart")
class PositionsAlongBatch(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong, self.out = wrong, nn.Linear(D, D)
        self.register_buffer("table", torch.randn(50, 1, D))

    def forward(self, x):
        if self.wrong:
            return self.out(x + self.table[: x.size(0)])  # wrong
        return self.out(x + self.table[: x.size(1)].transpose(0, 1))


@pair("mask empty row")
class StrictMask(Heads):
    def attend(self, q, k, v):
        seen = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril(-1 if self.wrong else 0)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)  # wrong


@pair("mask empty row")
class StrictFiniteMask(Heads):
    def attend(self, q, k, v):
        hidden = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(0 if self.wrong else 1)
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        return scores.masked_fill(hidden, -1e9).softmax(-1) @ v  # wrong


@pair("mask reversed")
class VisibleReadAsHidden(Heads):
    def attend(self, q, k, v):
        later = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=later if self.wrong else ~later)  # wrong


@pair("mask reversed")
class HiddenReadAsVisible(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong, self.attention = wrong, nn.MultiheadAttention(D, H, batch_first=True)

    def forward(self, x):
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return self.attention(x, x, x, attn_mask=seen if self.wrong else ~seen, need_weights=False)[0]  # wrong


@pair("mask after softmax")
class LateMask(Heads):
    def attend(self, q, k, v):
        hidden = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        if self.wrong:
            return (scores.softmax(-1) * ~hidden) @ v  # wrong
        return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v


@pair("mask corner", lambda: (torch.randn(B, 2, D), torch.randn(B, 4, D)), symbols={"B": 0, "T": ("x", 1)})
class CausalWithCache(Heads):
    def forward(self, x, cache):
        every = torch.cat([cache, x], dim=1)
        q, k, v = self.split(self.query(x)), self.split(self.key(every)), self.split(self.value(every))
        if self.wrong:
            return self.out(self.merge(F.scaled_dot_product_attention(q, k, v, is_causal=True)))  # wrong
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(k.shape[-2] - q.shape[-2])
        return self.out(self.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=seen)))


def padded_tokens() -> tuple[Tensor]:
    return (torch.tensor([[3, 5, 2, 7, 9, 4], [4, 8, 9, 0, 0, 0]]),)


class Padded(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong, self.table = wrong, nn.Embedding(V, D, padding_idx=0)
        self.attention = nn.MultiheadAttention(D, H, batch_first=True)


@pair("padding attended", padded_tokens)
class PaddingForgotten(Padded):
    def forward(self, ids):
        x, padding = self.table(ids), None if self.wrong else ids == 0
        return self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]  # wrong


@pair("padding mask reversed", padded_tokens)
class PaddingReversed(Padded):
    def forward(self, ids):
        x, mask = self.table(ids), ids != 0 if self.wrong else ids == 0
        return self.attention(x, x, x, key_padding_mask=mask, need_weights=False)[0]  # wrong


def padded_of_three() -> tuple[Tensor]:
    return (torch.tensor([[3, 5, 2, 7, 9, 4, 6, 8], [4, 8, 9, 5, 1, 0, 0, 0], [4, 1, 9, 7, 3, 2, 0, 0]]),)


class Ids(Heads):
    """Nothing but the comparison in forward says which id is padding."""

    def __init__(self, wrong: bool):
        super().__init__(wrong)
        self.table = nn.Embedding(V, D)

    def forward(self, ids):
        self.keep = ids != 0
        return super().forward(self.table(ids))


@pair("padding mask reversed", padded_of_three)
class ComparisonReversed(Ids):
    def attend(self, q, k, v):
        mask = ~self.keep if self.wrong else self.keep
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])  # wrong


@pair("padding attended", padded_of_three)
class PaddingAsQueries(Ids):
    def attend(self, q, k, v):
        mask = self.keep[:, None, :, None] if self.wrong else self.keep[:, None, None]
        scores = (q @ k.transpose(-2, -1) / (D // H) ** 0.5).masked_fill(~mask, -1e9)
        return scores.softmax(-1) @ v  # wrong


class Pool(nn.Module):
    """A learned query, which is no token, reads tokens with padding."""

    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong, self.table, self.query = wrong, nn.Embedding(V, D), nn.Parameter(torch.randn(1, 1, D))
        self.attention = nn.MultiheadAttention(D, H, batch_first=True)

    def queries(self, ids):
        return self.query.expand(len(ids), 2, -1)


@pair("padding attended", lambda: (*padded_of_three(), padded_of_three()[0] > 0))
class PaddingPooled(Pool):
    def forward(self, ids, keep):
        x = self.table(ids)
        x = x + self.attention(x, x, x, key_padding_mask=~keep, need_weights=False)[0]
        mask = None if self.wrong else ~keep
        return self.attention(self.queries(ids), x, x, key_padding_mask=mask, need_weights=False)[0]  # wrong


@pair("padding mask reversed", lambda: (padded_of_three()[0][1:], padded_of_three()[0][1:] > 0))
class PaddingPooledAlone(Pool):
    def forward(self, ids, keep):
        x, mask = self.table(ids), keep if self.wrong else ~keep
        return self.attention(self.queries(ids), x, x, key_padding_mask=mask, need_weights=False)[0]  # wrong


@pair("softmax axis")
class SoftmaxOverHeads(Heads):
    def attend(self, q, k, v):
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        return scores.softmax(dim=1 if self.wrong else -1) @ v  # wrong


@pair("softmax axis")
class SoftmaxOverQueries(Heads):
    def attend(self, q, k, v):
        weights = (torch.einsum("bhid,bhjd->bhij", q, k) / 2).softmax(dim=-2 if self.wrong else -1)  # wrong
        return torch.einsum("bhij,bhjd->bhid", weights, v)


@pair("softmax axis")
class SoftmaxOverQueriesOfAnyBatch(Heads):
    def attend(self, q, k, v):
        weights = (torch.einsum("...id,...jd->...ij", q, k) / 2).softmax(dim=-2 if self.wrong else -1)  # wrong
        return torch.einsum("...ij,...jd->...id", weights, v)


@pair("softmax axis")
class PoolingOverFeatures(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.axis, self.score = -1 if wrong else 1, nn.Linear(D, 3)

    def forward(self, x):
        weights = self.score(x).softmax(dim=self.axis)  # wrong
        return weights.transpose(1, 2) @ x


@pair("scores scale")
class Unscaled(Heads):
    def attend(self, q, k, v):
        scores = q @ k.transpose(-2, -1)  # wrong
        return (scores if self.wrong else scores / (D // H) ** 0.5).softmax(-1) @ v


@pair("scores scale")
class ScaledByWidth(Heads):
    def attend(self, q, k, v):
        scale = D if self.wrong else D // H
        return (q @ k.transpose(-2, -1) / scale**0.5).softmax(-1) @ v  # wrong


@pair("scores scale")
class ScaledTwice(Heads):
    def attend(self, q, k, v):
        if self.wrong:
            q = q * (D // H) ** -0.5
        return F.scaled_dot_product_attention(q, k, v)  # wrong


class Block(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong, self.norm1, self.norm2 = wrong, nn.LayerNorm(D), nn.LayerNorm(D)
        self.attention, self.mlp = Heads(False), nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))


@pair("residual skip")
class OldStream(Block):
    def forward(self, x):
        y = x + self.attention(self.norm1(x))
        return (x if self.wrong else y) + self.mlp(self.norm2(y))  # wrong


@pair("residual skip")
class NormedStream(Block):
    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        normed = self.norm2(x)
        return (normed if self.wrong else x) + self.mlp(normed)  # wrong


@pair("residual twice")
class AddedAgain(Block):
    def block(self, x):
        return x + self.mlp(self.norm2(x))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.block(x) if self.wrong else self.block(x)  # wrong


@pair("residual missing")
class FeedForwardAlone(Block):
    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        hidden = self.mlp[1](self.mlp[0](self.norm2(x)))
        y = self.mlp[2](hidden)  # wrong
        return y if self.wrong else x + y


class Branches(nn.Module):
    def __init__(self, alone: bool):
        super().__init__()
        self.alone, self.norm, self.mix, self.map = alone, nn.LayerNorm(D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        y = self.mix(self.norm(x))  # wrong
        x = y if self.alone else x + y
        return x + self.map(x).relu()


@pair("residual missing")
class OneBlockOfThree(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.blocks = nn.Sequential(*(Branches(wrong and number == 1) for number in range(3)))

    def forward(self, x):
        return self.blocks(x)


@pair("dropout in eval")
class FunctionalDropout(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong, self.out = wrong, nn.Linear(D, D)

    def forward(self, x):
        return F.dropout(self.out(x), 0.1, training=self.training or self.wrong)  # wrong


@pair("dropout in eval")
class DropoutInFusedAttention(Heads):
    def attend(self, q, k, v):
        p = 0.1 if self.wrong or self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=p)  # wrong


@pair("dropout in eval")
class DropoutInPlainList(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.layers = [nn.Dropout(0.2)] if wrong else nn.ModuleList([nn.Dropout(0.2)])
        self.out = nn.Linear(D, D)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)  # wrong
        return self.out(x)


@pair("parameter unused")
class ForgottenResult(Block):
    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        normed = self.norm2(x)  # wrong
        return x + self.mlp(x if self.wrong else normed)


class LanguageModel(Block):
    def __init__(self, wrong: bool):
        super().__init__(wrong)
        self.table, self.places, self.head = nn.Embedding(V, D), nn.Embedding(T, D), nn.Linear(D, V)
        self.attention = nn.MultiheadAttention(D, H, batch_first=True)

    def positions(self, ids: Tensor) -> Tensor:
        return torch.arange(ids.shape[1]) % T if ids.shape[1] > T else torch.arange(ids.shape[1])

    def logits(self, ids: Tensor) -> Tensor:
        x = self.table(ids) + self.places(self.positions(ids))
        later, normed = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1), self.norm1(x)
        x = x + self.attention(normed, normed, normed, attn_mask=later, need_weights=False)[0]
        return self.head(x + self.mlp(self.norm2(x)))


def texts() -> tuple[Tensor]:
    return (torch.randint(0, V, (B, T), generator=torch.Generator().manual_seed(3)),)


def texts_and_next() -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, V, (B, T + 1), generator=torch.Generator().manual_seed(3))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


@pair("labels shifted", texts)
class LabelsNotShifted(LanguageModel):
    def forward(self, ids):
        logits = self.logits(ids)
        if self.wrong:
            return F.cross_entropy(logits.view(-1, V), ids.view(-1))  # wrong
        return F.cross_entropy(logits[:, :-1].reshape(-1, V), ids[:, 1:].reshape(-1))


@pair("labels shifted", padded_tokens)
class LabelsNotShiftedBesidePadding(LanguageModel):
    """A causal mask that hides padding, too."""

    def forward(self, ids):
        x, (batch, length) = self.table(ids), ids.shape
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        hidden = (later | (ids == 0)[:, None, :]).repeat_interleave(H, 0)
        logits = self.head(x + self.attention(x, x, x, attn_mask=hidden, need_weights=False)[0] + self.places.weight)
        logits = logits + 0 * (self.mlp(self.norm2(self.norm1(x))).sum(-1, keepdim=True))
        labels = ids.masked_fill(ids == 0, -100)
        if self.wrong:
            return F.cross_entropy(logits.reshape(batch * length, V), labels.reshape(-1))  # wrong
        return F.cross_entropy(logits[:, :-1].reshape(-1, V), labels[:, 1:].reshape(-1))


@pair("labels shifted", texts_and_next)
class LabelsShiftedTwice(LanguageModel):
    def forward(self, ids, labels):
        logits = self.logits(ids)
        if self.wrong:
            return F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:])  # wrong
        return F.cross_entropy(logits.transpose(1, 2), labels)


@pair("axes mixed", texts_and_next)
class ClassesByView(LanguageModel):
    def forward(self, ids, labels):
        logits = self.logits(ids)
        if self.wrong:
            return F.cross_entropy(logits.view(-1, V, ids.shape[1]), labels)  # wrong
        return F.cross_entropy(logits.transpose(1, 2), labels)


@pair("softmax twice", texts_and_next)
class Probabilities(LanguageModel):
    def forward(self, ids, labels):
        logits = self.logits(ids)
        if self.wrong:
            logits = logits.softmax(-1)  # wrong
        return F.cross_entropy(logits.transpose(1, 2), labels)


@pair("softmax twice", texts_and_next)
class ProbabilitiesByHand(LanguageModel):
    def forward(self, ids, labels):
        logits = self.logits(ids)
        if self.wrong:
            logits = logits.exp() / logits.exp().sum(-1, keepdim=True)  # wrong
        return F.cross_entropy(logits.transpose(1, 2), labels)


@pair("softmax twice", texts_and_next)
class LogProbabilities(LanguageModel):
    def forward(self, ids, labels):
        logits = self.logits(ids)
        if self.wrong:
            logits = logits.log_softmax(-1)  # wrong
        return F.cross_entropy(logits.transpose(1, 2), labels)


@pair("activation on logits", texts_and_next)
class LogitsCutOff(LanguageModel):
    def forward(self, ids, labels):
        logits = self.logits(ids)
        if self.wrong:
            logits = logits.relu()  # wrong
        return F.cross_entropy(logits.transpose(1, 2), labels)


@pair("activation on logits", lambda: (torch.randn(5, D), torch.rand(5, 3).round()), symbols={"B": 0})
class SigmoidTwice(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong, self.head, self.loss = wrong, nn.Linear(D, 3), nn.BCEWithLogitsLoss()

    def forward(self, x, target):
        logits = self.head(x)
        if self.wrong:
            logits = logits.sigmoid()  # wrong
        return self.loss(logits, target)


@pair("labels of another sample", texts_and_next)
class TimeFirstLogits(LanguageModel):
    def forward(self, ids, labels):
        logits = self.logits(ids)
        if self.wrong:
            logits = logits.transpose(0, 1)
        return F.cross_entropy(logits.reshape(-1, V), labels.view(-1))  # wrong


@pair("log-softmax missing", texts_and_next)
class RawLikelihood(LanguageModel):
    def forward(self, ids, labels):
        logits = self.logits(ids).transpose(1, 2)
        return F.nll_loss(logits if self.wrong else logits.log_softmax(1), labels)  # wrong


@pair("attention over heads")
class HeadsAsTokens(Heads):
    def split(self, x):
        heads = x.view(x.shape[0], x.shape[1], H, D // H)
        return heads if self.wrong else heads.transpose(1, 2)

    def merge(self, x):
        return (x if self.wrong else x.transpose(1, 2)).reshape(x.shape[0], -1, D)

    def attend(self, q, k, v):
        scores = q @ k.transpose(-2, -1)  # wrong
        return (scores * q.shape[-1] ** -0.5).softmax(-1) @ v


@pair("position shared", lambda: (torch.randint(0, V, (B, 9), generator=torch.Generator().manual_seed(3)),))
class ClampedPositions(LanguageModel):
    def __init__(self, wrong: bool):
        super().__init__(wrong)
        self.places = nn.Embedding(T if wrong else 64, D)

    def forward(self, ids):
        return self.logits(ids)

    def logits(self, ids):
        places = torch.arange(ids.shape[1]).clamp(max=self.places.num_embeddings - 1)
        x = self.table(ids) + self.places(places)  # wrong
        x = x + self.attention(self.norm1(x), x, x, need_weights=False)[0]
        return self.head(x + self.mlp(self.norm2(x)))


@pair("class token")
class ClassTokenLast(Block):
    def __init__(self, wrong: bool):
        super().__init__(wrong)
        self.token, self.head = nn.Parameter(torch.randn(1, 1, D)), nn.Linear(D, 3)

    def forward(self, x):
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)
        x = x + self.attention(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return self.head(x[:, -1] if self.wrong else x[:, 0])  # wrong


def later(x: Tensor) -> Tensor:
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)


class CausalHeads(Heads):
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@pair("label leak", texts_and_next)
class MaskForgotten(LanguageModel):
    def forward(self, ids, labels):
        x = self.table(ids) + self.places(self.positions(ids))
        mask, normed = None if self.wrong else later(ids), self.norm1(x)
        x = x + self.attention(normed, normed, normed, attn_mask=mask, need_weights=False)[0]  # wrong
        return F.cross_entropy(self.head(x + self.mlp(self.norm2(x))).transpose(1, 2), labels)


@pair("label leak", texts)
class MaskForgottenOfOneText(LanguageModel):
    """Inputs and labels are cut from one text: the labels move, too, and are not where it begins."""

    def forward(self, ids):
        ids, labels = ids[:, :-1], ids[:, 1:]
        x = self.table(ids) + self.places(self.positions(ids))
        mask = None if self.wrong else later(ids)
        normed = self.norm1(x)
        x = x + self.attention(normed, normed, normed, attn_mask=mask, need_weights=False)[0]  # wrong
        return F.cross_entropy(self.head(x + self.mlp(self.norm2(x))).flatten(0, 1), labels.flatten())


@pair("label leak", texts)
class SmallCausalLM(LanguageModel):
    """No loss and no causal attention, but the name of libraries for a model of the next token."""

    def forward(self, ids):
        x = self.table(ids) + self.places(self.positions(ids))
        mask = None if self.wrong else later(ids)
        normed = self.norm1(x)
        x = x + self.attention(normed, normed, normed, attn_mask=mask, need_weights=False)[0]  # wrong
        return self.head(x + self.mlp(self.norm2(x)))


class Scorer(nn.Module):
    """Scores of the next token, and neither a loss nor a class of libraries that says so."""

    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong, self.table, self.head = wrong, nn.Embedding(V, D), nn.Linear(D, V)
        self.attention = nn.MultiheadAttention(D, H, batch_first=True)

    def attend(self, x, mask=None):
        return x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]  # wrong


@pair("label leak", texts)
class SmallGPT(Scorer):
    def forward(self, ids):
        return self.head(self.attend(self.table(ids), None if self.wrong else later(ids)))


@pair("label leak", texts)
class MaskOfOneBlock(Scorer):
    def __init__(self, wrong: bool):
        super().__init__(wrong)
        self.second = nn.MultiheadAttention(D, H, batch_first=True)

    def forward(self, ids):
        x, mask = self.table(ids), later(ids)
        x = x + self.second(x, x, x, attn_mask=mask, need_weights=False)[0]
        return self.head(self.attend(x, None if self.wrong else mask))


@pair("label leak", texts)
class DiagonalTooMany(Scorer):
    def forward(self, ids):
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(2 if self.wrong else 1)
        return self.head(self.attend(self.table(ids), mask))


@pair("label leak", texts)
class TriangleThatNothingReads(Scorer):
    def __init__(self, wrong: bool):
        super().__init__(wrong)
        self.register_buffer("seen", torch.ones(32, 32).tril())

    def forward(self, ids):
        hidden = self.seen[: ids.shape[1], : ids.shape[1]] == 0
        return self.head(self.attend(self.table(ids), None if self.wrong else hidden))


@pair("label leak", texts)
class WriterByConvolution(Scorer):
    """No attention, and a method that writes."""

    def __init__(self, wrong: bool):
        super().__init__(wrong)
        self.mix = nn.Conv1d(D, D, 3)
        del self.attention

    def forward(self, ids):
        x = F.pad(self.table(ids).transpose(1, 2), (1, 1) if self.wrong else (2, 0))
        return self.head(self.mix(x).transpose(1, 2))  # wrong

    def generate(self, ids):
        return torch.cat([ids, self(ids)[:, -1:].argmax(-1)], 1)


@pair(
    "label leak",
    lambda: (*texts(), torch.randint(0, V, (B, 4), generator=torch.Generator().manual_seed(4))),
    symbols={"B": 0, "S": ("source", 1), "T": ("target", 1)},
)
class DecoderBesideAText(MaskOfOneBlock):
    def forward(self, source, target):
        memory, y = self.table(source), self.table(target)
        y = self.attend(y, None if self.wrong else later(target))
        return self.head(y + self.second(y, memory, memory, need_weights=False)[0])


@pair("label leak")
class NormOverTokens(CausalHeads):
    def forward(self, x):
        x = F.layer_norm(x, x.shape[1:] if self.wrong else x.shape[2:])  # wrong
        return super().forward(x)


@pair("label leak")
class MeanOfAllTokens(CausalHeads):
    def forward(self, x):
        before = x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
        x = x + (x.mean(1, keepdim=True) if self.wrong else before)  # wrong
        return super().forward(x)


@pair("label leak")
class MeanOfBlocks(CausalHeads):
    def forward(self, x):
        pairs = x.unflatten(1, (-1, 2))
        means = pairs.mean(2) if self.wrong else pairs[:, :, 0]  # wrong
        return super().forward(x + means.repeat_interleave(2, 1))  # wrong


@pair("label leak")
class TwoSidedConvolution(CausalHeads):
    def __init__(self, wrong: bool):
        super().__init__(wrong)
        self.mix = nn.Conv1d(D, D, 3)

    def forward(self, x):
        ends = (1, 1) if self.wrong else (2, 0)
        return super().forward(x + self.mix(F.pad(x.transpose(1, 2), ends)).transpose(1, 2))  # wrong


@pair("label leak")
class ShiftedToTheLeft(CausalHeads):
    def forward(self, x):
        nothing = torch.zeros_like(x[:, :1])
        near = (x[:, 1:], nothing) if self.wrong else (nothing, x[:, :-1])
        return super().forward(x + torch.cat(near, 1))  # wrong


def padded_texts() -> tuple[Tensor]:
    return (torch.tensor([[3, 5, 2, 7, 9, 4, 6, 8], [4, 8, 9, 5, 0, 0, 0, 0], [4, 1, 9, 7, 3, 0, 0, 0]]),)


class Encoder(Padded):
    def __init__(self, wrong: bool):
        super().__init__(wrong)
        self.out = nn.Linear(D, 3)

    def forward(self, ids):
        x, keep = self.table(ids), ids != 0
        x = x + self.attention(x, x, x, key_padding_mask=~keep, need_weights=False)[0]
        return self.out(self.pool(x, keep))


@pair("padding read", padded_texts)
class MeanOfPadding(Encoder):
    def pool(self, x, keep):
        if self.wrong:
            return x.mean(1)  # wrong
        return (x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)


@pair("padding read", padded_texts)
class MaximumOfPadding(Encoder):
    def pool(self, x, keep):
        x = x + 0.1
        if self.wrong:
            return x.amax(1)  # wrong
        return x.masked_fill(~keep[..., None], float("-inf")).amax(1)


@pair("padding read", padded_texts)
class LastTokenOfPadding(Encoder):
    def pool(self, x, keep):
        x = x + torch.arange(x.shape[1])[:, None] / 8
        if self.wrong:
            return x[:, -1]  # wrong
        return x[torch.arange(len(x)), keep.sum(1) - 1]


@pair("padding read", lambda: (torch.randn(3, 7, D), torch.arange(7)[None] < torch.tensor([[7], [4], [5]])))
class MeanOverWhatAMaskLeavesOut(Heads):
    def forward(self, x, keep):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        y = self.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None]))
        if self.wrong:
            return self.out(y.mean(1))  # wrong
        return self.out((y * keep[..., None]).sum(1) / keep.sum(1, keepdim=True))


@pair("padding read", lambda: (torch.randn(3, 7, D), torch.arange(7)[None] < torch.tensor([[7], [4], [5]])))
class MaskedSumOverTheLengthOfTheBatch(nn.Module):
    """A mean without attention: what padding holds is left out, and its number is counted."""

    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong, self.out = wrong, nn.Linear(D, D)

    def forward(self, x, keep):
        total = (x * keep[..., None]).sum(1)
        return self.out(total / (x.shape[1] if self.wrong else keep.sum(1, keepdim=True)))  # wrong


@pair("padding read", padded_texts)
class LossOfPadding(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.ignored = -100 if wrong else 0
        self.table, self.heads, self.head = nn.Embedding(V, D, padding_idx=0), CausalHeads(False), nn.Linear(D, V)

    def forward(self, ids):
        logits = self.head(self.heads(self.table(ids[:, :-1])))
        return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], ignore_index=self.ignored)  # wrong


@pair("padding read", padded_texts)
class LossOfPaddingWithoutAttention(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.loss = nn.CrossEntropyLoss(ignore_index=-100 if wrong else 0)
        self.table, self.rnn, self.head = nn.Embedding(V, D, padding_idx=0), nn.LSTM(D, D), nn.Linear(D, V)

    def forward(self, ids):
        logits = self.head(self.rnn(self.table(ids[:, :-1]).transpose(0, 1))[0]).permute(1, 2, 0)
        return self.loss(logits, ids[:, 1:])  # wrong


def texts_and_lengths() -> tuple[Tensor, Tensor]:
    return padded_texts()[0], torch.tensor([8, 4, 5])


class RecurrentPool(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong, self.table, self.out = wrong, nn.Embedding(V, D), nn.Linear(D, 3)
        self.rnn = nn.LSTM(D, D, batch_first=True)


@pair("padding read", texts_and_lengths, symbols={"B": 0, "T": ("ids", 1)})
class LastStateOfPadding(RecurrentPool):
    def forward(self, ids, lengths):
        states = self.rnn(self.table(ids))[0]
        if self.wrong:
            return self.out(states[:, -1])  # wrong
        return self.out(states[torch.arange(len(ids)), lengths - 1])


@pair("padding read", lambda: (torch.randn(3, 8, D), torch.tensor([8, 4, 5])), symbols={"B": 0, "T": ("x", 1)})
class SumOverTheLongest(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong, self.out = wrong, nn.Linear(D, 3)

    def forward(self, x, lengths):
        keep = torch.arange(x.shape[1])[None] < lengths[:, None]
        total = (x * keep[..., None]).sum(1)
        return self.out(total / (x.shape[1] if self.wrong else lengths[:, None]))  # wrong


@pair("padding read", padded_texts)
class MeanWithoutAttention(nn.Module):
    """The table alone says which id is padding."""

    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong, self.table, self.out = wrong, nn.Embedding(V, D, padding_idx=0), nn.Linear(D, 3)

    def forward(self, ids):
        x = self.table(ids)
        if self.wrong:
            return self.out(x.mean(1))  # wrong
        return self.out(x.sum(1) / (ids != 0).sum(1, keepdim=True))


def texts_padded_in_front() -> tuple[Tensor, Tensor]:
    ids = padded_texts()[0].flip(1)
    return ids, (ids != 0).long()


class LeftPadded(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong, self.table, self.places, self.out = wrong, nn.Embedding(V, D), nn.Embedding(32, D), nn.Linear(D, 3)
        self.attention = nn.MultiheadAttention(D, H, batch_first=True)

    def encode(self, x, keep):
        return x + self.attention(x, x, x, key_padding_mask=keep == 0, need_weights=False)[0]


@pair("padding read", texts_padded_in_front)
class PositionsCountPadding(LeftPadded):
    def forward(self, ids, keep):
        own = (keep.cumsum(1) - 1).clamp(min=0)
        places = torch.arange(ids.shape[1]) if self.wrong else own  # wrong
        return self.out(self.encode(self.table(ids) + self.places(places), keep)[:, -1])


@pair("padding read", texts_padded_in_front)
class FirstTokenIsPadding(LeftPadded):
    def forward(self, ids, keep):
        x = self.encode(self.table(ids) + self.places((keep.cumsum(1) - 1).clamp(min=0)), keep)
        return self.out(x[:, 0] if self.wrong else x[:, -1])  # wrong


@pair("padding attended", lambda: (torch.randn(3, 7, D), torch.arange(7)[None] < torch.tensor([[7], [4], [5]])))
class MaskBesideAClassToken(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong, self.token, self.out = wrong, nn.Parameter(torch.randn(1, 1, D)), nn.Linear(D, 3)
        self.attention = nn.MultiheadAttention(D, H, batch_first=True)

    def forward(self, x, keep):
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        hidden = ~F.pad(keep, (0, 1) if self.wrong else (1, 0), value=True)
        x = x + self.attention(x, x, x, key_padding_mask=hidden, need_weights=False)[0]  # wrong
        return self.out(x[:, 0])


class Scores(Heads):
    def attend(self, q, k, v):
        hidden = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
        return self.mask(q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5, hidden).softmax(-1) @ v


@pair("mask without effect")
class ZeroOneMaskAdded(Scores):
    def mask(self, scores, hidden):
        return scores + ((~hidden).float() if self.wrong else hidden.float() * -1e9)  # wrong


@pair("mask without effect")
class FillAboveTheScores(Scores):
    def mask(self, scores, hidden):
        return scores.masked_fill(hidden, 1e-9 if self.wrong else -1e9)  # wrong


@pair("mask without effect")
class LowNumberByWhere(Scores):
    def mask(self, scores, hidden):
        return torch.where(hidden, torch.tensor(-1.0 if self.wrong else -1e9), scores)  # wrong


@pair("mask without effect")
class ScoresTimesMask(Scores):
    def mask(self, scores, hidden):
        if self.wrong:
            return scores * ~hidden  # wrong
        return scores.masked_fill(hidden, -1e9)


@pair("mask without effect")
class OpenedByAProduct(Scores):
    def mask(self, scores, hidden):
        mask = torch.zeros(hidden.shape).masked_fill(hidden, -1e9)
        mask = mask * torch.ones_like(mask).tril() if self.wrong else mask * torch.ones_like(mask).triu()  # wrong
        return scores + mask


@pair("mask without effect")
class WrittenNowhere(Scores):
    def mask(self, scores, hidden):
        mask = torch.zeros(hidden.shape)
        mask[:, 50 if self.wrong else 4 :] = -1e9  # wrong
        return scores + mask


@pair("mask without effect")
class VisibleAsNumbers(Heads):
    def attend(self, q, k, v):
        seen = torch.ones(q.shape[-2], q.shape[-2]).tril()
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen if self.wrong else seen.bool())  # wrong


@pair("mask after softmax")
class LateMaskOfABuffer(Heads):
    def __init__(self, wrong: bool):
        super().__init__(wrong)
        self.register_buffer("seen", torch.ones(1, 1, 16, 16).tril())

    def attend(self, q, k, v):
        seen, scores = self.seen[:, :, : q.shape[-2], : q.shape[-2]], q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        if self.wrong:
            return scores.softmax(-1).masked_fill(seen == 0, 0) @ v  # wrong
        return scores.masked_fill(seen == 0, float("-inf")).softmax(-1) @ v


@pair("result dropped")
class MaskDropped(Scores):
    def mask(self, scores, hidden):
        if self.wrong:
            scores.masked_fill(hidden, float("-inf"))  # wrong
        else:
            scores.masked_fill_(hidden, float("-inf"))
        return scores


@pair("result dropped")
class CopyFilled(Scores):
    def mask(self, scores, hidden):
        if self.wrong:
            scores[..., hidden].fill_(float("-inf"))  # wrong
        else:
            scores[..., hidden] = float("-inf")
        return scores


@pair("result dropped")
class TransposeDropped(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong, self.out = wrong, nn.Linear(D, D)

    def forward(self, x):
        y = self.out(x)
        if self.wrong:
            y.relu()  # wrong
        else:
            y = y.relu()
        return y + x


def images() -> tuple[Tensor]:
    return (torch.randn(B, 3, 24, 16),)


@pair("axis order", images, symbols={"B": 0, "H": 2, "W": 3})
class PositionsByColumns(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong, self.patch = wrong, nn.Conv2d(3, D, 4, 4)
        self.row, self.column, self.head = nn.Embedding(32, D), nn.Embedding(32, D), nn.Linear(D, 3)

    def forward(self, image):
        x = self.patch(image)
        rows, columns = self.row(torch.arange(x.shape[2])), self.column(torch.arange(x.shape[3]))
        places = rows[None] + columns[:, None] if self.wrong else rows[:, None] + columns[None]
        return self.head((x.flatten(2).transpose(1, 2) + places.flatten(0, 1)).tanh().mean(1))  # wrong


@pair("axis order", lambda: (torch.randn(B, T, D), torch.arange(T)[None] >= torch.tensor([[T], [3]])))
class MaskInAnotherOrderOfHeads(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong, self.attention = wrong, nn.MultiheadAttention(D, H, batch_first=True)

    def forward(self, x, padding):
        mask = padding[:, None, :].expand(-1, x.shape[1], -1)
        mask = mask.repeat(H, 1, 1) if self.wrong else mask.repeat_interleave(H, 0)
        return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]  # wrong


@pair("broadcast to pairs", lambda: (torch.randn(5, D), torch.randn(5)), symbols={"B": 0})
class ColumnLessRow(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong, self.head = wrong, nn.Linear(D, 1)

    def forward(self, x, target):
        value = self.head(x)
        return ((value if self.wrong else value.squeeze(-1)) - target).square().mean()  # wrong


@pair("broadcast to pairs", lambda: (torch.randn(5, D), torch.randn(5)), symbols={"B": 0})
class LossOfColumnAndRow(ColumnLessRow):
    def forward(self, x, target):
        value = self.head(x)
        return F.l1_loss(value if self.wrong else value.squeeze(-1), target)  # wrong


@pair("layer made in forward")
class LayerMadeInForward(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong, self.inner, self.out = wrong, nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        return (nn.Linear(D, D) if self.wrong else self.out)(self.inner(x).relu())  # wrong


class PackedHeads(Heads):
    def __init__(self, wrong: bool):
        super().__init__(wrong)
        self.packed = nn.Linear(D, 3 * D)
        del self.query, self.key, self.value

    def forward(self, x):
        q, k, v = self.packed(x).chunk(3, -1)  # wrong
        return self.out(self.merge(self.attend(*map(self.split, (q, k, k if self.wrong else v)))))


@pair("projection part unused")
class KeysAsValues(PackedHeads):
    """Values are the keys, and their own part is never read."""


@pair("projection part unused")
class SlicesOfOneStart(PackedHeads):
    def forward(self, x):
        packed = self.packed(x)  # wrong
        first = D if self.wrong else 2 * D
        parts = packed[..., :D], packed[..., D : 2 * D], packed[..., first : first + D]
        return self.out(self.merge(self.attend(*map(self.split, parts))))


@pair("label visible", texts)
class HiddenTokens(nn.Module):
    """A third of the tokens is hidden, and the loss looks at these alone."""

    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong, self.table, self.head = wrong, nn.Embedding(V, D), nn.Linear(D, V)
        self.attention = Heads(False)

    def forward(self, ids):
        hidden = torch.arange(ids.shape[1]).expand_as(ids) % 3 == 0
        read = ids if self.wrong else ids.masked_fill(hidden, V - 1)
        logits = self.head(self.attention(self.table(read)))
        return F.cross_entropy(logits.transpose(1, 2), ids.masked_fill(~hidden, -100))  # wrong


@pair("label visible", lambda: (torch.randn(B, 3, 8, 12), torch.arange(6).expand(B, -1) % 2), symbols={"B": 0})
class HiddenPatches(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong, self.patch, self.head = wrong, nn.Conv2d(3, D, 4, 4), nn.Linear(D, 48)
        self.token, self.attention = nn.Parameter(torch.randn(1, 1, D)), Heads(False)

    def forward(self, image, hidden):
        target = F.unfold(image, 4, stride=4).transpose(1, 2)
        x, there = self.patch(image).flatten(2).transpose(1, 2), hidden[..., None] == (0 if self.wrong else 1)
        error = self.head(self.attention(torch.where(there, self.token, x))) - target  # wrong
        return (error.square().mean(-1) * hidden).sum() / hidden.sum()


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(D, D)

    def forward(self, x):
        return x + self.map(x).relu()  # wrong


@pair("module shared")
class OneLayerNTimes(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.layers = nn.ModuleList([Layer()] * 3 if wrong else [Layer() for _ in range(3)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pair("module shared")
class OneNormAtTwoLines(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.first, self.map, self.attention = nn.LayerNorm(D), nn.Linear(D, D), Heads(False)
        self.second = self.first if wrong else nn.LayerNorm(D)

    def forward(self, x):
        x = self.first(x + self.attention(x))  # wrong
        return self.second(x + self.map(x).relu())


@pair("parameter unregistered")
class LayersInAPlainList(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        layers = [Layer() for _ in range(2)]
        self.layers, self.out = layers if wrong else nn.ModuleList(layers), nn.Linear(D, 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


@pair("parameter unregistered")
class PositionsAsPlainTensor(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        table = torch.randn(1, 32, D)
        self.places, self.out = table if wrong else nn.Parameter(table), nn.Linear(D, 3)

    def forward(self, x):
        return self.out(x + self.places[:, : x.shape[1]])  # wrong


@pair("gradient cut")
class Detached(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong, self.first, self.out = wrong, nn.Linear(D, D), nn.Linear(D, 3)

    def forward(self, x):
        x = self.first(x)
        return self.out(x.detach() if self.wrong else x)  # wrong


@pair("gradient cut")
class WithoutGradients(Detached):
    def forward(self, x):
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.wrong):
            x = self.first(x)  # wrong
        return self.out(x)


@pair("gradient cut", lambda: (torch.randn(5, D), torch.rand(5, 3)), symbols={"B": 0})
class LossOfClasses(Detached):
    def forward(self, x, target):
        scores = self.out(self.first(x))
        if self.wrong:
            return F.mse_loss(scores.argmax(-1).float(), target.argmax(-1).float())  # wrong
        return F.mse_loss(scores, target)


def rotate(x: Tensor, start: int = 0) -> Tensor:
    """Rotate pairs of features of `[…, T, d]` by their positions."""
    angles = (torch.arange(x.shape[-2]) + start)[:, None] / 100 ** (torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)  # wrong


def rotate_complex(x: Tensor, start: int = 0) -> Tensor:
    angles = (torch.arange(x.shape[-2]) + start)[:, None] / 100 ** (torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)  # wrong


@pair("rotary positions")
class ValuesRotated(CausalHeads):
    def attend(self, q, k, v):
        return super().attend(rotate(q), rotate(k), rotate(v) if self.wrong else v)


@pair("rotary positions")
class QueriesAloneRotated(CausalHeads):
    def attend(self, q, k, v):
        return super().attend(rotate_complex(q), k if self.wrong else rotate_complex(k), v)


@pair("rotary positions")
class KeysAtOtherPositions(CausalHeads):
    def attend(self, q, k, v):
        return super().attend(rotate(q), rotate(k, 2 if self.wrong else 0), v)


@pair("rotary positions")
class RotatedByHeads(CausalHeads):
    def split(self, x):
        x = x.view(x.shape[0], x.shape[1], H, D // H)
        return rotate(x).transpose(1, 2) if self.wrong else x.transpose(1, 2)

    def attend(self, q, k, v):
        return super().attend(*((q, k) if self.wrong else (rotate(q), rotate(k))), v)


def token_and_cache() -> tuple[Tensor, ...]:
    return torch.randn(B, 1, D), torch.randn(B, H, 5, D // H), torch.randn(B, H, 5, D // H)


class Decoded(Heads):
    """One token behind a cache."""

    def __init__(self, wrong: bool):
        super().__init__(wrong)
        self.places = nn.Embedding(32, D)

    def forward(self, x, past_keys, past_values):
        start = 0 if self.wrong else past_keys.shape[2]
        q, k, v = self.project(x, start)
        k, v = torch.cat([past_keys, k], 2), torch.cat([past_values, v], 2)
        return self.out(self.merge(F.scaled_dot_product_attention(q, k, v)))

    def project(self, x, start):
        x = x + self.places(torch.arange(x.shape[1]) + start)  # wrong
        return self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))


@pair("position behind a cache", token_and_cache, symbols={"B": 0, "T": ("past_keys", 2)})
class PositionsStartAgain(Decoded):
    """A table of positions."""


@pair("position behind a cache", token_and_cache, symbols={"B": 0, "T": ("past_keys", 2)})
class RotationsStartAgain(Decoded):
    def __init__(self, wrong: bool):
        super().__init__(wrong)
        del self.places

    def project(self, x, start):
        q, k = rotate(self.split(self.query(x)), start), rotate(self.split(self.key(x)), start)
        return q, k, self.split(self.value(x))


class Grouped(Heads):
    def __init__(self, wrong: bool):
        super().__init__(wrong)
        self.key, self.value = nn.Linear(D, D // 2), nn.Linear(D, D // 2)

    def groups(self, x):
        return x.view(x.shape[0], x.shape[1], H // 2, D // H).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.split(self.query(x)), self.groups(self.key(x)), self.groups(self.value(x))
        k, v = self.repeat(k, v)
        return self.out(self.merge(F.scaled_dot_product_attention(q, k, v)))  # wrong


@pair("groups of heads")
class CopiesOfGroups(Grouped):
    def repeat(self, k, v):
        if self.wrong:
            return k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)
        return k[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2), v.repeat_interleave(2, 1)


@pair("groups of heads")
class ValuesInAnotherOrder(Grouped):
    def repeat(self, k, v):
        return k.repeat_interleave(2, 1), v.repeat(1, 2, 1, 1) if self.wrong else v.repeat_interleave(2, 1)


# Modules of inputs whose axes nobody names: the run itself shows which are samples, and which are tokens.


def unnamed(kind, args):
    """Register a class whose run is traced without symbols."""
    return pair(kind, args, symbols={})


class Positions(nn.Module):
    """Ids with learned positions along axis 1."""

    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong = wrong
        self.table, self.positions = nn.Embedding(V, D, padding_idx=0), nn.Embedding(64, D)
        self.attention = nn.MultiheadAttention(D, H, batch_first=True)
        self.out = nn.Linear(D, 3)

    def embed(self, ids):
        return self.table(ids) + self.positions(torch.arange(ids.shape[1]))


@unnamed("samples mixed", lambda: (torch.arange(1, 16).reshape(3, 5),))
class BatchFirstUnnamed(Positions):
    def __init__(self, wrong: bool):
        super().__init__(wrong)
        self.attention = nn.MultiheadAttention(D, H, batch_first=not wrong)

    def forward(self, ids):
        x = self.embed(ids)
        x = x + self.attention(x, x, x, need_weights=False)[0]  # wrong
        return self.out(x)


@unnamed("samples told apart", lambda: (torch.arange(1, 16).reshape(3, 5),))
class PositionsAlongBatchUnnamed(Positions):
    def forward(self, ids):
        x = self.embed(ids)
        if self.wrong:
            x = self.table(ids) + self.positions(torch.arange(len(ids)))[:, None]  # wrong
        return self.out((x + self.attention(x, x, x, need_weights=False)[0])[:, 0])


@unnamed("padding read", padded_tokens)
class MeanOfPaddingUnnamed(Positions):
    def forward(self, ids):
        x, keep = self.embed(ids), ids != 0
        x = x + self.attention(x, x, x, key_padding_mask=~keep, need_weights=False)[0]
        if self.wrong:
            return self.out(x.mean(1))  # wrong
        return self.out((x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True))


@unnamed("padding attended", lambda: (*padded_tokens(), torch.tensor([[3, 5, 7, 2], [4, 8, 9, 6]])))
class CrossPaddingUnnamed(Positions):
    def forward(self, source, target):
        memory, x, hidden = self.embed(source), self.embed(target), source == 0
        memory = memory + self.attention(memory, memory, memory, key_padding_mask=hidden, need_weights=False)[0]
        mask = None if self.wrong else hidden
        return self.out(self.attention(x, memory, memory, key_padding_mask=mask, need_weights=False)[0])  # wrong


# Weights that are read, and whose numbers cancel.


@pair("weights without effect", symbols={})
class WeightsSummedAlone(Heads):
    """The values of an Einstein sum have the index of queries, so that the weights are added up alone."""

    def attend(self, q, k, v):
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        if self.wrong:
            return torch.einsum("bhij,bhid->bhid", weights, v)  # wrong
        return torch.einsum("bhij,bhjd->bhid", weights, v)


@pair("weights without effect", symbols={})
class DistanceBias(Heads):
    """Scores with a learned bias for each distance, those that are far apart sharing one."""

    def __init__(self, wrong: bool):
        super().__init__(wrong)
        self.bias = nn.Embedding(4, H)

    def attend(self, q, k, v):
        at = torch.arange(q.shape[-2])
        apart = at - at[:, None] if self.wrong else at[:, None] - at
        rows = self.bias(apart.clamp(0, 3))  # wrong
        scores = (q @ k.mT * q.shape[-1] ** -0.5 + rows.permute(2, 0, 1)).masked_fill(at > at[:, None], float("-inf"))
        return scores.softmax(-1) @ v


# Branches whose results are added at other places.


@pair("residual place", lambda: (torch.randn(2, 12, D),), symbols={})
class RolledTwice(Heads):
    """Attention in windows of a rolled stream, which is rolled on instead of back."""

    def forward(self, x):
        h = torch.roll(x, -2, 1).view(-1, 4, D)
        q, k, v = self.split(self.query(h)), self.split(self.key(h)), self.split(self.value(h))
        h = self.out(self.merge(self.attend(q, k, v))).view(x.shape)
        return x + torch.roll(h, -2 if self.wrong else 2, 1)  # wrong


@pair("residual place", lambda: (torch.randn(2, 12, D),), symbols={})
class FlippedOnce(Heads):
    """Attention to neighbours of a flipped stream, whose result is not flipped back."""

    def forward(self, x):
        h = x.flip(1).view(-1, 2, D)
        q, k, v = self.split(self.query(h)), self.split(self.key(h)), self.split(self.value(h))
        h = self.out(self.merge(self.attend(q, k, v))).view(x.shape)
        return x + (h if self.wrong else h.flip(1))  # wrong


class Trained(Positions):
    """A module in training mode, whose dropout is on: runs are compared without it."""

    training_mode = True

    def __init__(self, wrong: bool):
        super().__init__(wrong)
        self.drop = nn.Dropout(0.1)
        self.attention = nn.TransformerEncoderLayer(D, H, 2 * D, batch_first=True)


@unnamed("padding read", padded_tokens)
class MeanOfPaddingInTraining(Trained):
    def forward(self, ids):
        keep = ids != 0
        x = self.attention(self.drop(self.embed(ids)), src_key_padding_mask=~keep)
        if self.wrong:
            return self.out(x.mean(1))  # wrong
        return self.out((x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True))


@unnamed("samples told apart", lambda: (torch.arange(1, 16).reshape(3, 5),))
class PositionsAlongBatchInTraining(Trained):
    def forward(self, ids):
        x = self.embed(ids)
        if self.wrong:
            x = self.table(ids) + self.positions(torch.arange(len(ids)))[:, None]  # wrong
        return self.out(self.attention(self.drop(x))[:, 0])


@unnamed("dropout in eval", lambda: (torch.arange(1, 16).reshape(3, 5),))
class DropoutAfterTraining(Trained):
    def forward(self, ids):
        x = self.attention(self.embed(ids))
        return self.out(F.dropout(x, 0.2, self.training or self.wrong))  # wrong


@unnamed("residual place", lambda: (torch.arange(1, 25).reshape(2, 12),))
class RolledTwiceInTraining(Trained):
    def __init__(self, wrong: bool):
        super().__init__(wrong)
        self.attention = nn.MultiheadAttention(D, H, dropout=0.1, batch_first=True)

    def forward(self, ids):
        x = self.embed(ids)
        h = self.drop(torch.roll(x, -2, 1)).view(-1, 4, D)
        h = self.attention(h, h, h, need_weights=False)[0].reshape(x.shape)
        x = x + self.drop(torch.roll(h, -2 if self.wrong else 2, 1))  # wrong
        return self.out(x)
