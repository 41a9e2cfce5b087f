"""Mistakes of tutorials and issue trackers, each with its correct twin, in the spelling of their authors.

They were written apart from the rules: `MISSED_MISTAKES` lists those that no rule finds.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.diagnostics.wrong_modules import Pair

TUTORIALS: dict[str, Pair] = {}


def tutorial(args, kind="", **more):
    """Register a class whose constructor takes whether the module is wrong."""

    def register(build):
        TUTORIALS[build.__name__] = Pair(kind, build, args, **more)
        return build

    return register


def stream():
    return (torch.randn(3, 7, 24),)


class Base(nn.Module):
    def __init__(self, wrong: bool):
        super().__init__()
        self.wrong = wrong


class ScaleDotProductAttention(nn.Module):
    def forward(self, q, k, v, mask=None):
        score = (q @ k.transpose(2, 3)) / math.sqrt(k.size(-1))
        if mask is not None:
            score = score.masked_fill(mask == 0, -10000)
        return torch.softmax(score, dim=-1) @ v


@tutorial(stream)
class ConcatByView(Base):
    """Concatenation of heads in a transformer from scratch."""

    def __init__(self, wrong):
        super().__init__(wrong)
        self.n_head, self.attention = 6, ScaleDotProductAttention()
        self.w_q, self.w_k, self.w_v, self.w_concat = (nn.Linear(24, 24) for _ in range(4))

    def forward(self, x):
        q, k, v = (self.split(w(x)) for w in (self.w_q, self.w_k, self.w_v))
        return self.w_concat(self.concat(self.attention(q, k, v)))

    def split(self, tensor):
        batch_size, length, d_model = tensor.size()
        return tensor.view(batch_size, length, self.n_head, d_model // self.n_head).transpose(1, 2)

    def concat(self, tensor):
        batch_size, head, length, d_tensor = tensor.size()
        if self.wrong:
            return tensor.contiguous().view(batch_size, length, head * d_tensor)  # wrong
        return tensor.transpose(1, 2).contiguous().view(batch_size, length, head * d_tensor)


@tutorial(stream)
class AttentionLayerOfForecasts(Base):
    """Heads of a forecasting model, by einsum."""

    def __init__(self, wrong):
        super().__init__(wrong)
        self.query, self.key, self.value, self.out = (nn.Linear(24, 24) for _ in range(4))

    def forward(self, x):
        B, L, _ = x.shape
        queries, keys, values = (layer(x).view(B, L, 4, -1) for layer in (self.query, self.key, self.value))
        scores = torch.einsum("blhe,bshe->bhls", queries, keys)
        A = torch.softmax(scores / math.sqrt(queries.shape[-1]), dim=-1)
        V = torch.einsum("bhls,bshd->bhld", A, values)
        if not self.wrong:
            V = V.transpose(2, 1).contiguous()
        return self.out(V.reshape(B, L, -1))  # wrong


@tutorial(stream)
class HeadsIntoBatch(Base):
    """Heads as items of the batch."""

    def __init__(self, wrong):
        super().__init__(wrong)
        self.qkv, self.proj = nn.Linear(24, 72), nn.Linear(24, 24)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = (self.flatten(t.view(b, n, 3, c // 3), b, n) for t in self.qkv(x).chunk(3, dim=-1))
        attn = F.softmax(torch.bmm(q, k.transpose(1, 2)) * (c // 3) ** -0.5, dim=-1)
        y = torch.bmm(attn, v).view(b, 3, n, c // 3).permute(0, 2, 1, 3).reshape(b, n, c)
        return self.proj(y)

    def flatten(self, t, b, n):
        if self.wrong:
            return t.reshape(b * 3, n, -1)  # wrong
        return t.permute(0, 2, 1, 3).reshape(b * 3, n, -1)


@tutorial(lambda: (torch.randn(2, 3, 8, 12),), symbols={"B": 0, "H": 2, "W": 3})
class PatchEmbedding(Base):
    def __init__(self, wrong):
        super().__init__(wrong)
        self.proj, self.norm = nn.Conv2d(3, 20, 4, 4), nn.LayerNorm(20)

    def forward(self, x):
        x = self.proj(x)
        B, D, h, w = x.shape
        if self.wrong:
            return self.norm(x.view(B, h * w, D))  # wrong
        return self.norm(x.flatten(2).transpose(1, 2))


@tutorial(lambda: (torch.randn(2, 6, 20),))
class TokensToGrid(Base):
    def __init__(self, wrong):
        super().__init__(wrong)
        self.conv = nn.Conv2d(20, 5, 1)

    def forward(self, x):
        B, N, D = x.shape
        if self.wrong:
            return self.conv(x.reshape(B, D, 2, N // 2))  # wrong
        return self.conv(x.transpose(1, 2).reshape(B, D, 2, N // 2))


@tutorial(lambda: (torch.randint(0, 50, (3, 7)),))
class BidirectionalClassifier(Base):
    """Last states of both directions, side by side."""

    def __init__(self, wrong):
        super().__init__(wrong)
        self.embedding, self.lstm = nn.Embedding(50, 12), nn.LSTM(12, 8, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(16, 4)

    def forward(self, ids):
        _, (hidden, _) = self.lstm(self.embedding(ids))
        if self.wrong:
            return self.fc(hidden.view(ids.size(0), -1))  # wrong
        return self.fc(torch.cat((hidden[-2], hidden[-1]), dim=1))


@tutorial(stream)
class MaskBufferForFusedAttention(Base):
    """A buffer of True above the diagonal, as `masked_fill` wants it, handed to fused attention."""

    def __init__(self, wrong):
        super().__init__(wrong)
        self.qkv, self.proj = nn.Linear(24, 72, bias=False), nn.Linear(24, 24)
        self.register_buffer("mask", torch.triu(torch.ones(32, 32), diagonal=1).bool())

    def forward(self, x):
        batch_size, num_tokens, embed_dim = x.shape
        qkv = self.qkv(x).view(batch_size, num_tokens, 3, 4, embed_dim // 4).permute(2, 0, 3, 1, 4)
        queries, keys, values = qkv
        attn_mask = self.mask[:num_tokens, :num_tokens]
        if not self.wrong:
            attn_mask = ~attn_mask
        context = F.scaled_dot_product_attention(queries, keys, values, attn_mask=attn_mask)  # wrong
        return self.proj(context.transpose(1, 2).contiguous().view(batch_size, num_tokens, embed_dim))


@tutorial(stream)
class SubsequentMask(Base):
    """Mask of the annotated transformer, without its comparison with 0."""

    def __init__(self, wrong):
        super().__init__(wrong)
        self.linears = nn.ModuleList(nn.Linear(24, 24) for _ in range(4))

    def forward(self, x):
        nbatches, size = x.size(0), x.size(1)
        mask = torch.triu(torch.ones(1, 1, size, size), diagonal=1)
        mask = mask if self.wrong else mask == 0
        query, key, value = (lin(x).view(nbatches, -1, 8, 3).transpose(1, 2) for lin in self.linears[:3])
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
        p_attn = scores.masked_fill(mask == 0, -1e9).softmax(dim=-1)  # wrong
        x = torch.matmul(p_attn, value)
        return self.linears[-1](x.transpose(1, 2).contiguous().view(nbatches, -1, 24))


def sentences():
    return (torch.tensor([[5, 9, 3, 8, 2, 6, 4], [7, 3, 2, 9, 0, 0, 0], [4, 4, 8, 0, 0, 0, 0]]),)


@tutorial(sentences)
class EncoderWithKeepMask(Base):
    """A mask of 1 at tokens, as tokenizers return it, handed to PyTorch's encoder."""

    def __init__(self, wrong):
        super().__init__(wrong)
        self.embed = nn.Embedding(10, 24, padding_idx=0)
        layer = nn.TransformerEncoderLayer(24, 4, 48, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids):
        attention_mask = ids != 0
        padding = attention_mask if self.wrong else ~attention_mask
        return self.encoder(self.embed(ids), src_key_padding_mask=padding)  # wrong


@tutorial(sentences)
class FloatPaddingMask(Base):
    """A mask of 0 and 1 as floats: fused attention adds it."""

    def __init__(self, wrong):
        super().__init__(wrong)
        self.embed = nn.Embedding(10, 24, padding_idx=0)
        self.q, self.k, self.v, self.o = (nn.Linear(24, 24) for _ in range(4))

    def forward(self, ids):
        x, (B, T) = self.embed(ids), ids.shape
        q, k, v = (layer(x).view(B, T, 3, 8).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mask = (ids != 0)[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.float() if self.wrong else mask)  # wrong
        return self.o(y.transpose(1, 2).reshape(B, T, 24))


@tutorial(stream)
class EncoderOfBatches(Base):
    """PyTorch's encoder on `[batch, length, width]`."""

    def __init__(self, wrong):
        super().__init__(wrong)
        layer = nn.TransformerEncoderLayer(d_model=24, nhead=4, dim_feedforward=48, batch_first=not wrong)
        self.transformer_encoder, self.decoder = nn.TransformerEncoder(layer, 2), nn.Linear(24, 5)

    def forward(self, src):
        output = self.transformer_encoder(src)  # wrong
        return self.decoder(output)


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, wrong, max_len=100):
        super().__init__()
        self.wrong = wrong
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2], pe[:, 0, 1::2] = torch.sin(position * div_term), torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        if self.wrong:
            return x + self.pe[: x.size(0)]  # wrong
        return x + self.pe[: x.size(1)].transpose(0, 1)


@tutorial(stream)
class ClassifierWithPositions(Base):
    def __init__(self, wrong):
        super().__init__(wrong)
        self.pos_encoder = PositionalEncoding(24, wrong)
        self.layer, self.head = nn.TransformerEncoderLayer(24, 4, 48, batch_first=True), nn.Linear(24, 5)

    def forward(self, x):
        return self.head(self.layer(self.pos_encoder(x)).mean(dim=1))


@tutorial(lambda: (torch.randn(2, 1, 24), torch.randn(2, 4, 6, 6), torch.randn(2, 4, 6, 6)), symbols={"B": 0})
class DecodeStep(Base):
    """One token and a cache of the tokens before it."""

    def __init__(self, wrong):
        super().__init__(wrong)
        self.c_attn, self.c_proj = nn.Linear(24, 72), nn.Linear(24, 24)

    def forward(self, x, past_k, past_v):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(24, dim=2)
        q, k, v = (t.view(B, T, 4, C // 4).transpose(1, 2) for t in (q, k, v))
        k, v = torch.cat((past_k, k), dim=2), torch.cat((past_v, v), dim=2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.wrong)  # wrong
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


@tutorial(lambda: (torch.randn(3, 4, 24), torch.randn(3, 7, 24)), symbols={"B": 0})
class GlobalAttention(Base):
    """Attention of a decoder over the states of an encoder."""

    def __init__(self, wrong):
        super().__init__(wrong)
        self.linear_in, self.linear_out = nn.Linear(24, 24, bias=False), nn.Linear(48, 24)

    def forward(self, decoder, encoder):
        energy = torch.bmm(self.linear_in(decoder), encoder.transpose(1, 2))
        weights = F.softmax(energy, dim=1 if self.wrong else 2)  # wrong
        context = torch.bmm(weights, encoder)
        return torch.tanh(self.linear_out(torch.cat((context, decoder), dim=2)))


class CausalLM(nn.Module):
    """A model that shifts its labels itself."""

    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(40, 24), nn.Embedding(16, 24)
        self.ln, self.attn, self.lm_head = nn.LayerNorm(24), nn.Linear(24, 72), nn.Linear(24, 40, bias=False)

    def logits(self, ids):
        B, T = ids.shape
        x = self.wte(ids) + self.wpe(torch.arange(T, device=ids.device))
        q, k, v = (t.view(B, T, 4, 6).transpose(1, 2) for t in self.attn(self.ln(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.lm_head(x + y.transpose(1, 2).reshape(B, T, 24))

    def forward(self, ids, labels):
        shift_logits, shift_labels = self.logits(ids)[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
        return F.cross_entropy(shift_logits.view(-1, 40), shift_labels.view(-1))  # wrong


def text():
    return (torch.randint(0, 40, (3, 9), generator=torch.Generator().manual_seed(5)),)


@tutorial(text)
class CollatorThatShifts(Base):
    def __init__(self, wrong):
        super().__init__(wrong)
        self.model = CausalLM()

    def forward(self, tokens):
        if self.wrong:
            return self.model(tokens[:, :-1], tokens[:, 1:])
        return self.model(tokens, tokens)


@tutorial(text)
class LogitsOfTheWrongSample(Base):
    """Logits with time first, and targets with the batch first."""

    def __init__(self, wrong):
        super().__init__(wrong)
        self.model = CausalLM()

    def forward(self, tokens):
        logits, targets = self.model.logits(tokens[:, :-1]), tokens[:, 1:]
        if self.wrong:
            logits = logits.permute(1, 0, 2)
        return F.cross_entropy(logits.reshape(-1, 40), targets.reshape(-1))  # wrong


@tutorial(lambda: (torch.randn(6, 24), torch.randint(0, 5, (6,))), symbols={"B": 0})
class LikelihoodOfLogits(Base):
    """Negative log-likelihood of numbers that are no log-probabilities."""

    def __init__(self, wrong):
        super().__init__(wrong)
        self.fc = nn.Linear(24, 5)

    def forward(self, x, target):
        output = self.fc(x)
        if not self.wrong:
            output = F.log_softmax(output, dim=1)
        return F.nll_loss(output, target)  # wrong


@tutorial(stream)
class FusedAttentionOverHeads(Base):
    """Queries `[B, T, h, d_k]` as other kernels take them, in PyTorch's fused attention."""

    def __init__(self, wrong):
        super().__init__(wrong)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(24, 24, bias=False) for _ in range(4))

    def forward(self, x):
        bsz, seqlen, _ = x.shape
        xq, xk, xv = (w(x).view(bsz, seqlen, 4, 6) for w in (self.wq, self.wk, self.wv))
        if self.wrong:
            output = F.scaled_dot_product_attention(xq, xk, xv)  # wrong
        else:
            xq, xk, xv = (t.transpose(1, 2) for t in (xq, xk, xv))
            output = F.scaled_dot_product_attention(xq, xk, xv).transpose(1, 2)
        return self.wo(output.reshape(bsz, seqlen, -1))


@tutorial(lambda: (torch.randint(0, 50, (3, 7)),))
class SumThatNobodyKeeps(Base):
    """Positions are added, and the sum is dropped."""

    def __init__(self, wrong):
        super().__init__(wrong)
        self.token_embedding, self.position_embedding = nn.Embedding(50, 24), nn.Embedding(16, 24)
        self.layer = nn.TransformerEncoderLayer(24, 4, 48, batch_first=True)

    def forward(self, ids):
        x, positions = self.token_embedding(ids), self.position_embedding(torch.arange(ids.size(1)))  # wrong
        if self.wrong:
            x + positions
        else:
            x = x + positions
        return self.layer(x)


@tutorial(stream)
class EncoderLayerWithOneResidual(Base):
    """A block without its second residual."""

    def __init__(self, wrong):
        super().__init__(wrong)
        self.attention, self.norm1, self.norm2 = ConcatByView(False), nn.LayerNorm(24), nn.LayerNorm(24)
        self.ffn = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 24))

    def forward(self, x):
        x = self.norm1(x + self.attention(x))
        y = self.ffn(x)
        return self.norm2(y if self.wrong else x + y)  # wrong


MISSED_MISTAKES = frozenset({"EncoderLayerWithOneResidual"})
"""The mistakes that no rule finds. Rules for `LogitsOfTheWrongSample`, `LikelihoodOfLogits` and
`FusedAttentionOverHeads` were written after these modules."""
