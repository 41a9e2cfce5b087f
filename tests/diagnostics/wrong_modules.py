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
