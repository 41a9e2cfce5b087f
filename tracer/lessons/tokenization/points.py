"""Points in space as tokens: groups of neighbours around centres, projected, or the code of the nearest row."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from tracer.inputs.synthetic import box, farthest, sphere, torus
from tracer.lessons.tokenization import SHARED_SIZES, Tokenization, trace
from tracer.lessons.tokenization.pictures import NEAREST, Nearest, k_means
from tracer.record import Trace
from tracer.spec.spec import build_seeded
from tracer.textbook.claims import claim
from tracer.textbook.names import Hint

GROUPS = (16, 32, 64)
"""Numbers of centres that can be chosen."""
NEIGHBOURS = 16
"""Points of a group."""
ROWS = 16
"""Rows of the codebook."""
WIDTH = 24
"""Numbers that describe a group before it is a token."""


class Groups(nn.Module):
    """K points nearest to each centre, relative to it, reduced by a maximum over them, in any order.

    It takes points `[B, M, 3]` and centres `[B, n, 3]`, and returns `[B, n, c]`. Sources: Yu et al. 2022, section 3.1;
    Qi et al. 2017, equation 1, for the maximum over points.
    """

    def __init__(self, *, k: int, c: int):
        super().__init__()
        self.k = k
        self.point = nn.Linear(3, c, bias=False)

    def forward(self, points, centres) -> torch.Tensor:
        apart = centres[:, :, None] - points[:, None]  # [B, n, M, 3]
        distances = apart.square().sum(-1)  # [B, n, M]
        nearest = distances.topk(self.k, largest=False).indices  # [B, n, k]
        groups = points[torch.arange(len(points))[:, None, None], nearest]  # [B, n, k, 3]
        relative = groups - centres[:, :, None]  # [B, n, k, 3]
        return self.point(relative).relu().amax(2)  # [B, n, c]


class PointProjection(nn.Module):
    """Groups, projected: points `[B, M, 3]` and centres `[B, n, 3]` to `[B, n, D]`."""

    def __init__(self, *, k: int, c: int, D: int):
        super().__init__()
        self.groups = Groups(k=k, c=c)
        self.embedding = nn.Linear(c, D)

    def forward(self, points, centres) -> torch.Tensor:
        return self.embedding(self.groups(points, centres))  # [B, n, D]


class Codes(nn.Module):
    """Groups as codes of a codebook, looked up: points `[B, M, 3]` and centres `[B, n, 3]` to `[B, n, D]`."""

    def __init__(self, groups: nn.Module, rows: Tensor, D: int):
        super().__init__()
        self.groups = groups
        self.codebook = Nearest(rows, D)

    def forward(self, points, centres) -> torch.Tensor:
        return self.codebook(self.groups(points, centres))  # [B, n, D]


def _draw(sizes: dict[str, int]) -> tuple[Tensor, Tensor]:
    return torch.randn(sizes["B"], sizes["M"], 3), torch.randn(sizes["B"], sizes["n"], 3)


def _build_projected(sizes: dict[str, int]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return PointProjection(k=sizes["k"], c=sizes["c"], D=sizes["D"]), _draw(sizes)


def _build_codes(sizes: dict[str, int]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    net = Codes(Groups(k=sizes["k"], c=sizes["c"]), torch.randn(sizes["V"], sizes["c"]), sizes["D"])
    return net, _draw(sizes)


PROBES = (
    {"B": 19, "M": 40, "n": 8, "k": 5, "c": 27},
    {"B": 17, "M": 63, "n": 12, "k": 9, "c": 34},
    {"B": 5, "M": 88, "n": 16, "k": 7, "c": 21},
)
LINE = "tokens.groups."
STEPS = (
    *(Hint(apart=call, module="tokens.groups") for call in ("index", "relu")),
    Hint(
        f"{LINE}sum",
        title="Distances to the centres",
        letter=r"\boldsymbol{\Delta}_{c}",
        why=claim(
            "This is the square of the distance from each centre to each point. The centres were chosen before, "
            "in a loop.",
            "Sum",
        ),
    ),
    Hint(
        f"{LINE}topk",
        title="Nearest points",
        letter=r"\boldsymbol{\pi}",
        why=claim("These are the indices of the k points nearest to each centre. Groups may share points.", "ArgTopK"),
        source="Yu et al. 2022, section 3.1",
    ),
    Hint(
        f"{LINE}index",
        title="Groups",
        letter=r"\mathbf{G}",
        why=claim("This looks up the coordinates of these points, k for each group.", "Index"),
    ),
    Hint(
        f"{LINE}sub",
        title="Relative to the centre",
        letter=r"\mathbf{G}_{0}",
        why=claim("The centre is subtracted, so that the same shape gives the same numbers wherever it is.", "Minus"),
    ),
    Hint(
        f"{LINE}point.linear",
        title="Describe each point",
        letter=r"\mathbf{Y}_{1}",
        why=claim("One matrix transforms every point of every group.", "Plus", "Product"),
    ),
    Hint(
        f"{LINE}relu",
        title="Activate",
        letter=r"\mathbf{Y}_{2}",
        why=claim("Numbers below 0 become 0.", "ReLU"),
    ),
    Hint(
        f"{LINE}amax",
        title="The largest of each group",
        letter=r"\mathbf{Y}_{\max}",
        why=claim("The largest value of each feature over the points is kept, so their order does not matter.", "Max"),
        source="Qi et al. 2017, equation 1",
    ),
)
GROUP = Tokenization(
    kind="points",
    name="groups",
    title="groups of neighbours",
    says="Each centre and its nearest points form one token. The token is a vector, and there is no vocabulary.",
    build=_build_projected,
    names=("M", "k", "c"),
    probes=PROBES,
    derived={},
    hints=(
        *STEPS,
        Hint(
            "tokens.embedding.linear",
            title="Project",
            why=claim("One matrix, the same for all groups, projects each group to D numbers.", "Plus", "Product"),
        ),
    ),
)
CODE = Tokenization(
    kind="points",
    name="codes",
    title="codes",
    says="Each group becomes the number of the nearest row of a codebook. The token is an id, as in text.",
    build=_build_codes,
    names=("M", "k", "c", "V"),
    probes=tuple({**probe, "V": V} for probe, V in zip(PROBES, (31, 43, 25), strict=True)),
    derived={},
    hints=(*STEPS, *NEAREST),
)
WAYS = (GROUP, CODE)
SLIPS = (
    "Point-BERT, to which note 004 leads, learns its tokenizer as a discrete VAE, which rebuilds the points from the "
    "codes (Yu et al. 2022). Here the network that describes a group has random weights, and the codebook is found "
    "by k-means on groups of six other clouds. Centres, neighbours and relative coordinates are the same.",
)
"""Errata of texts."""


def _net() -> nn.Module:
    return build_seeded(Groups, {"k": NEIGHBOURS, "c": WIDTH})


def describe_groups(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return the features of the group around each centre: points `[M, 3]`, centres `[n, 3]` to float32 `[n, c]`."""
    with torch.no_grad():
        return _net()(torch.from_numpy(points)[None], torch.from_numpy(centres)[None])[0].numpy()


@cache
def codebook() -> np.ndarray:
    """Return rows learned from the groups of other clouds than those on screen: float32 `[V, c]`."""
    clouds = [make(seed) for make in (torus, sphere, box) for seed in (1, 2)]
    return k_means(np.concatenate([describe_groups(cloud, cloud[farthest(cloud, 64)]) for cloud in clouds]), ROWS)


def nearest(points: np.ndarray, centre: int) -> np.ndarray:
    """Return the indices of a centre's group in a cloud `[M, 3]`, nearest first: int64 `[k]`."""
    return ((points - points[centre]) ** 2).sum(axis=1).argsort(kind="stable")[:NEIGHBOURS]


def codes(points: np.ndarray, n: int) -> np.ndarray:
    """Return the codes of the groups around `n` centres of a cloud `[M, 3]`: int64 `[n]`."""
    with torch.no_grad():
        net = Nearest(torch.from_numpy(codebook()), SHARED_SIZES["D"])
        return net.codes(torch.from_numpy(describe_groups(points, points[farthest(points, n)]))[None])[0].numpy()


def trace_groups(points: np.ndarray, n: int) -> Trace:
    """Return the run that projects the groups around `n` centres of a cloud `[M, 3]`."""
    net = build_seeded(PointProjection, {"k": NEIGHBOURS, "c": WIDTH, "D": SHARED_SIZES["D"]})
    return trace(GROUP, net, *_inputs(points, n), **_sizes(points, n))


def trace_codes(points: np.ndarray, n: int) -> Trace:
    """Return the run that looks up the codes of the groups around `n` centres of a cloud `[M, 3]`."""
    net = Codes(_net(), torch.from_numpy(codebook()), SHARED_SIZES["D"])
    return trace(CODE, net, *_inputs(points, n), **_sizes(points, n), V=ROWS)


def _inputs(points: np.ndarray, n: int) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(points)[None], torch.from_numpy(points[farthest(points, n)])[None]


def _sizes(points: np.ndarray, n: int) -> dict[str, int]:
    return {"M": len(points), "n": n, "k": NEIGHBOURS, "c": WIDTH}
