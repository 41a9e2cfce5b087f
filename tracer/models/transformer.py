"""Transformer: a post-norm encoder that reverses a string (Vaswani et al. 2017; note 004)."""

from math import sqrt

import torch
from torch import nn

from tracer.attention.masks import causal
from tracer.expr import LayerNorm, Plus, Root, Scaled
from tracer.expr.arithmetic import Softmax, Times
from tracer.expr.embeddings import AtDistance, Distances, Sinusoids, SumsByDistance
from tracer.inputs.model_inputs import Characters
from tracer.record import Segment
from tracer.spec.blocks import Attention, add_blocks
from tracer.spec.preparation import counted_tokens, text_input
from tracer.spec.results import embedding_hint, token_at_each_place
from tracer.spec.spec import Spec
from tracer.textbook import claims as so
from tracer.textbook.claims import Claim
from tracer.textbook.explanations import ATTENTION_SUM, WHY, positions
from tracer.textbook.names import Hint


class Transformer(nn.Module):
    """An encoder that predicts a token at every position (Vaswani et al. 2017, figure 1, left, with a softmax).

    It takes token numbers `[B, T]`, T at most T_max, and returns probabilities `[B, T, V]`. `positions`: "sinusoidal"
    (section 3.5), "learned" (Devlin et al. 2019) or "relative" (Shaw et al. 2018), R tokens each way. `mask`:
    "bidirectional", with all tokens open to each other, or "causal".
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
        farthest = R if positions == "relative" else None
        self.blocks = add_blocks(self, L, lambda: PostNormBlock(D=D, h=h, d_ff=d_ff, R=farthest))
        self.head = nn.Linear(D, V, bias=False)

    def forward(self, tokens) -> torch.Tensor:
        _, T, D = *tokens.shape, self.tokens.embedding_dim
        if self.T_max < T:
            raise ValueError(f"T={T} tokens are too many: the model was made for at most T_max={self.T_max}")
        extra = (causal(T, device=tokens.device) if self.mask == "causal" else None,)
        x = self.tokens(tokens)  # [B, T, D]
        if self.positions == "sinusoidal":
            x = x + sinusoids(T, D).to(x)  # [B, T, D]
        elif self.positions == "learned":
            x = x + self.table[:T]  # [B, T, D]
        else:
            place = torch.arange(T, device=tokens.device)  # [T]
            distances = (place - place[:, None]).clamp(-self.R, self.R) + self.R  # [T, T]
            extra = (*extra, distances)
        for name in self.blocks:
            x = self.get_submodule(name)(x, *extra)  # [B, T, D]
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

    def forward(self, x, *extra) -> torch.Tensor:
        x = self.norm1(x + self.attention(x, *extra))  # [B, S, D]
        return self.norm2(x + self.mlp(x))  # [B, S, D]


class FeedForward(nn.Module):
    """`max(0, X W_1 + b_1) W_2 + b_2` (Vaswani et al. 2017, equation 2); `[B, S, D]` in and out."""

    def __init__(self, *, D: int, d_ff: int):
        super().__init__()
        self.expand = nn.Linear(D, d_ff)
        self.relu = nn.ReLU()
        self.contract = nn.Linear(d_ff, D)

    def forward(self, x) -> torch.Tensor:
        hidden = self.relu(self.expand(x))  # [B, S, d_ff]
        return self.contract(hidden)  # [B, S, D]


class RelativeAttention(Attention):
    """Attention with learned vectors for the distance of two tokens (Shaw et al. 2018, equations 3 to 5).

    It takes `[B, S, D]`, a mask or None, and the number 0 to 2R of each pair's distance, `[S, S]`; it returns `[B, S,
    D]`. A learned vector for each distance is added to the keys and to the values, the same in all heads.
    """

    def __init__(self, *, D: int, h: int, R: int):
        super().__init__(D=D, h=h, bias=False)
        self.key_distances = nn.Parameter(torch.randn(2 * R + 1, self.d_k) / sqrt(self.d_k))
        self.value_distances = nn.Parameter(torch.randn(2 * R + 1, self.d_k) / sqrt(self.d_k))

    def forward(self, x, mask, distances) -> torch.Tensor:
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
    """Return alternating sines and cosines of each position: float64 `[T, D]` (Vaswani et al. 2017, section 3.5)."""
    rates = 10000 ** (torch.arange(0, D, 2, dtype=torch.float64) / D)
    angles = torch.arange(T, dtype=torch.float64)[:, None] / rates  # [T, D/2]
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)  # [T, D]


DISTANCES = (
    Hint(
        "add",
        id="distances",
        stage="position",
        title="Distances",
        letter=r"\mathbf{C}",
        why=(
            Claim(
                "This is the distance from the query to each key, clipped to between -R and R and shifted by R, so "
                "that it runs from 0 to "
                "2R. All larger distances count as R.",
                so.top(Distances),
                "distances",
            ),
            Claim("These numbers pick a vector of every block."),
        ),
        note=Claim(
            "Note 004 adds all kinds of positions to X; relative ones are not added there, they act inside the scores.",
            so.top(Distances),
        ),
    ),
    Hint(
        "*.gather",
        id="attention.relative",
        title="Scores by distance",
        letter=r"\mathbf{B}",
        why=(
            Claim(
                "Each query also meets a trainable vector for each distance, as if it were part of the key.",
                so.both(so.has(AtDistance), so.trainable),
                "trainable",
            ),
            Claim("The score then depends on how far apart two tokens are, and not on their positions."),
        ),
    ),
    Hint(
        "*.scatter_add",
        id="attention.shares",
        title="Weights by distance",
        letter=r"\bar{\mathbf{A}}",
        why=(
            Claim("The weights of each row are added up by distance.", so.top(SumsByDistance), "weights by distance"),
            Claim("They say how much of the vector of each distance enters the context."),
        ),
    ),
    Hint("parameter *.key_distances", letter=r"\mathbf{A}_K"),
    Hint("parameter *.value_distances", letter=r"\mathbf{A}_V"),
)
"""Of relative positions: lines and letters that are alike wherever they run."""

HINTS = (
    Hint(
        "mask",
        why=WHY["no look ahead"][1:],
    ),
    embedding_hint(),
    Hint(
        "positions",
        title="Sines and cosines",
        letter=r"\mathbf{P}",
        why=(
            Claim(
                "Every position gets its own pattern: waves from fast to slow, like the hands of many clocks.",
                so.has(Sinusoids),
                "one rotation for all positions",
            ),
            Claim(
                "Nothing here is trained. One fixed rotation turns the pattern of a position into that of the "
                "position k further on.",
                so.depends("c"),
                "one rotation for all positions",
            ),
        ),
    ),
    Hint(
        "position",
        why=(
            WHY["position"][0],
            positions("so that they can depend on positions, too."),
            Claim(
                "Because it is a sum, every score splits into four terms: content or position against content or "
                "position.",
                so.top(Plus),
                "sum",
            ),
        ),
        note=Claim(
            "The 2017 paper multiplies embeddings by √D before this sum; note 004 does not, and neither does this "
            "model.",
            so.without(so.has(Root, Scaled, Times)),
        ),
    ),
    *DISTANCES,
    Hint(
        "*.attention.scores",
        note=(
            Claim("Note 004 adds log M of a mask M of zeros and -∞, which is -∞ or NaN everywhere."),
            Claim("M itself is added here.", so.has_causal_mask),
        ),
    ),
    Hint(
        "*.attention.query",
        note=(
            Claim("Note 004's heading says single-head, its contents say multi-head."),
            Claim("Each of the h heads runs the same formula.", so.several_heads),
        ),
    ),
    Hint(
        "*.attention.key",
        note="Note 004 calls j a column of K; a key is a row of K, and a column of its transpose and of the scores.",
    ),
    Hint(
        "*.attention.context",
        note="Note 004 counts heads up to H without defining H; on these pages it is h.",
    ),
    Hint(
        "*.attention.residual",
        letter=r"\mathbf{R}",
        why=(
            ATTENTION_SUM,
            Claim(
                "The sum is normalised in the next step, so no number passes through a block untouched.",
                so.taken_only_by("X"),
                "read by norms alone",
            ),
        ),
    ),
    Hint(
        "*.norm1",
        title="Normalise the sum",
        why=(
            *WHY["norm after"],
            Claim("Many later models normalise before attention (Xiong et al.)."),
        ),
        note=Claim("Note 004 writes LayerNorm without its γ and β; both run.", so.norm_of_kind(LayerNorm, 1, 2)),
    ),
    Hint(
        "*.mlp.residual",
        letter=r"\mathbf{R}'",
        why=(
            Claim("The MLP's result is added to its input.", so.adds("F"), "adds the MLP"),
            Claim("One more norm follows.", so.taken_only_by("X"), "read by norms alone"),
        ),
    ),
    Hint(
        "*.norm2",
        why=WHY["norm after 2"],
    ),
    Hint(
        "logits",
        title="Logits",
        below=r"\mathrm{out}",
        why=(*WHY["own logits"], Claim("Row i says which token belongs at position i of the answer.")),
    ),
    Hint(
        "probabilities",
        why=(
            Claim(
                "The softmax makes each row of scores probabilities that sum to {total}.",
                so.top(Softmax),
                "sum of each row",
                values={"total": "1"},
            ),
            Claim("The largest is the model's answer for this position."),
        ),
    ),
)

PAD = "·"
ALPHABET = PAD + "".join(map(chr, range(32, 127)))
"""A blank and the 95 printable characters of ASCII."""

SPEC = Spec(
    net=Transformer,
    hints=HINTS,
    takes=("text",),
    sizes={"V": 96, "T_max": 16, "D": 24, "h": 2, "d_ff": 48, "L": 1, "R": 15},
    derived={"d_k": "D/h"},
    names=("B", "T", "D", "D/2", "V", "T_max", "h", "d_k", "d_ff", "R", "2*R + 1"),
    probes=(
        {"B": 13, "T": 7, "V": 17, "T_max": 11, "D": 30, "h": 3, "d_ff": 23, "R": 2},
        {"B": 3, "T": 5, "V": 29, "T_max": 19, "D": 28, "h": 4, "d_ff": 31, "R": 6},
        {"B": 8, "T": 13, "V": 37, "T_max": 27, "D": 50, "h": 5, "d_ff": 41, "R": 9},
    ),
    example=counted_tokens,
    prepare=text_input(Characters, ALPHABET, "reverse this one", pad=PAD),
    result=lambda model, inputs, output: {**token_at_each_place(model, inputs, output), "pad": PAD},
    segments=lambda sizes: (Segment("text", 0, sizes["T"]),),
    runs=("B", "T"),
    vocabulary=ALPHABET,
    options={"positions": ("sinusoidal", "learned", "relative"), "mask": ("bidirectional", "causal")},
    idle=lambda options: () if options["positions"] == "relative" else ("R",),
    presets={
        "The encoder of 2017 (Vaswani et al.)": {"V": 37000, "T_max": 512, "T": 512, "D": 512, "h": 8, "d_ff": 2048}
        | {"L": 6},
        "Relative positions, as in note 004": {"positions": "relative"},
    },
)
