"""CLIP: a photo and any list of sentences, brought to one space and compared (Radford et al. 2021; note 002)."""

from dataclasses import replace
from math import log

import torch
from torch import nn

from tracer.attention.masks import causal
from tracer.expr.embeddings import FirstOf
from tracer.expr.indexing import CausalMask
from tracer.inputs.synthetic import VOCABULARY
from tracer.models.vit import SEQUENCE
from tracer.record import Segment
from tracer.spec.blocks import Block, add_blocks, patch_count
from tracer.spec.preparation import SAMPLE, counted_tokens, random_photos, sentences_input
from tracer.spec.results import sentence_probabilities
from tracer.spec.spec import Spec
from tracer.textbook import claims as so
from tracer.textbook.claims import Claim
from tracer.textbook.explanations import INFINITE, WHY, positions
from tracer.textbook.names import Hint

END = 1
"""The number of the token that ends a sentence; its place is read in the end."""


class ImageTower(nn.Module):
    """A ViT without its head (Dosovitskiy et al. 2021): `[B, C, H, W]` to unit vectors `[B, D_e]`."""

    def __init__(self, *, H: int, W: int, C: int, P: int, D: int, h: int, d_ff: int, L: int, D_e: int):
        super().__init__()
        N = patch_count(H, W, P)
        self.P = P
        self.embedding = nn.Linear(P * P * C, D)
        self.cls = nn.Parameter(torch.zeros(D))
        self.position = nn.Parameter(torch.randn(N + 1, D) * 0.02)
        self.blocks = add_blocks(self, L, lambda: Block(D=D, h=h, d_ff=d_ff))
        self.norm = nn.LayerNorm(D, eps=1e-6)
        self.projection = nn.Linear(D, D_e, bias=False)

    def forward(self, image) -> torch.Tensor:
        B, C, H, W, P, D = *image.shape, self.P, self.cls.shape[0]
        x = image.view(B, C, H // P, P, W // P, P)  # [B, C, H/P, P, W/P, P]
        x = x.permute(0, 2, 4, 3, 5, 1).reshape(B, -1, P * P * C)  # [B, N, P²C]
        x = self.embedding(x)  # [B, N, D]
        x = torch.cat([self.cls.expand(B, 1, D), x], dim=1)  # [B, N+1, D]
        x = x + self.position  # [B, N+1, D]
        for name in self.blocks:
            x = self.get_submodule(name)(x)  # [B, N+1, D]
        x = self.norm(x)  # [B, N+1, D]
        x = self.projection(x[:, 0])  # [B, D_e]
        return x / x.norm(dim=-1, keepdim=True)  # [B, D_e]


class TextTower(nn.Module):
    """A causal decoder without its head, read at the end of a sentence: `[K, T]` to unit vectors `[K, D_e]`."""

    def __init__(self, *, V: int, T_max: int, D: int, h: int, d_ff: int, L: int, D_e: int):
        super().__init__()
        self.tokens = nn.Embedding(V, D)
        self.positions = nn.Parameter(torch.randn(T_max, D) * 0.02)
        self.blocks = add_blocks(self, L, lambda: Block(D=D, h=h, d_ff=d_ff))
        self.norm = nn.LayerNorm(D, eps=1e-6)
        self.projection = nn.Linear(D, D_e, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens) -> torch.Tensor:
        K, T = tokens.shape
        if len(self.positions) < T:
            raise ValueError(f"T={T} tokens are too many: the position table has T_max={len(self.positions)} rows")
        mask = causal(T, device=tokens.device)  # [T, T]
        x = self.tokens(tokens)  # [K, T, D]
        x = x + self.positions[:T]  # [K, T, D]
        for name in self.blocks:
            x = self.get_submodule(name)(x, mask)  # [K, T, D]
        x = self.norm(x)  # [K, T, D]
        ends = (tokens == END).int().argmax(dim=1)  # [K]
        x = x[torch.arange(K, device=x.device), ends]  # [K, D]
        x = self.projection(x)  # [K, D_e]
        return x / x.norm(dim=-1, keepdim=True)  # [K, D_e]


class CLIP(nn.Module):
    """A model that scores each of K sentences against each photo (Radford et al. 2021, figures 1 and 3).

    It takes `[B, C, H, W]` float pixels and token numbers `[K, T]`, T at most T_max, a sentence a row, ended and padded
    with the end token; it returns logits `[B, K]`, cosines times a learned temperature.
    """

    def __init__(
        self, *, H: int, W: int, C: int, P: int, V: int, T_max: int, D: int, h: int, d_ff: int, L: int, D_e: int
    ):
        super().__init__()
        shared = {"D": D, "h": h, "d_ff": d_ff, "L": L, "D_e": D_e}
        self.image = ImageTower(H=H, W=W, C=C, P=P, **shared)
        self.text = TextTower(V=V, T_max=T_max, **shared)
        self.log_scale = nn.Parameter(torch.tensor(log(1 / 0.07)))

    def forward(self, image, tokens) -> torch.Tensor:
        x = self.image(image)  # [B, D_e]
        y = self.text(tokens)  # [K, D_e]
        cosines = x @ y.T  # [B, K]
        return self.log_scale.exp() * cosines  # [B, K]


def end_sentences(tokens: torch.Tensor) -> torch.Tensor:
    """Return sentences `[K, T]` whose last token is the end token."""
    tokens[:, -1] = END
    return tokens


HINTS = (
    *(replace(hint, at=f"image.{hint.at}") for hint in SEQUENCE if hint.at != "position"),
    Hint(
        "*.position",
        letter=r"\mathbf{X}_0",
        why=(
            WHY["position"][0],
            positions(
                "so that they can depend on positions, too. The same photo or sentence in another order then differs."
            ),
        ),
    ),
    Hint(
        "text.mask",
        why=(
            Claim("The text tower reads like a language model: no word sees the words after it."),
            Claim(
                "The matrix of {opened} and {closed} is added to the scores of every block of this tower.",
                so.both(so.has(CausalMask), so.by_infinity),
                "open and closed cells",
                values=INFINITE,
            ),
        ),
    ),
    Hint(
        "text.embedding",
        title="Look up",
        letter=r"\mathbf{X}_t",
        why=WHY["row of a table"],
    ),
    Hint(
        "image.cls",
        id="token",
        title="Take one token",
        why=WHY["take"],
    ),
    Hint(
        "text.argmax",
        id="ends",
        stage="head",
        title="Where it ends",
        letter=r"\mathbf{e}",
        why=(
            Claim("Sentences differ in length, so they are padded with end tokens."),
            Claim("This says where the first end token of each stands.", so.top(FirstOf), "first end token"),
        ),
    ),
    Hint(
        "text.index",
        id="token",
        stage="head",
        title="Take one token",
        letter=r"\mathbf{x}_f",
        why=(
            Claim(
                "From each sentence, the model reads one token: the one where it ends.",
                so.without(so.trainable),
                "fewer tokens",
            ),
            Claim(
                "The causal mask lets it see every word before it, and the tokens after it change nothing.",
                so.causal,
                "causal",
            ),
        ),
    ),
    Hint(
        "*.projection.linear",
        id="projection",
        stage="head",
        title="Into one space",
        letter=r"\mathbf{y}",
        below=r"\mathrm{proj}",
        why=(
            Claim(
                "A trainable matrix maps it into the space of D_e numbers in which photos and sentences are compared.",
                so.both(so.linear, so.ends_in("D_e")),
                "trainable map",
            ),
            Claim("The other tower has its own matrix.", so.own_to_it, "own parameters"),
        ),
    ),
    Hint(
        "*.unit_length",
        id="unit",
        stage="head",
        title="Unit length",
        letter=r"\hat{\mathbf{y}}",
        why=(
            Claim(
                "Only the direction matters, not the length, so each vector is divided by its own length.",
                so.divided_by_length,
                "unit rows",
            ),
            Claim(
                "The product of two such vectors is the cosine of the angle between them.",
                so.divided_by_length,
                "unit rows",
            ),
        ),
    ),
    Hint(
        "matmul",
        id="cosines",
        stage="head",
        title="Compare",
        letter=r"\mathbf{C}",
        why=(
            Claim(
                "Every photo is compared with every sentence: 1 where they point the same way.",
                so.of_unit_vectors,
                "unit products",
            ),
            Claim("No list of classes is built in, so any sentences can be used."),
        ),
    ),
    Hint("parameter log_scale", letter=r"\tau"),
    Hint(
        "logits",
        title="Temperature",
        why=(
            Claim(
                "Cosines lie between {low} and {high}, too close together for a softmax.",
                so.of_cosines,
                "bounds of operands",
                values={"low": "-1", "high": "1"},
            ),
            Claim(
                "A trainable factor spreads them out. The softmax of a row then says which sentence fits the photo.",
                so.trainable,
                "trainable",
            ),
        ),
    ),
)

SPEC = Spec(
    net=CLIP,
    hints=HINTS,
    takes=("image", "text"),
    samples="scenes",
    sizes={"H": 64, "W": 64, "C": 3, "P": 8, "V": len(VOCABULARY), "T_max": 20}
    | {"D": 96, "h": 4, "d_ff": 384, "L": 3, "D_e": 64},
    derived={"N": "H*W/P**2", "d_k": "D/h"},
    names=(
        *("B", "K", "D", "D_e", "N", "N + 1", "T", "V", "T_max", "C", "P", "H", "W", "H/P", "W/P", "h", "d_k", "d_ff"),
        "C*P**2",
    ),
    probes=(
        {"B": 19, "K": 37, "T": 8, "H": 35, "W": 15, "C": 2, "P": 5, "V": 41, "T_max": 23}
        | {"D": 66, "h": 6, "d_ff": 13, "D_e": 17},
        {"B": 13, "K": 43, "T": 6, "H": 15, "W": 33, "C": 4, "P": 3, "V": 31, "T_max": 37}
        | {"D": 14, "h": 2, "d_ff": 29, "D_e": 47},
        {"B": 10, "K": 53, "T": 9, "H": 21, "W": 35, "C": 6, "P": 7, "V": 59, "T_max": 27}
        | {"D": 52, "h": 4, "d_ff": 37, "D_e": 29},
    ),
    example=lambda sizes: (*random_photos(sizes), end_sentences(*counted_tokens({**sizes, "B": sizes["K"]}))),
    prepare=sentences_input(VOCABULARY, SAMPLE),
    result=sentence_probabilities,
    segments=lambda sizes: (
        Segment("CLS", 0, 1, "image"),
        Segment("image", 1, sizes["N"] + 1, "image"),
        Segment("text", 0, sizes["T"], "text"),
    ),
    runs=("B", "K", "T"),
    vocabulary=VOCABULARY,
    parts={"image": "L", "text": "L"},
)
