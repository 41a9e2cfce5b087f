"""Pictures as tokens: squares of pixels, each turned into a vector."""

from __future__ import annotations

import torch
from PIL.Image import Image
from torch import Tensor, nn

from tracer.common.seeding import seeded_draws
from tracer.derive.hints import Hint
from tracer.inputs.images import centre_crop, to_array
from tracer.inputs.tensors import MEAN, STD
from tracer.record import Trace
from tracer.tokens import SHARED, Way, trace

SIDE = 128
"""Pixels of each side of the picture that is cut."""
PATCHES = (8, 16, 32)
"""Sides of a patch that can be chosen."""


class Patches(nn.Module):
    """Squares of P × P pixels in raster order, each flattened and projected (Dosovitskiy et al. 2021, equation 1).

    Takes `[B, C, H, W]`, returns `[B, n, D]`.
    """

    def __init__(self, *, C: int, P: int, D: int):
        super().__init__()
        self.P = P
        self.embedding = nn.Linear(P * P * C, D)

    def forward(self, image):
        B, C, H, W, P = *image.shape, self.P
        x = image.view(B, C, H // P, P, W // P, P)  # [B, C, H/P, P, W/P, P]
        x = x.permute(0, 2, 4, 3, 5, 1).reshape(B, -1, P * P * C)  # [B, n, P²C]
        return self.embedding(x)  # [B, n, D]


def _patches(sizes: dict[str, int]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    net = Patches(**{name: sizes[name] for name in ("C", "P", "D")})
    return net, (torch.randn(*(sizes[name] for name in ("B", "C", "H", "W"))),)


NAMES = ("C", "P", "H", "W", "H/P", "W/P", "C*P**2")
PROBES = (
    {"B": 19, "H": 35, "W": 15, "C": 2, "P": 5},
    {"B": 13, "H": 15, "W": 33, "C": 4, "P": 3},
    {"B": 10, "H": 21, "W": 35, "C": 6, "P": 7},
)
CUT = Hint(
    "patches",
    title="Cut to patches",
    why="Squares of P × P pixels, row by row, each flattened pixel by pixel (hwc: row, column, channel). Nothing is "
    "computed yet: numbers move.",
)
PATCH = Way(
    kind="pictures",
    name="patches",
    title="patches",
    says="Cut the picture into squares and project each: a token is a vector of numbers, and there is no vocabulary.",
    build=_patches,
    names=NAMES,
    probes=PROBES,
    derived={"n": "H*W/P**2"},
    hints=(CUT, Hint("embedding", title="Project", why="One learned matrix, the same for every patch.")),
)
WAYS = (PATCH,)


def pixels(photo: Image) -> Tensor:
    """The middle of a photo as float32 `[1, 3, SIDE, SIDE]`, from -1 to 1."""
    return torch.from_numpy(to_array(centre_crop(photo, SIDE, SIDE)[0], MEAN, STD))[None]


def patches(photo: Image, P: int) -> Trace:
    """The run that cuts the middle of a photo into patches of side P."""
    with seeded_draws(0):
        net = Patches(C=3, P=P, D=SHARED["D"])
    return trace(PATCH, net, pixels(photo), C=3, P=P, H=SIDE, W=SIDE)
