"""Vision Transformer: a photo cut into patches, an encoder, a class (Dosovitskiy et al. 2021)."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from tracer.inputs.model_inputs import Inputs
from tracer.record import Segment
from tracer.spec.blocks import Block, add_blocks, patch_count
from tracer.spec.preparation import photo_input, place_visible, random_photos
from tracer.spec.results import class_probabilities
from tracer.spec.spec import Spec
from tracer.textbook import claims as so
from tracer.textbook.claims import Claim
from tracer.textbook.explanations import WHY
from tracer.textbook.names import Hint


class ViT(nn.Module):
    """An image classifier with a CLS token (Dosovitskiy et al. 2021, equations 1 to 4).

    It takes `[B, C, H, W]` float pixels, normalised as in training, and returns logits `[B, K]`. To leave patches out,
    it takes the numbers `[B, N_v+1]` of the tokens that stay, CLS, which is 0, among them.
    """

    def __init__(self, *, H: int, W: int, C: int, P: int, D: int, h: int, d_ff: int, L: int, K: int):
        super().__init__()
        N = patch_count(H, W, P)
        self.P = P
        self.embedding = nn.Linear(P * P * C, D)
        self.cls = nn.Parameter(torch.zeros(D))
        self.position = nn.Parameter(torch.randn(N + 1, D) * 0.02)
        self.blocks = add_blocks(self, L, lambda: Block(D=D, h=h, d_ff=d_ff))
        self.norm = nn.LayerNorm(D, eps=1e-6)
        self.head = nn.Linear(D, K)

    def forward(self, image, kept=None) -> torch.Tensor:
        B, C, H, W, P, D = *image.shape, self.P, self.cls.shape[0]
        x = image.view(B, C, H // P, P, W // P, P)  # [B, C, H/P, P, W/P, P]
        x = x.permute(0, 2, 4, 3, 5, 1).reshape(B, -1, P * P * C)  # [B, N, P²C]
        x = self.embedding(x)  # [B, N, D]
        x = torch.cat([self.cls.expand(B, 1, D), x], dim=1)  # [B, N+1, D]
        x = x + self.position  # [B, N+1, D]
        if kept is not None:
            x = x.gather(1, kept[:, :, None].expand(-1, -1, D))  # [B, N_v+1, D]
        for name in self.blocks:
            x = self.get_submodule(name)(x)  # [B, N+1, D]
        x = self.norm(x)  # [B, N+1, D]
        return self.head(x[:, 0])  # [B, K]


SEQUENCE = (
    Hint(
        "patches",
        title="Cut to patches",
        why=WHY["cut"],
    ),
    Hint(
        "embedding",
        title="Embed",
        why=WHY["embed"],
    ),
    Hint(
        "position",
        why=WHY["order"],
    ),
)
"""Hints on the lines from the photo to the first block."""

HINTS = (*SEQUENCE, Hint("logits", title="Classify", below=r"\mathrm{cls}"))

LEFT_OUT = Hint(
    "chosen",
    id="kept",
    title="Leave patches out",
    why=(
        Claim(
            "Only the tokens on the list π go on; the patches that you removed are left out.",
            so.fewer_tokens,
            "fewer rows",
        ),
        Claim("Each token that stays keeps its own position, so the model can still tell where its patch was."),
    ),
)

NOTES = {
    "embedding": "Note 002 calls this space higher-dimensional; it is as wide as one chooses: in B/16 the matrix "
    "goes from 768 to 768.",
    "*.attention.query": "Note 002 says that each column of Q, K and V is a query, key or value; each row is.",
    "*.attention.context": "Note 002 writes D_h = D/3 here; a head is D/h wide.",
    "norm": "Note 002 draws no norm after the last block; this one runs.",
    "logits": "Note 002's example has an MLP as head; here it is one matrix.",
}
"""Errata of note 002, by the step's id."""


def some_patches(model: Any, image: Any, text: Any, options: dict[str, int]) -> Inputs:
    """Return the input of `photo_input`, and the tokens of all patches in order, from which some can be left out."""
    N = patch_count(*(model.sizes[size] for size in "HWP"))
    inputs = photo_input(model, image, text, {**options, "N_v": N})
    segments = place_visible(inputs.segments, range(N))
    return replace(inputs, named={"kept": torch.arange(N + 1).repeat(options["B"], 1)}, segments=segments)


def some_tokens(sizes: dict[str, int]) -> Inputs:
    """Return a probe: random pixels, and the first tokens."""
    return Inputs(random_photos(sizes), named={"kept": torch.arange(sizes["N_v"] + 1).repeat(sizes["B"], 1)})


NAMES = ("B", "D", "N", "N + 1", "K", "C", "P", "H", "W", "H/P", "W/P", "h", "d_k", "d_ff", "C*P**2")
PROBES = (
    {"B": 19, "H": 35, "W": 15, "C": 2, "P": 5, "D": 66, "h": 6, "d_ff": 13, "K": 17},
    {"B": 13, "H": 15, "W": 33, "C": 4, "P": 3, "D": 14, "h": 2, "d_ff": 29, "K": 23},
    {"B": 10, "H": 21, "W": 35, "C": 6, "P": 7, "D": 52, "h": 4, "d_ff": 37, "K": 11},
)

ALL_HINTS = (*HINTS, *(Hint(step, note=note) for step, note in NOTES.items()))

SUBSET = {
    "hints": (*ALL_HINTS, LEFT_OUT),
    "runs": ("B", "N_v"),
    "names": (*NAMES, "N_v", "N_v + 1"),
    "probes": tuple({**probe, "N_v": count} for probe, count in zip(PROBES, (9, 17, 8), strict=True)),
    "example": some_tokens,
    "prepare": some_patches,
    "segments": lambda sizes: (Segment("CLS", 0, 1), Segment("visible", 1, sizes["N_v"] + 1)),
}
"""What differs where patches are left out."""

SPEC = Spec(
    net=ViT,
    hints=ALL_HINTS,
    subset=SUBSET,
    takes=("image",),
    samples="photos",
    sizes={"H": 32, "W": 32, "C": 3, "P": 4, "D": 128, "h": 4, "d_ff": 512, "L": 6, "K": 10},
    derived={"N": "H*W/P**2", "d_k": "D/h"},
    names=NAMES,
    probes=PROBES,
    example=random_photos,
    prepare=photo_input,
    result=class_probabilities,
    segments=lambda sizes: (Segment("CLS", 0, 1), Segment("image", 1, sizes["N"] + 1)),
    presets={
        "ViT-B/16 (Dosovitskiy et al. 2021)": {"H": 224, "W": 224, "P": 16, "D": 768, "h": 12, "d_ff": 3072, "L": 12}
        | {"K": 1000},
        "One block of ViT-B/16": {"H": 224, "W": 224, "P": 16, "D": 768, "h": 12, "d_ff": 3072, "L": 1, "K": 1000},
        "ViT-H/14 (Dosovitskiy et al. 2021)": {"H": 224, "W": 224, "P": 14, "D": 1280, "h": 16, "d_ff": 5120, "L": 32}
        | {"K": 1000},
    },
)
