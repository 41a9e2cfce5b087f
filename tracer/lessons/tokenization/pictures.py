"""Pictures as tokens: squares of pixels, each mapped to a vector."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor, nn

from tracer.inputs.images import MEAN, STD, centre_crop, to_array
from tracer.inputs.model_inputs import samples
from tracer.lessons.tokenization import SHARED_SIZES, Tokenization, embedding, trace
from tracer.record import Trace
from tracer.spec.spec import build_seeded
from tracer.textbook.claims import claim
from tracer.textbook.names import Hint

# Codes: the number of the nearest row of a codebook, and the row of a table that this number looks up.

ROUNDS = 25
"""Rounds of k-means at most."""


class Nearest(nn.Module):
    """Number of the row of a codebook `[V, K]` that is nearest to each vector, and its row in a table `[V, D]`.

    It takes `[B, n, K]` and returns `[B, n, D]`. Source: van den Oord et al. 2017, equations 1 and 2.
    """

    def __init__(self, rows: Tensor, D: int):
        super().__init__()
        self.rows = nn.Parameter(rows, requires_grad=False)
        self.table = nn.Embedding(len(rows), D, _weight=embedding(len(rows), D))

    def forward(self, x) -> Tensor:
        return self.table(self.codes(x))  # [B, n, D]

    def codes(self, x) -> Tensor:
        distances = x.square().sum(-1, keepdim=True) - 2 * x @ self.rows.T + self.rows.square().sum(-1)  # [B, n, V]
        return distances.argmin(-1)  # [B, n]


NEAREST = (
    Hint("parameter *.rows", letter=r"\mathbf{C}"),
    Hint(
        "tokens.codebook.sum",
        title="Lengths of the codebook's rows",
        letter=r"\mathbf{c}",
        why=claim("This is the square of the length of each row of the codebook C.", "Sum"),
    ),
    Hint(
        "tokens.codebook.add",
        title="Distances to the codebook",
        letter=r"\boldsymbol{\Delta}",
        why=claim(
            "This is the square of the distance from each vector to each row, |x − c|² = |x|² − 2 x·c + |c|².", "Plus"
        ),
    ),
    Hint(
        "tokens.codebook.argmin",
        title="Codes",
        letter=r"\mathbf{t}",
        why=claim(
            "This is the number of the nearest row. All that is left of the vector is an id, as for a piece of text.",
            "ArgMin",
        ),
        source="van den Oord et al. 2017, equations 1 and 2",
    ),
    Hint(
        "embedding",
        title="Look up",
        why=claim("The id selects a row of a separate table E.", "Lookup"),
    ),
)


def k_means(points: np.ndarray, count: int) -> np.ndarray:
    """Return the rows of k-means, float32 `[V, K]`, each the mean of its nearest points among `[M, K]`.

    It begins with points far from one another, drawn with a probability that grows with the square of the distance to
    those drawn before (Arthur and Vassilvitskii 2007). Raise ValueError for more rows than points.
    """
    if not 1 <= count <= len(points):
        raise ValueError(f"{count} rows can't be learned from {len(points)} points")
    random, points = np.random.default_rng(0), points.astype(np.float64)
    rows = points[random.integers(len(points))][None]
    away = ((points - rows[0]) ** 2).sum(axis=1)
    while len(rows) < count:
        chance = away / away.sum() if away.sum() > 0 else None
        rows = np.concatenate([rows, points[random.choice(len(points), p=chance)][None]])
        away = np.minimum(away, ((points - rows[-1]) ** 2).sum(axis=1))
    nearest = None
    for _ in range(ROUNDS):
        before, nearest = nearest, ((rows**2).sum(axis=1) - 2 * points @ rows.T).argmin(axis=1)
        if before is not None and (before == nearest).all():
            break
        for row in np.unique(nearest):
            rows[row] = points[nearest == row].mean(axis=0)
    return rows.astype(np.float32)


SIDE = 128
"""Pixels of each side of the picture that is cut."""
PATCHES = (8, 16, 32)
"""Sides of a patch that can be chosen."""
CODE_SIDE = 8
"""The side of a patch that a code stands for."""
CODES = (16, 64, 256)
"""Sizes of a codebook that can be chosen."""


class Cut(nn.Module):
    """Squares of P × P pixels in raster order, each flattened: `[B, C, H, W]` to `[B, n, P²C]`."""

    def __init__(self, P: int):
        super().__init__()
        self.P = P

    def forward(self, image) -> torch.Tensor:
        B, C, H, W, P = *image.shape, self.P
        x = image.view(B, C, H // P, P, W // P, P)  # [B, C, H/P, P, W/P, P]
        return x.permute(0, 2, 4, 3, 5, 1).reshape(B, -1, P * P * C)  # [B, n, P²C]


class Patches(nn.Module):
    """Each square projected (Dosovitskiy et al. 2021, equation 1), `[B, C, H, W]` to `[B, n, D]`."""

    def __init__(self, *, C: int, P: int, D: int):
        super().__init__()
        self.cut = Cut(P)
        self.embedding = nn.Linear(P * P * C, D)

    def forward(self, image) -> torch.Tensor:
        return self.embedding(self.cut(image))  # [B, n, D]


class Codes(nn.Module):
    """Each square as the id of the nearest code, and that id's row of a table; `codes` are rows `[V, P²C]`.

    It takes `[B, C, H, W]` and returns `[B, n, D]`. Source: Esser et al. 2021, equation 2, on pixels, not features.
    """

    def __init__(self, codes: Tensor, *, P: int, D: int):
        super().__init__()
        self.cut = Cut(P)
        self.codebook = Nearest(codes, D)

    def forward(self, image) -> torch.Tensor:
        return self.codebook(self.cut(image))  # [B, n, D]


def _patches(sizes: dict[str, int]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    net = Patches(**{name: sizes[name] for name in ("C", "P", "D")})
    return net, (torch.randn(*(sizes[name] for name in ("B", "C", "H", "W"))),)


def _codes(sizes: dict[str, int]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    C, P, V, D = (sizes[name] for name in ("C", "P", "V", "D"))
    image = torch.randn(*(sizes[name] for name in ("B", "C", "H", "W")))
    return Codes(torch.randn(V, P * P * C), P=P, D=D), (image,)


NAMES = ("C", "P", "H", "W", "H/P", "W/P", "C*P**2")
PROBES = (
    {"B": 19, "H": 35, "W": 15, "C": 2, "P": 5},
    {"B": 13, "H": 15, "W": 33, "C": 4, "P": 3},
    {"B": 10, "H": 21, "W": 35, "C": 6, "P": 7},
)
PATCHES_HINT = Hint(
    "patches",
    title="Cut to patches",
    why=claim(
        "The squares have P × P pixels and are taken row by row, each flattened pixel by pixel (hwc: row, column, "
        "channel). Nothing is computed yet: the numbers are only rearranged.",
        "Patches",
    ),
)
PATCH = Tokenization(
    kind="pictures",
    name="patches",
    title="patches",
    says="The picture is cut into squares, and each is projected. The token is a vector, and there is no vocabulary.",
    build=_patches,
    names=NAMES,
    probes=PROBES,
    derived={"n": "H*W/P**2"},
    hints=(
        PATCHES_HINT,
        Hint("embedding", title="Project", why=claim("One matrix, the same for every patch.", "Plus")),
    ),
)
CODE = Tokenization(
    kind="pictures",
    name="codes",
    title="codes",
    says="Each square becomes the id of the nearest of V codes. A picture is then a sequence of ids, like a text.",
    build=_codes,
    names=(*NAMES, "V"),
    probes=tuple({**sizes, "V": V} for sizes, V in zip(PROBES, (31, 43, 47), strict=True)),
    derived={"n": "H*W/P**2"},
    hints=(PATCHES_HINT, *NEAREST),
)
WAYS = (PATCH, CODE)


def pixels(photo: Image) -> Tensor:
    """Return the middle of a photo as float32 `[1, 3, SIDE, SIDE]`, from -1 to 1."""
    return torch.from_numpy(to_array(centre_crop(photo, SIDE, SIDE)[0], MEAN, STD))[None]


def patches(photo: Image, P: int) -> Trace:
    """Return the run that cuts the middle of a photo into patches of side P."""
    net = build_seeded(Patches, {"C": 3, "P": P, "D": SHARED_SIZES["D"]})
    return trace(PATCH, net, pixels(photo), C=3, P=P, H=SIDE, W=SIDE)


def codes(photo: Image, V: int) -> Trace:
    """Return the run that finds the nearest of V codes for each patch of side `CODE_SIDE` of the middle of a photo."""
    net = Codes(codebook(V), P=CODE_SIDE, D=SHARED_SIZES["D"])
    return trace(CODE, net, pixels(photo), C=3, P=CODE_SIDE, H=SIDE, W=SIDE, V=V)


@cache
def codebook(V: int) -> Tensor:
    """Return V codes `[V, P²C]` of the patches of the sample photos alone, by k-means."""
    with torch.no_grad():
        cut = [Cut(CODE_SIDE)(pixels(opened()))[0] for opened in samples("photos").values()]
    return torch.from_numpy(k_means(torch.cat(cut).numpy(), V))


class Reconstruction(NamedTuple):
    """A picture as codes: `ids` `[rows, columns]`, the decoded `picture`, uint8 `[SIDE, SIDE, 3]`, and its `error`.

    The error is the root mean square in levels of 255; `codes` are all codes, uint8 `[V, P, P, 3]`.
    """

    ids: np.ndarray
    picture: np.ndarray
    error: float
    codes: np.ndarray


def rebuilt(photo: Image, V: int) -> Reconstruction:
    """Return the middle of a photo in V codes."""
    rows, side = codebook(V), SIDE // CODE_SIDE
    with torch.no_grad():
        vectors = Cut(CODE_SIDE)(pixels(photo))[0]
        ids = Nearest(rows, SHARED_SIZES["D"]).codes(vectors)
    colours = _levels(rows).view(V, CODE_SIDE, CODE_SIDE, 3)
    spelled = colours[ids].view(side, side, CODE_SIDE, CODE_SIDE, 3).permute(0, 2, 1, 3, 4).reshape(SIDE, SIDE, 3)
    error = 127.5 * float((rows[ids] - vectors).square().mean().sqrt())
    return Reconstruction(ids.view(side, side).numpy(), spelled.numpy(), error, colours.numpy())


def _levels(values: Tensor) -> Tensor:
    """Quantize values from -1 to 1 to 256 levels."""
    return ((values.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


SLIPS = {
    "patches": (
        "Note 001 flattens a patch channels last, and so does this cut. A convolution of stride P computes the same "
        "product with its weights channels-first: they must be reordered to give W_E.",
    ),
    "codes": (
        "VQGAN, to which note 004 leads, quantises **features**: one convolutional network computes them from the "
        "picture, and another draws the picture from the codes. Both are trained with a perceptual and an "
        "adversarial loss (Esser et al. 2021). Here there are no networks: the codes are means of patches of pixels, "
        "found by k-means on seven photos. The step from a vector to the id of its nearest code is the same.",
    ),
}
"""Errata of texts, by way: a test checks each."""
