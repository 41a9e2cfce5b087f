"""Segmenter: the ViT's patch tokens as a grid, decoded to a class for every pixel (note 001, step 10)."""

from functools import partial

import torch
from torch import nn

from tracer.expr.images import Grid
from tracer.inputs.synthetic import sample_scene
from tracer.models.vit import NAMES, PROBES, SEQUENCE
from tracer.record import Segment
from tracer.spec.blocks import Block, add_blocks, patch_count
from tracer.spec.preparation import photo_input, random_photos
from tracer.spec.results import pixel_classes
from tracer.spec.spec import Spec
from tracer.textbook import claims as so
from tracer.textbook.claims import Claim
from tracer.textbook.names import Hint


class Segmenter(nn.Module):
    """A ViT that classifies every pixel, from its patch tokens and not its CLS token (note 001, step 10).

    It takes `[B, C, H, W]` float pixels, normalised as in training, and returns logits `[B, H, W, K]`, classes last.
    The decoder is one matrix, the same for all tokens, as in Segmenter's linear decoder (Strudel et al. 2021, section
    3.2), but it writes all P×P pixels of a patch instead of one that is then upsampled.
    """

    def __init__(self, *, H: int, W: int, C: int, P: int, D: int, h: int, d_ff: int, L: int, K: int):
        super().__init__()
        N = patch_count(H, W, P)
        self.P, self.K = P, K
        self.embedding = nn.Linear(P * P * C, D)
        self.cls = nn.Parameter(torch.zeros(D))
        self.position = nn.Parameter(torch.randn(N + 1, D) * 0.02)
        self.blocks = add_blocks(self, L, lambda: Block(D=D, h=h, d_ff=d_ff))
        self.norm = nn.LayerNorm(D, eps=1e-6)
        self.decoder = nn.Linear(D, P * P * K)

    def forward(self, image) -> torch.Tensor:
        B, C, H, W, P, D, K = *image.shape, self.P, self.cls.shape[0], self.K
        x = image.view(B, C, H // P, P, W // P, P)  # [B, C, H/P, P, W/P, P]
        x = x.permute(0, 2, 4, 3, 5, 1).reshape(B, -1, P * P * C)  # [B, N, P²C]
        x = self.embedding(x)  # [B, N, D]
        x = torch.cat([self.cls.expand(B, 1, D), x], dim=1)  # [B, N+1, D]
        x = x + self.position  # [B, N+1, D]
        for name in self.blocks:
            x = self.get_submodule(name)(x)  # [B, N+1, D]
        x = self.norm(x)  # [B, N+1, D]
        x = x[:, 1:].contiguous()  # [B, N, D]
        x = x.unflatten(1, (H // P, W // P))  # [B, H/P, W/P, D]
        x = self.decoder(x)  # [B, H/P, W/P, P²K]
        x = x.view(B, H // P, W // P, P, P, K)  # [B, H/P, W/P, P, P, K]
        return x.transpose(2, 3).reshape(B, H, W, K)  # [B, H, W, K]


DROPPED_CLS = Claim(
    "It is dropped here, but it was useful: in every block, the patches could read from it.",
    so.open_to_first,
    "open attention",
)
"""Use of CLS in a model whose decoder reads patches alone."""
HINTS = (
    *SEQUENCE,
    Hint(
        "tokens",
        stage="decoder",
        title="Drop the CLS token",
        letter=r"\mathbf{X}_{\mathrm{patches}}",
        why=(
            Claim(
                "To give every pixel a class, the model must know where things are, and CLS has no place in the "
                "picture."
            ),
            DROPPED_CLS,
        ),
    ),
    Hint(
        "grid",
        stage="decoder",
        why=(
            Claim(
                "The tokens are in the order in which the patches were cut, row by row. Laid out as a grid, they form "
                "a small picture with D numbers at each place.",
                so.top(Grid),
                "rearranged",
            ),
            Claim("Each was computed with information from the whole photo.", so.open_to_first, "open attention"),
        ),
    ),
    Hint(
        "decoder.linear",
        stage="decoder",
        id="cells",
        title="Decode each token",
        letter=r"\mathbf{Y}",
        below=r"\mathrm{dec}",
        why=(
            Claim(
                "One trainable matrix, the same for every place, turns a token into scores for each pixel of its "
                "patch: P × P "
                "pixels times K classes.",
                so.both(so.linear, so.ends_in("K*P**2")),
                "trainable map",
            ),
            Claim("This is the whole decoder."),
        ),
        note=Claim(
            "Note 001 leaves its lightweight decoder open; here it is one matrix that writes all pixels of a patch.",
            so.linear,
        ),
    ),
    Hint(
        "logits",
        stage="decoder",
        title="Unpatchify",
        why=(
            Claim(
                "The scores of each patch are put where the patch was cut from. Nothing is computed.",
                so.rearranges,
                "rearranged",
            ),
            Claim("It reverses the first step, with K scores instead of C colours."),
        ),
        note=Claim(
            "Note 001 speaks of upsampling; here no value is interpolated, and each pixel has its own scores.",
            so.rearranges,
        ),
    ),
)

SPEC = Spec(
    net=Segmenter,
    hints=HINTS,
    takes=("image",),
    samples="scenes",
    sizes={"H": 64, "W": 64, "C": 3, "P": 8, "D": 96, "h": 4, "d_ff": 384, "L": 3, "K": 6},
    derived={"N": "H*W/P**2", "d_k": "D/h"},
    names=(*NAMES, "K*P**2"),
    probes=PROBES,
    example=random_photos,
    prepare=partial(photo_input, sample=lambda: sample_scene().image()),
    result=pixel_classes,
    segments=lambda sizes: (Segment("CLS", 0, 1), Segment("image", 1, sizes["N"] + 1)),
    presets={
        "Note 001: 14 × 14 × 768 to 224 × 224 × K": {"H": 224, "W": 224, "P": 16, "D": 768, "h": 12, "d_ff": 3072}
        | {"L": 1, "K": 10},
    },
)
