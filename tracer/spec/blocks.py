"""Pre-norm transformer block: explicit attention, a two-layer MLP, two residual sums.

Attention uses no fused kernel, so that scores, mask and weights are tensors of the run. Sources: Vaswani et al. 2017,
sections 3.2 and 3.3; pre-norm after Xiong et al. 2020, figure 1b.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

# Masks that models add to their scores: 0 where a query may look, -∞ where it may not.


def causal(length: int, past: int = 0, device=None) -> torch.Tensor:
    """Return `[S, S]`: 0 for j ≤ i, -∞ for j > i: no token sees a later one. Vaswani et al. 2017, section 3.2.3.

    With `past` earlier tokens, which are keys alone, it has the rows of the others: `[S, past + S]`.
    """
    return torch.full((length, past + length), float("-inf"), device=device).triu(past + 1)


def prefix(length: int, visible: int, device=None) -> torch.Tensor:
    """Return `[S, S]`: causal, but the first `visible` tokens see each other fully. Raffel et al. 2020, section
    3.2.1."""
    later = torch.arange(length, device=device) > torch.arange(length, device=device)[:, None]
    hidden = later & (torch.arange(length, device=device) >= visible)
    return torch.zeros(length, length, device=device).masked_fill(hidden, float("-inf"))


def padding(lengths: torch.Tensor, length: int) -> torch.Tensor:
    """Return `[B, 1, 1, S]`: 0 for the first `lengths[b]` keys, -∞ for the padding after them."""
    hidden = torch.arange(length, device=lengths.device) >= lengths[:, None, None, None]
    return torch.zeros(hidden.shape, device=lengths.device).masked_fill(hidden, float("-inf"))


Past = tuple[tuple[Tensor, Tensor], ...]
"""The keys and values of earlier tokens, `[B, h, T_past, d_k]` each: a pair for each block."""


def patch_count(H: int, W: int, P: int) -> int:
    """Return how many patches `[P, P]` an image `[H, W]` is cut into. Raise ValueError where they do not fill it."""
    if H % P or W % P:
        raise ValueError(f"H={H}, W={W} don't fit P={P}: patches don't overlap, so H and W must be multiples of P")
    return (H // P) * (W // P)


class Cache:
    """Keys and values of one block for the tokens that it has read: `[B, h, T_past, d_k]` each.

    Source: Shazeer 2019, Fast Transformer Decoding, section 2.4.
    """

    def __init__(self, keys: Tensor | None = None, values: Tensor | None = None):
        self.keys: Any = keys
        self.values: Any = values

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append those of new tokens, `[B, h, T, d_k]`, and return all, `[B, h, T_past + T, d_k]`."""
        if self.keys is None:
            self.keys, self.values = keys, values
        else:
            self.keys, self.values = torch.cat([self.keys, keys], dim=-2), torch.cat([self.values, values], dim=-2)
        return self.pair

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        """Keys and values."""
        return self.keys, self.values


def open_caches(past: Past | None, blocks: Sequence[str]) -> list:
    """Return a cache for each block, with the keys and values of `past`, or empty where that is `()`; None for each
    where nothing is cached."""
    if past is None:
        return [None] * len(blocks)
    return [Cache(*pair) for pair in past] or [Cache() for _ in blocks]


def past_length(past: Past | None) -> int:
    """Return how many tokens are in the caches, T_past."""
    return past[0][0].shape[-2] if past else 0


class Attention(nn.Module):
    """Multi-head scaled dot-product self-attention (Vaswani et al. 2017, equation 1, section 3.2.2).

    It takes `[B, S, D]` and an additive mask that broadcasts to `[B, h, S, S]`, and returns `[B, S, D]`. With a cache,
    queries also see the keys of earlier tokens.
    """

    def __init__(self, *, D: int, h: int, d_k: int | None = None, bias: bool = True):
        super().__init__()
        if d_k is None:
            if D % h:
                raise ValueError(f"D={D} is not divisible by h={h}: a head is D/h wide, so D must be a multiple of h")
            d_k = D // h
        self.h, self.d_k = h, d_k
        self.query = nn.Linear(D, h * d_k, bias=bias)
        self.key = nn.Linear(D, h * d_k, bias=bias)
        self.value = nn.Linear(D, h * d_k, bias=bias)
        self.output = nn.Linear(h * d_k, D, bias=bias)

    def forward(self, x, mask=None, cache=None) -> Tensor:
        B, S, D, h, d_k = *x.shape, self.h, self.d_k
        q = self.query(x).view(B, S, h, d_k).transpose(1, 2)  # [B, h, S, d_k]
        k = self.key(x).view(B, S, h, d_k).transpose(1, 2)  # [B, h, S, d_k]
        v = self.value(x).view(B, S, h, d_k).transpose(1, 2)  # [B, h, S, d_k]
        if cache is not None:
            k, v = cache.append(k, v)  # [B, h, T_past+S, d_k]
        scores = q @ k.transpose(-2, -1) / sqrt(d_k)  # [B, h, S, S]
        if mask is not None:
            scores = scores + mask  # [B, h, S, S]
        weights = scores.softmax(dim=-1)  # [B, h, S, S]
        context = weights @ v  # [B, h, S, d_k]
        context = context.transpose(1, 2).reshape(B, S, h * d_k)  # [B, S, h·d_k]
        return self.output(context)  # [B, S, D]


class SingleHeadAttention(nn.Module):
    """Attention of one head as wide as the model, without biases, as note 000 writes it in section 1.2 and 1.3.

    It takes `[B, S, D]` and an additive mask that broadcasts to `[B, S, S]`, and returns `[B, S, D]`.
    """

    def __init__(self, *, D: int):
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(D, D, bias=False) for _ in range(4))

    def forward(self, x, mask=None, cache=None) -> Tensor:
        D = x.shape[-1]
        q, k, v = self.query(x), self.key(x), self.value(x)  # [B, S, D]
        if cache is not None:
            k, v = cache.append(k, v)  # [B, T_past+S, D]
        scores = q @ k.transpose(-2, -1) / sqrt(D)  # [B, S, S]
        if mask is not None:
            scores = scores + mask  # [B, S, S]
        weights = scores.softmax(dim=-1)  # [B, S, S]
        context = weights @ v  # [B, S, D]
        return self.output(context)  # [B, S, D]


class MLP(nn.Module):
    """Position-wise feed-forward network: two linear maps with GELU between (Vaswani et al. 2017, section 3.3).

    It takes and returns `[B, S, D]`; the GELU is "exact" or "tanh", its approximation (Hendrycks and Gimpel 2016).
    """

    def __init__(self, *, D: int, d_ff: int, bias: bool = True, gelu: str = "exact"):
        super().__init__()
        self.expand = nn.Linear(D, d_ff, bias=bias)
        self.gelu = nn.GELU(approximate="tanh" if gelu == "tanh" else "none")
        self.contract = nn.Linear(d_ff, D, bias=bias)

    def forward(self, x) -> Tensor:
        hidden = self.gelu(self.expand(x))  # [B, S, d_ff]
        return self.contract(hidden)  # [B, S, D]


class Block(nn.Module):
    """Pre-norm block: `X' = X + Attention(LN(X))`, then `X' + MLP(LN(X'))`; `[B, S, D]` in and out."""

    def __init__(
        self,
        *,
        D: int,
        h: int,
        d_ff: int,
        bias: bool = True,
        gelu: str = "exact",
        eps: float = 1e-6,
        single: bool = False,
    ):
        super().__init__()
        self.norm1 = nn.LayerNorm(D, eps=eps, bias=bias)
        self.attention = SingleHeadAttention(D=D) if single else Attention(D=D, h=h, bias=bias)
        self.norm2 = nn.LayerNorm(D, eps=eps, bias=bias)
        self.mlp = MLP(D=D, d_ff=d_ff, bias=bias, gelu=gelu)

    def forward(self, x, mask=None, cache=None) -> Tensor:
        x = x + self.attention(self.norm1(x), mask, cache)  # [B, S, D]
        return x + self.mlp(self.norm2(x))  # [B, S, D]


def add_blocks(net: nn.Module, count: int, build: Callable[[], nn.Module]) -> list[str]:
    """Build so many blocks within a net, and return their names: `block1` is the first."""
    names = [f"block{number}" for number in range(1, count + 1)]
    for name in names:
        net.add_module(name, build())
    return names
