"""Model that all kinds of positions share: a post-norm block whose attention they enter."""

from __future__ import annotations

from functools import cache
from importlib import import_module

import torch
from torch import nn

from tracer.attention.masks.constructors import causal
from tracer.inputs.tokenizers import Characters
from tracer.lessons import positions
from tracer.lessons.positions.base import PositionEncoding
from tracer.models.shared import blocks
from tracer.models.shared.preparation.to_tensors import text_input
from tracer.models.shared.spec import Model, Spec, build_seeded
from tracer.models.transformer import FeedForward
from tracer.record import Segment
from tracer.textbook.hints import Hint

ALPHABET = " abcdefghijklmnopqrstuvwxyz"
TEXT = "the cat sat on the mat and slept"


@cache
def places(kind: str) -> type[PositionEncoding]:
    """Return the class of a kind of positions."""
    return (
        PositionEncoding
        if kind == positions.NO_POSITIONS
        else import_module(f"tracer.lessons.positions.encodings.{kind}").Positions
    )


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
        self.places = places(positions)(T_max=T_max, D=D, h=h, R=R)

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
        hints=(*HINTS, *places(kind).HINTS),
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
    """Return the model with a kind of positions, or `positions.NONE`, at these sizes and with seeded weights.

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
