"""More modules whose forward fails, each in the line that is marked, after questions that people ask in public."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Vit(nn.Module):
    """Positions that were built without the class token."""

    def __init__(self, D, N):
        super().__init__()
        self.patch = nn.Conv2d(3, D, 4, 4)
        self.cls = nn.Parameter(torch.zeros(1, 1, D))
        self.pos = nn.Parameter(torch.zeros(1, N, D))
        self.head = nn.Linear(D, 10)

    def forward(self, img):
        x = self.patch(img).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.size(0), -1, -1), x], 1)
        x = x + self.pos  # here
        return self.head(x[:, 0])


def vit(B=2, D=8):
    return Vit(D, 6), (torch.randn(B, 3, 8, 12),)


class Gqa(nn.Module):
    """Grouped-query attention without repeating the keys."""

    def __init__(self, D, h, g):
        super().__init__()
        self.h, self.g, self.dk = h, g, D // h
        self.q = nn.Linear(D, D)
        self.kv = nn.Linear(D, 2 * g * self.dk)

    def forward(self, x):
        B, T, D = x.shape
        q = self.q(x).view(B, T, self.h, self.dk).transpose(1, 2)
        k, v = self.kv(x).view(B, T, 2, self.g, self.dk).permute(2, 0, 3, 1, 4)
        s = q @ k.transpose(-2, -1) / math.sqrt(self.dk)  # here
        return (s.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D)


def gqa(B=2, T=5, D=24, h=6, g=2):
    return Gqa(D, h, g), (torch.randn(B, T, D),)


class Cache(nn.Module):
    """KV cache joined along the wrong axis."""

    def __init__(self, D):
        super().__init__()
        self.k = nn.Linear(D, D)

    def forward(self, x, past):
        k = self.k(x).view(x.size(0), x.size(1), 2, -1).transpose(1, 2)
        return torch.cat([past, k], dim=1)  # here


def cache(B=2, D=8):
    return Cache(D), (torch.randn(B, 1, D), torch.randn(B, 2, 5, D // 2))


class Lm(nn.Module):
    """Labels shifted on one side only."""

    def __init__(self, V, D):
        super().__init__()
        self.e, self.o = nn.Embedding(V, D), nn.Linear(D, V)

    def forward(self, ids):
        z = self.o(self.e(ids))
        return F.cross_entropy(z.view(-1, z.size(-1)), ids[:, 1:].reshape(-1))  # here


def lm(B=2, T=5, V=11, D=8):
    return Lm(V, D), (torch.randint(V, (B, T)),)


class Causal(nn.Module):
    """Causal mask bigger than the text."""

    def __init__(self, D, most):
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D)
        self.register_buffer("mask", torch.tril(torch.ones(most, most)))

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        s = q @ k.transpose(1, 2)
        s = s.masked_fill(self.mask == 0, float("-inf"))  # here
        return s.softmax(-1) @ v


def causal(B=2, T=5, D=8):
    return Causal(D, 32), (torch.randn(B, T, D),)


class Rope(nn.Module):
    """Rotary angles for half of the width."""

    def __init__(self, d):
        super().__init__()
        self.register_buffer("inv", 1.0 / 10000 ** (torch.arange(0, d, 2) / d))

    def forward(self, q):
        t = torch.arange(q.size(-2))
        angle = torch.outer(t, self.inv)
        a, b = q.chunk(2, -1)
        turned = torch.cat([-b, a], -1)
        return q * angle.cos() + turned * angle.sin()  # here


def rope(B=2, h=3, T=5, d=8):
    return Rope(d), (torch.randn(B, h, T, d),)


class Enc(nn.Module):
    """An encoder with a padding mask that was not built with batch_first."""

    def __init__(self, D, h):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(D, h, 4 * D)
        self.enc = nn.TransformerEncoder(self.layer, 2)

    def forward(self, x, pad):
        return self.enc(x, src_key_padding_mask=pad)  # here


def enc(B=3, T=5, D=8, h=2):
    return Enc(D, h), (torch.randn(B, T, D), torch.zeros(B, T, dtype=torch.bool))


class Lora(nn.Module):
    """LoRA whose two matrices are not transposed."""

    def __init__(self, D, r):
        super().__init__()
        self.base = nn.Linear(D, D)
        self.A = nn.Parameter(torch.randn(r, D))
        self.B = nn.Parameter(torch.zeros(D, r))

    def forward(self, x):
        return self.base(x) + x @ self.A @ self.B  # here


def lora(B=2, T=5, D=8, r=2):
    return Lora(D, r), (torch.randn(B, T, D),)


class Cross(nn.Module):
    """Cross attention to keys of another width."""

    def __init__(self, D, h):
        super().__init__()
        self.attn = nn.MultiheadAttention(D, h, batch_first=True)

    def forward(self, x, photo):
        return self.attn(x, photo, photo)[0]  # here


def cross(B=2, T=5, N=7, D=8, E=12, h=2):
    return Cross(D, h), (torch.randn(B, T, D), torch.randn(B, N, E))


class Gpt(nn.Module):
    """A text that is longer than the table of positions."""

    def __init__(self, V, D, most):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(most, D)

    def forward(self, ids):
        return self.tok(ids) + self.pos(torch.arange(ids.size(1)))  # here


def gpt(B=2, T=20, V=11, D=8):
    return Gpt(V, D, 16), (torch.randint(V, (B, T)),)


class Rnn(nn.Module):
    """A first state whose batch is along another axis than the layer's."""

    def __init__(self, D):
        super().__init__()
        self.rnn = nn.LSTM(D, 6)
        self.out = nn.Linear(6, 2)

    def forward(self, x):
        h0 = torch.zeros(1, x.size(0), 6)
        y, _ = self.rnn(x, (h0, h0))  # here
        return self.out(y)


def rnn(B=2, T=5, D=8):
    return Rnn(D), (torch.randn(B, T, D),)


class Moe(nn.Module):
    """Weights of a router that lack the axis of features."""

    def __init__(self, D, E):
        super().__init__()
        self.router = nn.Linear(D, E)
        self.experts = nn.ModuleList(nn.Linear(D, D) for _ in range(E))

    def forward(self, x):
        w = self.router(x).softmax(-1)
        y = torch.stack([e(x) for e in self.experts], dim=2)
        return (w * y).sum(2)  # here


def moe(B=2, T=5, D=8, E=3):
    return Moe(D, E), (torch.randn(B, T, D),)


class Res(nn.Module):
    """A residual sum over a convolution without padding."""

    def __init__(self, C):
        super().__init__()
        self.conv = nn.Conv2d(C, C, 3)

    def forward(self, x):
        return x + self.conv(x)  # here


def res(B=2, C=4, H=9, W=11):
    return Res(C), (torch.randn(B, C, H, W),)


class Half(nn.Module):
    """A product of two dtypes."""

    def __init__(self, D):
        super().__init__()
        self.proj = nn.Linear(D, D)

    def forward(self, x):
        return self.proj(x).half() @ self.proj.weight.T  # here


def half(B=2, D=8):
    return Half(D), (torch.randn(B, D),)


class Unpack(nn.Module):
    """A batch without the axis of tokens."""

    def __init__(self, D):
        super().__init__()
        self.p = nn.Linear(D, D)

    def forward(self, x):
        B, T, C = x.shape  # here
        return self.p(x).view(B, T, C)


def unpack(B=2, D=8):
    return Unpack(D), (torch.randn(B, D),)


class Stack(nn.Module):
    """ModuleList called like a module."""

    def __init__(self, D):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(D, D) for _ in range(3)])

    def forward(self, x):
        return self.layers(x)  # here


def stack(B=2, D=8):
    return Stack(D), (torch.randn(B, D),)


class Dec(nn.Module):
    """A mask of keys by queries."""

    def forward(self, q, k, v):
        mask = torch.ones(k.size(-2), q.size(-2)).tril().bool()
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # here


def dec(B=2, h=2, T=5, S=7, d=4):
    return Dec(), (torch.randn(B, h, T, d), torch.randn(B, h, S, d), torch.randn(B, h, S, d))


class Cnn(nn.Module):
    """A head that was built for larger pictures."""

    def __init__(self, C, K):
        super().__init__()
        self.c = nn.Conv2d(3, C, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(C * 16 * 16, K)

    def forward(self, x):
        x = self.pool(self.c(x)).flatten(1)
        return self.fc(x)  # here


def cnn(B=2, C=4, K=10):
    return Cnn(C, K), (torch.randn(B, 3, 28, 28),)


class Flags(nn.Module):
    """A mask of whole numbers: as floats, its 0 and 1 would be added to the scores."""

    def forward(self, q, k, v, attention_mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask[:, None, None])  # here


def flags(B=2, h=2, T=5, d=4):
    kept = (torch.arange(T) < T - 1).long().expand(B, -1)
    return Flags(), (torch.randn(B, h, T, d), torch.randn(B, h, T, d), torch.randn(B, h, T, d), kept)
