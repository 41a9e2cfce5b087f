"""Saliency: a photo to a map of what matters in it, by DINOv2's encoder and a small decoder (Oquab et al. 2023)."""

import torch
import torch.nn.functional as F
from torch import nn

from tracer.expr import ReLU
from tracer.models.segmenter import DROPPED_CLS
from tracer.record import Segment
from tracer.spec.blocks import Block, add_blocks, patch_count
from tracer.spec.preparation import photo_input, random_photos
from tracer.spec.spec import Spec
from tracer.textbook import claims as so
from tracer.textbook.claims import Claim
from tracer.textbook.explanations import WHY
from tracer.textbook.names import Hint


class ScaledBlock(Block):
    """Pre-norm block with LayerScale: what each branch adds is multiplied by one trainable number a feature (Touvron
    et al. 2021, Going deeper with image transformers, equation 12)."""

    def __init__(self, *, D: int, h: int, d_ff: int):
        super().__init__(D=D, h=h, d_ff=d_ff)
        self.scale1 = nn.Parameter(torch.ones(D))
        self.scale2 = nn.Parameter(torch.ones(D))

    def forward(self, x) -> torch.Tensor:
        x = x + self.scale1 * self.attention(self.norm1(x))  # [B, N+1, D]
        return x + self.scale2 * self.mlp(self.norm2(x))  # [B, N+1, D]


class Upsample(nn.Module):
    """Twice as many rows and columns: a transposed convolution, a norm of each channel, ReLU."""

    def __init__(self, before: int, after: int):
        super().__init__()
        self.convolution = nn.ConvTranspose2d(before, after, 4, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(after)

    def forward(self, x) -> torch.Tensor:
        return self.norm(self.convolution(x)).relu()


class Saliency(nn.Module):
    """A map of what matters in a photo: the encoder of DINOv2 (Oquab et al. 2023) and a decoder.

    It takes `[B, C, H, W]` float pixels, normalised as in training, of any H and W that P divides, and returns numbers
    between 0 and 1, `[B, H, W]`. The table of positions is a grid of G × G, which is resized to the grid of the photo.
    """

    def __init__(self, *, H: int, W: int, C: int, P: int, D: int, h: int, d_ff: int, L: int, G: int, E: int):
        super().__init__()
        patch_count(H, W, P)
        self.P, self.G = P, G
        self.embedding = nn.Conv2d(C, D, P, stride=P)
        self.cls = nn.Parameter(torch.zeros(D))
        self.position = nn.Parameter(torch.randn(1 + G * G, D) * 0.02)
        self.blocks = add_blocks(self, L, lambda: ScaledBlock(D=D, h=h, d_ff=d_ff))
        self.norm = nn.LayerNorm(D, eps=1e-6)
        self.twice = Upsample(D, 4 * E)
        self.fourfold = Upsample(4 * E, 2 * E)
        self.eightfold = Upsample(2 * E, E)
        self.head = nn.Conv2d(E, 1, 1)

    def forward(self, image) -> torch.Tensor:
        B, C, H, W, P, D, G = *image.shape, self.P, self.cls.shape[0], self.G
        x = self.embedding(image)  # [B, D, H/P, W/P]
        x = x.flatten(2).transpose(1, 2)  # [B, N, D]
        x = torch.cat([self.cls.expand(B, 1, D), x], dim=1)  # [B, N+1, D]
        x = x + self.resized_position(H // P, W // P)  # [B, N+1, D]
        for name in self.blocks:
            x = self.get_submodule(name)(x)  # [B, N+1, D]
        x = self.norm(x)  # [B, N+1, D]
        x = x[:, 1:].contiguous()  # [B, N, D]
        x = x.unflatten(1, (H // P, W // P)).permute(0, 3, 1, 2)  # [B, D, H/P, W/P]
        x = self.twice(x)  # [B, 4·E, 2·H/P, 2·W/P]
        x = self.fourfold(x)  # [B, 2·E, 4·H/P, 4·W/P]
        x = self.eightfold(x)  # [B, E, 8·H/P, 8·W/P]
        x = self.head(x)  # [B, 1, 8·H/P, 8·W/P]
        x = F.interpolate(x, (H, W), mode="bilinear")  # [B, 1, H, W]
        return x[:, 0].sigmoid()  # [B, H, W]

    def resized_position(self, rows: int, columns: int) -> torch.Tensor:
        """Return a vector for CLS and one for each place of a grid, `[N+1, D]`: the table's, resized by cubics."""
        grid = self.position[1:].T.unflatten(1, (self.G, self.G))[None]  # [1, D, G, G]
        grid = F.interpolate(grid, (rows, columns), mode="bicubic")  # [1, D, H/P, W/P]
        return torch.cat([self.position[:1], grid[0].flatten(1).T])  # [N+1, D]


def importance(model, inputs, output: torch.Tensor) -> dict:
    """Return the map of the first photo in cells of 2 × 2 pixels, in whole percent, the share of its pixels above one
    half, and the largest number with its row and column, from 0."""
    values = output[0]
    row, column = divmod(int(values.argmax()), values.shape[-1])
    cells = F.avg_pool2d(values[None], CELL, ceil_mode=True)[0].mul(100).round().int().tolist()
    share = float((values > IMPORTANT).float().mean())
    return {"kind": "map", "map": cells, "share": share, "peak": float(values.max()), "row": row, "column": column}


IMPORTANT = 0.5
"""What the map calls important: what is above one half."""
CELL = 2
"""Pixels of a side of a cell of the answer."""
SCALES = tuple(Hint(f"parameter block*.scale{n}", letter=rf"\boldsymbol{{\lambda}}_{{{n}}}") for n in (1, 2))
UPSAMPLED = {"twice": 2, "fourfold": 4, "eightfold": 8}
"""Stages of the decoder: how many places lie where a patch was, along each side."""
DECODER = (
    Hint(
        "tokens",
        stage="decoder",
        title="Drop the CLS token",
        letter=r"\mathbf{X}_{\mathrm{patches}}",
        why=(
            Claim("The map needs a number for each place, and CLS has no place in the picture."),
            DROPPED_CLS,
        ),
    ),
    *(
        hint
        for name, factor in UPSAMPLED.items()
        for hint in (
            Hint(
                f"{name}.convolution*",
                id=f"{name}.convolution",
                stage="decoder",
                title="Upsample",
                letter=rf"\mathbf{{C}}_{{{factor}}}",
                below=str(factor),
                why=Claim("Each place becomes four. A convolution shrinks a picture; this is the same in reverse."),
            ),
            Hint(
                f"{name}.norm",
                stage="decoder",
                letter=rf"\tilde{{\mathbf{{C}}}}_{{{factor}}}",
                below=str(factor),
                why=(
                    Claim("Each channel is shifted and scaled by what was usual for it in training."),
                    Claim("Then no channel is much louder than the others."),
                ),
            ),
            Hint(
                f"{name}.relu",
                id=f"{name}.output",
                stage="decoder",
                letter=rf"\mathbf{{Y}}_{{{factor}}}",
                why=(
                    Claim("ReLU keeps what is positive and sets the rest to 0.", so.top(ReLU), "ReLU"),
                    Claim("Without it, the convolutions before and after it would be one."),
                ),
            ),
        )
    ),
    Hint(
        "head*",
        id="places",
        stage="decoder",
        title="One number for each place",
        letter=r"\mathbf{Y}_{\mathrm{map}}",
        below=r"\mathrm{map}",
        why=Claim("A convolution of one pixel is a matrix product at each place. Only one channel is left."),
    ),
    Hint(
        "upsample_bilinear2d",
        id="pixels",
        stage="decoder",
        title="Resize to the photo",
        letter=r"\mathbf{Y}_{\mathrm{pixels}}",
        why=(
            Claim("Each pixel is a mixture of the places around it."),
            Claim("The nearer a place is, the more it counts."),
        ),
    ),
    Hint(
        "logits",
        stage="decoder",
        title="Importance",
        why=(
            Claim("The sigmoid turns each number into a share, and keeps their order."),
            Claim("Its training shows it what people find important in a photo; it names nothing."),
        ),
    ),
)
HINTS = (
    Hint("embedding", title="Embed", why=WHY["convolved"]),
    Hint(
        "upsample_bicubic2d",
        id="positions",
        stage="position",
        title="Resize the positions",
        letter=r"\mathbf{P}'",
        why=(
            Claim("The table of positions is a grid of its own. It is resized to the grid of this photo."),
            Claim("Neighbours have similar vectors, so a place among them gets one like theirs."),
        ),
    ),
    Hint("position", why=WHY["order"]),
    *SCALES,
    *DECODER,
)
UP = tuple(f"{n}*{side}/P" for n in (2, 4, 8) for side in "HW")
NAMES = (
    "B",
    "D",
    "N",
    "N + 1",
    "C",
    "P",
    "H",
    "W",
    "H/P",
    "W/P",
    *UP,
    "h",
    "d_k",
    "d_ff",
    "G",
    "E",
    "2*E",
    "4*E",
    "G**2 + 1",
)
PROBES = (
    {"B": 19, "H": 35, "W": 15, "C": 2, "P": 5, "D": 66, "h": 6, "d_ff": 13, "G": 8, "E": 3},
    {"B": 13, "H": 15, "W": 33, "C": 4, "P": 3, "D": 14, "h": 2, "d_ff": 29, "G": 6, "E": 5},
    {"B": 10, "H": 21, "W": 35, "C": 6, "P": 7, "D": 52, "h": 4, "d_ff": 37, "G": 9, "E": 1},
)

SPEC = Spec(
    net=Saliency,
    hints=HINTS,
    takes=("image",),
    samples="photos",
    sizes={"H": 224, "W": 224, "C": 3, "P": 14, "D": 384, "h": 6, "d_ff": 1536, "L": 12, "G": 37, "E": 64},
    derived={"N": "H*W/P**2", "d_k": "D/h"},
    names=NAMES,
    probes=PROBES,
    example=random_photos,
    prepare=photo_input,
    result=importance,
    segments=lambda sizes: (Segment("CLS", 0, 1), Segment("image", 1, sizes["N"] + 1)),
)
