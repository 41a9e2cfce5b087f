"""Transformer: a post-norm encoder that reverses a string (Vaswani et al. 2017; note 004)."""

from math import sqrt

import sympy
import torch
from torch import nn

from tracer.attention.masks import causal
from tracer.derive.steps import Line, Place
from tracer.derive.whys import BLOCK as BLOCK_WHY
from tracer.equations import (
    AtDistance,
    CausalMask,
    Distances,
    Joined,
    Lookup,
    ReLU,
    Rows,
    Sinusoids,
    Softmax,
    SumsByDistance,
    Tensor,
)
from tracer.inputs.tensors import text_input
from tracer.inputs.text import Characters
from tracer.models.shared.blocks import Attention
from tracer.models.shared.model import Spec
from tracer.models.shared.results import token_at_each_place
from tracer.models.shared.textbook import Page, attention, heads, mlp, noted
from tracer.record import Segment
from tracer.symbols.notation import symbol


class Transformer(nn.Module):
    """Says at every position which token belongs there (Vaswani et al. 2017, figure 1, left, with a softmax on top).

    Takes token numbers `[B, T]`, T at most T_max; returns probabilities `[B, T, V]`. `positions`: "sinusoidal"
    (section 3.5), "learned" (Devlin et al. 2019) or "relative" (Shaw et al. 2018), R tokens each way. `mask`:
    "bidirectional", where all tokens see each other, or "causal".
    """

    def __init__(
        self, *, V: int, T_max: int, D: int, h: int, d_ff: int, L: int, R: int,
        positions="sinusoidal", mask="bidirectional",
    ):  # fmt: skip
        super().__init__()
        if positions == "sinusoidal" and D % 2:
            raise ValueError(f"D={D} is odd: each sine of a position has its cosine, so D must be a multiple of 2")
        self.positions, self.mask, self.T_max, self.R = positions, mask, T_max, R
        self.tokens = nn.Embedding(V, D)
        self.table = nn.Parameter(torch.randn(T_max, D)) if positions == "learned" else None
        self.blocks = [f"block{layer}" for layer in range(1, L + 1)]
        for name in self.blocks:
            self.add_module(name, PostNormBlock(D=D, h=h, d_ff=d_ff, R=R if positions == "relative" else None))
        self.head = nn.Linear(D, V, bias=False)

    def forward(self, tokens):
        _, T, D = *tokens.shape, self.tokens.embedding_dim
        if self.T_max < T:
            raise ValueError(f"T={T} tokens are too many: the model was made for at most T_max={self.T_max}")
        given = (causal(T, device=tokens.device) if self.mask == "causal" else None,)
        x = self.tokens(tokens)  # [B, T, D]
        if self.positions == "sinusoidal":
            x = x + sinusoids(T, D).to(x)  # [B, T, D]
        elif self.positions == "learned":
            x = x + self.table[:T]  # [B, T, D]
        else:
            place = torch.arange(T, device=tokens.device)  # [T]
            distances = (place - place[:, None]).clamp(-self.R, self.R) + self.R  # [T, T]
            given = (*given, distances)
        for name in self.blocks:
            x = self.get_submodule(name)(x, *given)  # [B, T, D]
        logits = self.head(x)  # [B, T, V]
        return logits.softmax(dim=-1)  # [B, T, V]


class PostNormBlock(nn.Module):
    """Post-norm block: `X' = LN(X + Attention(X))`, then `LN(X' + MLP(X'))`; `[B, S, D]` in and out."""

    def __init__(self, *, D: int, h: int, d_ff: int, R: int | None = None):
        super().__init__()
        self.attention = Attention(D=D, h=h, bias=False) if R is None else RelativeAttention(D=D, h=h, R=R)
        self.norm1 = nn.LayerNorm(D, eps=1e-5)
        self.mlp = FeedForward(D=D, d_ff=d_ff)
        self.norm2 = nn.LayerNorm(D, eps=1e-5)

    def forward(self, x, *given):
        x = self.norm1(x + self.attention(x, *given))  # [B, S, D]
        return self.norm2(x + self.mlp(x))  # [B, S, D]


class FeedForward(nn.Module):
    """`max(0, X W_1 + b_1) W_2 + b_2` (Vaswani et al. 2017, equation 2); `[B, S, D]` in and out."""

    def __init__(self, *, D: int, d_ff: int):
        super().__init__()
        self.expand = nn.Linear(D, d_ff)
        self.relu = nn.ReLU()
        self.contract = nn.Linear(d_ff, D)

    def forward(self, x):
        hidden = self.relu(self.expand(x))  # [B, S, d_ff]
        return self.contract(hidden)  # [B, S, D]


class RelativeAttention(Attention):
    """Attention that knows how far apart two tokens are (Shaw et al. 2018, equations 3 to 5).

    Takes `[B, S, D]`, a mask or None, and the number 0 to 2R of each pair's distance, `[S, S]`; returns `[B, S, D]`.
    A learned vector for each distance is added to the keys and to the values, the same in all heads.
    """

    def __init__(self, *, D: int, h: int, R: int):
        super().__init__(D=D, h=h, bias=False)
        self.key_distances = nn.Parameter(torch.randn(2 * R + 1, self.d_k) / sqrt(self.d_k))
        self.value_distances = nn.Parameter(torch.randn(2 * R + 1, self.d_k) / sqrt(self.d_k))

    def forward(self, x, mask, distances):
        B, S, D, h, d_k = *x.shape, self.h, self.d_k
        q = self.query(x).view(B, S, h, d_k).transpose(1, 2)  # [B, h, S, d_k]
        k = self.key(x).view(B, S, h, d_k).transpose(1, 2)  # [B, h, S, d_k]
        v = self.value(x).view(B, S, h, d_k).transpose(1, 2)  # [B, h, S, d_k]
        pairs = distances.expand(B, h, S, S)  # [B, h, S, S]
        by_distance = q @ self.key_distances.T  # [B, h, S, 2·R+1]
        relative = by_distance.gather(-1, pairs)  # [B, h, S, S]
        scores = (q @ k.transpose(-2, -1) + relative) / sqrt(d_k)  # [B, h, S, S]
        if mask is not None:
            scores = scores + mask  # [B, h, S, S]
        weights = scores.softmax(dim=-1)  # [B, h, S, S]
        shares = x.new_zeros(by_distance.shape).scatter_add(-1, pairs, weights)  # [B, h, S, 2·R+1]
        context = weights @ v + shares @ self.value_distances  # [B, h, S, d_k]
        context = context.transpose(1, 2).reshape(B, S, h * d_k)  # [B, S, h·d_k]
        return self.output(context)  # [B, S, D]


def sinusoids(T: int, D: int) -> torch.Tensor:
    """Sines and cosines of each place, in turn: float64 `[T, D]` (Vaswani et al. 2017, section 3.5)."""
    rates = 10000 ** (torch.arange(0, D, 2, dtype=torch.float64) / D)
    angles = torch.arange(T, dtype=torch.float64)[:, None] / rates  # [T, D/2]
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)  # [T, D]


def lines(config: dict) -> list[Line]:
    """The encoder's textbook, in the order of note 004's ten sections."""
    B, T, D, V, T_max, R = map(symbol, ("B", "T", "D", "V", "T_max", "R"))
    page = Page(bias=False, eps=1e-5)
    tokens, shape = Tensor(r"\mathbf{t}", (B, T), "input tokens"), (B, T, D)
    mask = distances = None
    if config["mask"] == "causal":
        made = page.tensor(r"\mathbf{M}", (T, T), "mask")
        mask = page.line("attention", "Causal mask", made, CausalMask(T), Place("", "triu"), WHY["mask"])
    made = page.tensor(r"\mathbf{X}_t", shape, "embedding")
    equation = Lookup(page.parameter(r"\mathbf{E}", (V, D), "tokens.weight"), tokens)
    x = page.line("embedding", "Look up", made, equation, Place("tokens"), WHY["embedding"])
    if config["positions"] == "relative":
        made = page.tensor(r"\mathbf{C}", (T, T), "distances")
        equation = Distances(T, R)
        distances = page.line("position", "Distances", made, equation, Place("", "add"), WHY["distances"])
    else:
        table = page.tensor(r"\mathbf{P}", (T, D), "positions")
        if config["positions"] == "sinusoidal":
            page.line("position", "Sines and cosines", table, Sinusoids(T, D), Place("", "to"), WHY["sinusoidal"])
        else:
            table = Rows(page.parameter(r"\mathbf{P}", (T_max, D), "table"), T)
        made = page.tensor(r"\mathbf{X}^{(0)}", shape, "position")
        x = page.line("position", "Add positions", made, x + table, Place("", "add"), WHY["position"])
    for layer in range(1, config["L"] + 1):
        page.lines += block_lines(layer, x, mask, distances)
        x = page.lines[-1].tensor
    logits = page.tensor(r"\mathbf{Z}", (B, T, V), "logits")
    equation = page.linear(x, r"\mathrm{out}", (D, V), "head")
    page.line("head", "Logits", logits, equation, Place("head"), WHY["logits"])
    made = page.tensor(r"\mathbf{Y}", (B, T, V), "probabilities")
    page.line("head", "Probabilities", made, Softmax(logits), Place("", "softmax"), WHY["probabilities"])
    return noted(page.lines, NOTES)


def block_lines(layer: int, x: Tensor, mask: Tensor | None, distances: Tensor | None) -> list[Line]:
    """The lines of post-norm block `layer` (from 1), whose input is `x`, `[B, T, D]`; the last one makes its output."""
    page, shape = Page(f"block{layer}", layer, eps=1e-5), x.shape
    plain = Page(page.prefix, layer, bias=False)
    found = attention(plain, x, mask) if distances is None else relative_attention(plain, x, mask, distances)
    page.lines += plain.lines
    made = page.tensor(r"\mathbf{R}", shape, "attention.residual")
    summed = page.line("attention", "Residual sum", made, x + found, Place("", "add", 0), WHY["residual"])
    made = page.tensor(r"\mathbf{X}'", shape, "norm1")
    middle = page.line("norm", "Normalise the sum", made, page.norm(summed, "1", "norm1"), Place("norm1"), WHY["norm1"])
    found = mlp(page, middle, ReLU, "relu")
    made = page.tensor(r"\mathbf{R}'", shape, "mlp.residual")
    summed = page.line("mlp", "Residual sum", made, middle + found, Place("", "add", 1), WHY["residual2"])
    made = page.tensor(r"\mathbf{X}", shape, "norm2")
    page.line("norm", "Normalise again", made, page.norm(summed, "2", "norm2"), Place("norm2"), WHY["norm2"])
    return page.lines


def relative_attention(page: Page, x: Tensor, mask: Tensor | None, distances: Tensor) -> Tensor:
    """Writes attention with relative positions (Shaw et al. 2018, equations 3 to 5); returns **O**, `[B, T, D]`."""
    B, T, D, R, h, d_k = map(symbol, ("B", "T", "D", "R", "h", "d_k"))
    count, pairs = 2 * R + 1, (B, h, T, T)

    def line(name, sizes, step, equation, call, nth=0):
        made = page.tensor(name, sizes, f"attention.{step}")
        why = {**BLOCK_WHY, **WHY}["masked scores" if step == "scores" and mask is not None else step]
        return page.line("attention", TITLES[step], made, equation, Place("attention", call, nth), why)

    q, k, v = heads(page, x)
    keys = page.parameter(r"\mathbf{A}_K", (count, d_k), "attention.key_distances")
    relative = line(r"\mathbf{B}", pairs, "relative", AtDistance(q @ keys.T, distances), "gather")
    equation = (q @ k.T + relative) / sympy.sqrt(d_k)
    equation, *call = (equation, "div") if mask is None else (equation + mask, "add", 1)
    scores = line(r"\mathbf{S}", pairs, "scores", equation, *call)
    weights = line(r"\mathbf{A}", pairs, "weights", Softmax(scores), "softmax")
    equation = SumsByDistance(weights, distances, count)
    shares = line(r"\bar{\mathbf{A}}", (B, h, T, count), "shares", equation, "scatter_add")
    values = page.parameter(r"\mathbf{A}_V", (count, d_k), "attention.value_distances")
    equation = Joined(weights @ v + shares @ values)
    context = line(r"\mathbf{H}", (B, T, h * d_k), "context", equation, "reshape")
    equation = page.linear(context, "O", (h * d_k, D), "attention.output")
    made = page.tensor(r"\mathbf{O}", (B, T, D), "attention.output")
    return page.line("attention", "Output projection", made, equation, Place("attention.output"), BLOCK_WHY["output"])


TITLES = {
    "relative": "Scores by distance",
    "scores": "Scores",
    "weights": "Attention weights",
    "shares": "Weights by distance",
    "context": "Context",
}
WHY = {
    "mask": "Here no position may see what comes after it. This matrix of 0 and -∞ is made once and added to the "
    "scores of every block.",
    "embedding": "A token is only a number, and its size means nothing. The number picks a learned row of E, so that "
    "each token becomes D numbers that training can arrange.",
    "sinusoidal": "Every place gets a pattern of its own: waves from fast to slow, like the hands of many clocks. "
    "Nothing here is learned, and a place's pattern turns into that of k places on by one fixed rotation.",
    "position": "The dot products of attention compare what tokens hold. The vector of each place is added. Since "
    "it is a sum, every score falls into four terms: content or position against content or position.",
    "distances": "How far each token lies after the one that asks, from -R to R, counted from 0. All that is further "
    "away counts as R. These numbers pick the learned vectors of every block.",
    "relative": "Each query also meets a learned vector for each distance, as if it were part of the key. The score "
    "then depends on how far apart two tokens are, and not on where they are.",
    "shares": "The weights of each row, added up by distance. They say how much of each distance's learned vector "
    "goes into the context.",
    "residual": "Attention adds to the token what it found instead of replacing it. The sum is normalised in the "
    "next step, so no number passes through a block untouched.",
    "norm1": "Each token's sum is shifted to mean 0 and scaled to variance 1, then rescaled by learned γ and β. The "
    "2017 paper normalises after the sum; many later models do it before attention (Xiong et al. 2020).",
    "residual2": "The MLP's result is added to what it was made from. One more norm follows.",
    "norm2": "The second sum is normalised like the first, with a γ and β of its own. This is the block's output and "
    "the next block's input.",
    "logits": "A matrix of its own turns each token into a score for every entry of the vocabulary. The row of place i "
    "says what belongs at place i of the answer.",
    "probabilities": "The softmax makes each row of scores probabilities that sum to 1. The largest is the model's "
    "answer for this place.",
}
NOTES = {
    "position": "The 2017 paper multiplies embeddings by √D before this sum; note 004 does not, and neither does "
    "this model.",
    "distances": "Note 004 adds all kinds of positions to X; relative ones are not added there, they act inside the "
    "scores.",
    "attention.scores": "Note 004 adds log M of a mask M of zeros and -∞, which is -∞ or NaN everywhere; where a mask "
    "runs, M itself is added.",
    "attention.context": "Note 004 counts heads up to H without saying what H is; the number of heads is h here.",
    "norm1": "Note 004 writes LayerNorm without its γ and β; both run.",
}

PAD = "·"
ALPHABET = PAD + "".join(map(chr, range(32, 127)))
"""A blank and the 95 printable characters of ASCII."""

SPEC = Spec(
    net=Transformer,
    lines=lines,
    takes=("text",),
    sizes={"V": 96, "T_max": 16, "D": 24, "h": 2, "d_ff": 48, "L": 1, "R": 15},
    derived={"d_k": "D/h"},
    names=("B", "T", "D", "D/2", "V", "T_max", "h", "d_k", "d_ff", "R", "2*R + 1"),
    probes=(
        {"B": 13, "T": 7, "V": 17, "T_max": 11, "D": 30, "h": 3, "d_ff": 23, "R": 2},
        {"B": 3, "T": 5, "V": 29, "T_max": 19, "D": 28, "h": 4, "d_ff": 31, "R": 6},
        {"B": 8, "T": 13, "V": 37, "T_max": 27, "D": 50, "h": 5, "d_ff": 41, "R": 9},
    ),
    example=lambda sizes: (torch.arange(sizes["B"] * sizes["T"]).view(sizes["B"], sizes["T"]) % sizes["V"],),
    prepare=text_input(Characters, ALPHABET, "reverse this one", pad=PAD),
    result=lambda model, inputs, output: {**token_at_each_place(model, inputs, output), "pad": PAD},
    segments=lambda sizes: (Segment("text", 0, sizes["T"]),),
    runs=("B", "T"),
    vocabulary=ALPHABET,
    options={"positions": ("sinusoidal", "learned", "relative"), "mask": ("bidirectional", "causal")},
    idle=lambda options: () if options["positions"] == "relative" else ("R",),
)
