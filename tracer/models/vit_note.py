"""ViT with one block and one head, number for number as in note 001."""

from math import sqrt

import torch
from torch import nn

from tracer.expr import LayerNorm, Product
from tracer.models.vit import HINTS as VIT_HINTS
from tracer.record import Segment
from tracer.spec.blocks import MLP, add_blocks, patch_count
from tracer.spec.preparation import photo_input, random_photos
from tracer.spec.results import class_probabilities
from tracer.spec.spec import Spec
from tracer.textbook import claims as so
from tracer.textbook.claims import Claim, Why
from tracer.textbook.names import Hint


class ViTNote(nn.Module):
    """An image classifier with a CLS token, without a last norm (note 001; after Dosovitskiy et al. 2021).

    It takes `[B, C, H, W]` float pixels, normalised, and returns logits `[B, K]`. Biases are those of the note: in the
    embedding, the layer norms and the MLP.
    """

    def __init__(self, *, H: int, W: int, C: int, P: int, D: int, d_k: int, d_ff: int, L: int, K: int):
        super().__init__()
        N = patch_count(H, W, P)
        self.P = P
        self.embedding = nn.Linear(P * P * C, D)
        self.cls = nn.Parameter(torch.randn(D) * 0.02)
        self.position = nn.Parameter(torch.randn(N + 1, D) * 0.02)
        self.blocks = add_blocks(self, L, lambda: SingleHeadBlock(D=D, d_k=d_k, d_ff=d_ff))
        self.head = nn.Linear(D, K, bias=False)

    def forward(self, image) -> torch.Tensor:
        B, C, H, W, P, D = *image.shape, self.P, self.cls.shape[0]
        x = image.view(B, C, H // P, P, W // P, P)  # [B, C, H/P, P, W/P, P]
        x = x.permute(0, 2, 4, 3, 5, 1).reshape(B, -1, P * P * C)  # [B, N, P²C]
        x = self.embedding(x)  # [B, N, D]
        x = torch.cat([self.cls.expand(B, 1, D), x], dim=1)  # [B, N+1, D]
        x = x + self.position  # [B, N+1, D]
        for name in self.blocks:
            x = self.get_submodule(name)(x)  # [B, N+1, D]
        return self.head(x[:, 0])  # [B, K]


class SingleHead(nn.Module):
    """Self-attention of one head, d_k wide, without biases (note 001, step 6); `[B, S, D]` in and out."""

    def __init__(self, *, D: int, d_k: int):
        super().__init__()
        self.query = nn.Linear(D, d_k, bias=False)
        self.key = nn.Linear(D, d_k, bias=False)
        self.value = nn.Linear(D, d_k, bias=False)
        self.output = nn.Linear(d_k, D, bias=False)

    def forward(self, x) -> torch.Tensor:
        d_k = self.query.out_features
        q = self.query(x)  # [B, S, d_k]
        k = self.key(x)  # [B, S, d_k]
        v = self.value(x)  # [B, S, d_k]
        scores = q @ k.transpose(-2, -1) / sqrt(d_k)  # [B, S, S]
        weights = scores.softmax(dim=-1)  # [B, S, S]
        context = weights @ v  # [B, S, d_k]
        return self.output(context)  # [B, S, D]


class SingleHeadBlock(nn.Module):
    """Pre-norm block with one head: `Z ← Z + MSA(LN(Z))`, then `Z ← Z + MLP(LN(Z))` (note 001, steps 5 to 8)."""

    def __init__(self, *, D: int, d_k: int, d_ff: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(D, eps=1e-6)
        self.attention = SingleHead(D=D, d_k=d_k)
        self.norm2 = nn.LayerNorm(D, eps=1e-6)
        self.mlp = MLP(D=D, d_ff=d_ff)

    def forward(self, x) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))  # [B, S, D]
        return x + self.mlp(self.norm2(x))  # [B, S, D]


BY_ROOT = (
    Claim("Note 001 divides by σ + ε; the run divides by √(σ² + ε), with the biased variance.", so.top(LayerNorm)),
)
NOTES: dict[str, Why | str] = {
    "patches": "Note 001 flattens a patch channels-last; a strided convolution does the same only after its weights, "
    "which are channels-first, are reordered.",
    "position": "Note 001 calls attention permutation-invariant; it is equivariant: shuffle the tokens, and the "
    "results are shuffled alike.",
    "norm1": BY_ROOT,
    "norm2": BY_ROOT,
    "attention.scores": "Note 001 calls the scores A. With one shared projection these are symmetric, as it says, but "
    "the weights after the softmax are not.",
    "attention.weights": "Note 001 writes the weights as A with a hat.",
    "cls": "Note 001 has no norm after the last block; Dosovitskiy et al. 2021 have one.",
    "logits": (Claim("Note 001 gives the classification no bias, so none runs here.", so.top(Product)),),
}
"""Errata of note 001, by the end of the step's id."""

HINTS = (
    *VIT_HINTS,
    Hint("cls", letter=r"\mathbf{x}_{\mathrm{out}}"),
    *(Hint(f"*{step}", note=note) for step, note in NOTES.items()),
)

SPEC = Spec(
    net=ViTNote,
    hints=HINTS,
    takes=("image",),
    samples="photos",
    sizes={"H": 224, "W": 224, "C": 3, "P": 16, "D": 768, "d_k": 64, "d_ff": 3072, "L": 1, "K": 10},
    derived={"N": "H*W/P**2"},
    names=("B", "D", "N", "N + 1", "K", "C", "P", "H", "W", "H/P", "W/P", "d_k", "d_ff", "C*P**2"),
    probes=(
        {"B": 19, "H": 35, "W": 15, "C": 2, "P": 5, "D": 66, "d_k": 11, "d_ff": 13, "K": 17},
        {"B": 13, "H": 15, "W": 33, "C": 4, "P": 3, "D": 14, "d_k": 9, "d_ff": 29, "K": 23},
        {"B": 10, "H": 21, "W": 35, "C": 6, "P": 7, "D": 52, "d_k": 12, "d_ff": 37, "K": 11},
    ),
    example=random_photos,
    prepare=photo_input,
    result=class_probabilities,
    segments=lambda sizes: (Segment("CLS", 0, 1), Segment("image", 1, sizes["N"] + 1)),
)
