"""Llama: a modern decoder with rotary positions, RMS norms, shared keys and a gated MLP (Touvron et al. 2023)."""

from math import sqrt

import torch
import torch.nn.functional as F
from torch import nn

from tracer.inputs.model_inputs import Characters
from tracer.models.nanogpt import SHAKESPEARE
from tracer.record import Segment
from tracer.spec.blocks import Past, add_blocks, causal, open_caches, past_length
from tracer.spec.decoding import with_cache
from tracer.spec.preparation import counted_tokens, text_input
from tracer.spec.results import logits_hints, next_tokens
from tracer.spec.spec import Spec
from tracer.textbook import claims as so
from tracer.textbook.claims import Claim
from tracer.textbook.explanations import WHY
from tracer.textbook.names import Hint


class Attention(nn.Module):
    """Attention whose query heads share h_kv heads of keys and values (Ainslie et al. 2023, section 2.2).

    It takes `[B, T, D]`, cosines and sines `[T, d_k]` of the positions' angles, and an additive mask `[T, T]`; it
    returns `[B, T, D]`.
    """

    def __init__(self, *, D: int, h: int, h_kv: int):
        super().__init__()
        self.h, self.h_kv, self.d_k = h, h_kv, D // h
        self.query = nn.Linear(D, h * self.d_k, bias=False)
        self.key = nn.Linear(D, h_kv * self.d_k, bias=False)
        self.value = nn.Linear(D, h_kv * self.d_k, bias=False)
        self.output = nn.Linear(h * self.d_k, D, bias=False)

    def forward(self, x, cosine, sine, mask=None, cache=None) -> torch.Tensor:
        B, T, D, h, h_kv, d_k = *x.shape, self.h, self.h_kv, self.d_k
        q = self.query(x).view(B, T, h, d_k).transpose(1, 2)  # [B, h, T, d_k]
        k = self.key(x).view(B, T, h_kv, d_k).transpose(1, 2)  # [B, h_kv, T, d_k]
        v = self.value(x).view(B, T, h_kv, d_k).transpose(1, 2)  # [B, h_kv, T, d_k]
        q = q * cosine + rotate_half(q) * sine  # [B, h, T, d_k]
        k = k * cosine + rotate_half(k) * sine  # [B, h_kv, T, d_k]
        if cache is not None:
            k, v = cache.append(k, v)  # [B, h_kv, T_past+T, d_k]
        k = k.repeat_interleave(h // h_kv, dim=1)  # [B, h, T, d_k]
        v = v.repeat_interleave(h // h_kv, dim=1)  # [B, h, T, d_k]
        scores = q @ k.transpose(-2, -1) / sqrt(d_k)  # [B, h, T, T]
        if mask is not None:
            scores = scores + mask  # [B, h, T, T]
        weights = scores.softmax(dim=-1)  # [B, h, T, T]
        context = weights @ v  # [B, h, T, d_k]
        context = context.transpose(1, 2).reshape(B, T, h * d_k)  # [B, T, h·d_k]
        return self.output(context)  # [B, T, D]


def rotate_half(x) -> torch.Tensor:
    """Return each pair of a head's two halves rotated by a right angle: `(x₁, x₂)` becomes `(-x₂, x₁)`."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


class MLP(nn.Module):
    """Two linear maps, the first with a gate beside it (SwiGLU: Shazeer 2020, equation 6); `[B, T, D]` in and out."""

    def __init__(self, *, D: int, d_ff: int):
        super().__init__()
        self.gate = nn.Linear(D, d_ff, bias=False)
        self.expand = nn.Linear(D, d_ff, bias=False)
        self.contract = nn.Linear(d_ff, D, bias=False)

    def forward(self, x) -> torch.Tensor:
        hidden = F.silu(self.gate(x)) * self.expand(x)  # [B, T, d_ff]
        return self.contract(hidden)  # [B, T, D]


class Block(nn.Module):
    """Pre-norm block with RMS norms (Zhang and Sennrich 2019, equation 4); `[B, T, D]` in and out."""

    def __init__(self, *, D: int, h: int, h_kv: int, d_ff: int):
        super().__init__()
        self.norm1 = nn.RMSNorm(D, eps=1e-5)
        self.attention = Attention(D=D, h=h, h_kv=h_kv)
        self.norm2 = nn.RMSNorm(D, eps=1e-5)
        self.mlp = MLP(D=D, d_ff=d_ff)

    def forward(self, x, cosine, sine, mask=None, cache=None) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), cosine, sine, mask, cache)  # [B, T, D]
        return x + self.mlp(self.norm2(x))  # [B, T, D]


class Llama(nn.Module):
    """A decoder that predicts the next token at every position (Touvron et al. 2023, section 2.2).

    It takes token numbers `[B, T]`, T at most T_max, and returns logits `[B, T, V]`. To go on from tokens that it has
    read, it takes their keys and values, `past`, and returns those of all tokens beside the logits.

    `tied`: the output matrix is the embedding matrix (Press and Wolf 2017). `mask` is "causal", or "bidirectional",
    with every token open to all others.
    """

    def __init__(
        self, *, V: int, T_max: int, D: int, h: int, h_kv: int, d_ff: int, L: int, tied: bool = True, mask="causal"
    ):
        super().__init__()
        if D % (2 * h):
            raise ValueError(f"D={D} does not fit h={h}: a head rotates pairs of its D/h numbers, so 2·h must divide D")
        if h % h_kv:
            raise ValueError(f"h={h} does not fit h_kv={h_kv}: heads of queries share those of keys evenly")
        self.T_max, self.mask = T_max, mask
        self.tokens = nn.Embedding(V, D)
        exponents = torch.arange(0, D // h, 2) / (D // h)
        self.register_buffer("frequencies", 10_000.0**-exponents, persistent=False)
        self.blocks = add_blocks(self, L, lambda: Block(D=D, h=h, h_kv=h_kv, d_ff=d_ff))
        self.norm = nn.RMSNorm(D, eps=1e-5)
        self.head = None if tied else nn.Linear(D, V, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens, past: Past | None = None) -> torch.Tensor | tuple[torch.Tensor, Past]:
        T_past, T = past_length(past), tokens.shape[1]
        if self.T_max < T_past + T:
            raise ValueError(f"T={T_past + T} tokens are too many: the model was trained on at most T_max={self.T_max}")
        places = torch.arange(T_past, T_past + T, device=tokens.device)  # [T]
        angles = torch.outer(places, self.frequencies)  # [T, d_k/2]
        angles = torch.cat([angles, angles], dim=-1)  # [T, d_k]
        cosine, sine = angles.cos(), angles.sin()  # [T, d_k]
        mask = causal(T, T_past, device=tokens.device) if self.mask == "causal" else None  # [T, T_past+T]
        x = self.tokens(tokens)  # [B, T, D]
        caches = open_caches(past, self.blocks)
        for name, cache in zip(self.blocks, caches, strict=True):
            x = self.get_submodule(name)(x, cosine, sine, mask, cache)  # [B, T, D]
        x = self.norm(x)  # [B, T, D]
        logits = F.linear(x, self.tokens.weight) if self.head is None else self.head(x)  # [B, T, V]
        return logits if past is None else (logits, tuple(cache.pair for cache in caches))


HINTS = (
    Hint("angles", source="Su et al. 2021, section 3.2.2"),
    Hint("*.norm?", source="Zhang and Sennrich 2019, equation 4"),
    Hint("*.gated", source="Shazeer 2020, equation 6"),
    Hint("*.context", source="Ainslie et al. 2023, section 2.2"),
    Hint(
        "mask",
        why=WHY["no look ahead"],
    ),
    Hint(
        "embedding",
        why=(
            *WHY["row of a table"],
            Claim(
                "No position is added here: positions enter when queries and keys are rotated.",
                so.has_part("rotated Q"),
                "positions by rotation alone",
            ),
        ),
    ),
    *logits_hints(),
)
"""Hints: a person's additions to the derived textbook."""

SPEC = Spec(
    decoder=with_cache,
    net=Llama,
    hints=HINTS,
    takes=("text",),
    sizes={"V": 65, "T_max": 128, "D": 128, "h": 4, "h_kv": 2, "d_ff": 344, "L": 4},
    derived={"d_k": "D/h"},
    names=("B", "T", "D", "V", "h", "h_kv", "h/h_kv", "d_k", "d_k/2", "d_ff", "h_kv*d_k"),
    probes=(
        {"B": 13, "T": 11, "V": 83, "T_max": 23, "D": 72, "h": 6, "h_kv": 3, "d_ff": 29},
        {"B": 3, "T": 17, "V": 89, "T_max": 19, "D": 80, "h": 8, "h_kv": 2, "d_ff": 31},
        {"B": 7, "T": 13, "V": 97, "T_max": 25, "D": 140, "h": 10, "h_kv": 5, "d_ff": 43},
        {"B": 9, "T": 19, "V": 101, "T_max": 27, "D": 192, "h": 12, "h_kv": 4, "d_ff": 37},
    ),
    example=counted_tokens,
    prepare=text_input(Characters, SHAKESPEARE, "ROMEO:\nMy heart is full of l"),
    result=next_tokens,
    segments=lambda sizes: (Segment("text", 0, sizes["T"]),),
    runs=("B", "T"),
    vocabulary=SHAKESPEARE,
    options={"tied": (True, False), "mask": ("causal", "bidirectional")},
    presets={
        "Llama 2 7B (Touvron et al. 2023)": {"V": 32000, "T_max": 4096, "T": 4096, "D": 4096, "h": 32, "h_kv": 32}
        | {"d_ff": 11008, "L": 32, "tied": False},
        "Llama 3 8B (Grattafiori et al. 2024)": {"V": 128256, "T_max": 8192, "T": 8192, "D": 4096, "h": 32, "h_kv": 8}
        | {"d_ff": 14336, "L": 32, "tied": False},
    },
)
