"""Time series as tokens: patches of consecutive values, or the number of the bin that each value falls into."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tracer.common.seeding import seeded_draws
from tracer.derive.hints import Hint
from tracer.record import Trace
from tracer.tokens import SHARED, Way, embedding, trace

LENGTHS = (4, 8, 16)
"""Values of a patch that can be chosen."""
BINS = (8, 32, 128, 4096)
"""Bins that can be chosen."""
REACH = 4.0
"""The middle of the last bin, in units of the mean absolute value; that of the first is its negative."""
EPS = 1e-5


class Normal(nn.Module):
    """A series less its mean and over its standard deviation: `[B, n, P]` in and out."""

    def forward(self, patches):
        centred = patches - patches.mean((1, 2), keepdim=True)  # [B, n, P]
        return centred / (centred.square().mean((1, 2), keepdim=True) + EPS).sqrt()  # [B, n, P]


class Patches(nn.Module):
    """Stretches of P values of a normalised series, projected (Nie et al. 2023, section 3.1, here without overlap).

    Takes `[B, M]`, returns `[B, n, D]`.
    """

    def __init__(self, *, P: int, D: int):
        super().__init__()
        self.P = P
        self.normal = Normal()
        self.embedding = nn.Linear(P, D)

    def forward(self, series):
        B, M = series.shape
        patches = series.reshape(B, M // self.P, self.P)  # [B, n, P]
        return self.embedding(self.normal(patches))  # [B, n, D]


class Bin(nn.Module):
    """The bin of each value: over the mean absolute value, rounded to the nearest of V even steps. `[B, n]`."""

    def __init__(self, *, V: int):
        super().__init__()
        self.V = V

    def forward(self, series):
        scaled = series / series.abs().mean(-1, keepdim=True)  # [B, n]
        steps = (scaled + REACH) * (1 / step(self.V))  # [B, n]
        return steps.round().clamp(0, self.V - 1).long()  # [B, n]


class Bins(nn.Module):
    """Each value of a series as the number of its bin, looked up (Ansari et al. 2024, section 3.1).

    Takes `[B, n]`, returns `[B, n, D]`.
    """

    def __init__(self, *, V: int, D: int):
        super().__init__()
        self.bin = Bin(V=V)
        self.table = nn.Embedding(V, D, _weight=embedding(V, D))

    def forward(self, series):
        return self.table(self.bin(series))  # [B, n, D]


def step(V: int) -> float:
    """How far the middles of two neighbouring bins of `V` lie apart, in units of the mean absolute value."""
    return 2 * REACH / (V - 1)


def middles(series: np.ndarray, V: int) -> np.ndarray:
    """What each of `V` bins of a series `[M]` stands for: float64 `[V]`."""
    return (np.arange(V) * step(V) - REACH) * np.abs(series.astype(np.float64)).mean()


def binned(series: np.ndarray, V: int) -> tuple[np.ndarray, np.ndarray]:
    """The bin of each value of a series `[M]`, int64, and what that bin stands for, float64."""
    scaled = series / np.abs(series.astype(np.float64)).mean()
    ids = np.rint((scaled + REACH) / step(V)).clip(0, V - 1).astype(np.int64)
    return ids, middles(series, V)[ids]


class Loss(NamedTuple):
    """What is lost of a series in bins: the largest difference of values within the bins, half the width of a bin, how
    many values lie beyond the ends, the largest difference of these, and how many bins are used."""

    inside: float
    half: float
    clipped: int
    largest: float
    used: int


def loss(series: np.ndarray, V: int) -> Loss:
    """What bins lose of a series `[M]`, measured by decoding the ids again."""
    ids, decoded = binned(series, V)
    off, ends = np.abs(series - decoded), middles(series, V)[[0, -1]]
    half = (ends[1] - ends[0]) / (V - 1) / 2
    beyond = (series < ends[0] - half) | (series > ends[1] + half)
    far = float(off[beyond].max(initial=0))
    return Loss(float(off[~beyond].max(initial=0)), float(half), int(beyond.sum()), far, len(set(ids.tolist())))


def cut(length: int, P: int, value: int) -> tuple[int, int]:
    """The patch of `P` values that a value of a series of that length is in, and how many patches there are. The first
    patch where the value is left out."""
    return max(0, (value - length % P) // P), length // P


def _patches(sizes: dict[str, int]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Patches(P=sizes["P"], D=sizes["D"]), (torch.randn(sizes["B"], sizes["M"]),)


def _bins(sizes: dict[str, int]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Bins(V=sizes["V"], D=sizes["D"]), (torch.randn(sizes["B"], sizes["n"]),)


PATCHES = Way(
    kind="series",
    name="patches",
    title="patches of values",
    says="P values in a row are one token: a vector, and there is no vocabulary.",
    build=_patches,
    names=("M", "P"),
    probes=({"B": 19, "M": 40, "P": 5}, {"B": 17, "M": 63, "P": 9}, {"B": 5, "M": 88, "P": 11}),
    derived={"n": "M/P"},
    hints=(
        Hint(
            "tokens.normal",
            title="Normalise the series",
            letter=r"\mathbf{x}_{\mathrm{norm}}",
            why="Less its mean and over its standard deviation: series of any level and unit look alike.",
        ),
        Hint(
            "tokens.layout",
            title="Cut to patches",
            letter=r"\mathbf{X}_{\mathrm{cut}}",
            why="P values in a row are one row. Nothing is computed: numbers move.",
        ),
        Hint(
            "tokens.embedding.linear",
            title="Project",
            why="One learned matrix, the same for every patch.",
            source="Nie et al. 2023, section 3.1",
        ),
    ),
)
BIN = Way(
    kind="series",
    name="bins",
    title="bins",
    says="Each value is one token: the number of the bin that it falls into, an id as in text.",
    build=_bins,
    names=("V",),
    probes=({"B": 19, "n": 40, "V": 31}, {"B": 17, "n": 63, "V": 43}, {"B": 5, "n": 88, "V": 25}),
    derived={},
    hints=(
        Hint(apart="div", module="tokens.bin"),
        Hint(
            "tokens.bin.div",
            title="Scale",
            letter=r"\mathbf{x}_{\mathrm{scaled}}",
            why="Over the mean absolute value: then one set of bins suits series of any unit.",
            source="Ansari et al. 2024, section 3.1",
        ),
        Hint(
            "tokens.bin.to",
            title="Number the bins",
            letter=r"\mathbf{t}",
            why="Rounded to the nearest of V even steps; what lies beyond the ends goes to the first or the last bin.",
        ),
        Hint("embedding", title="Look up", why="The id picks a row of a table E, which a model would learn."),
    ),
)
WAYS = (PATCHES, BIN)


def patched(series: np.ndarray, P: int) -> Trace:
    """The run that cuts a series `[M]` into patches of `P` values; what is left at its beginning is left out."""
    with seeded_draws(0):
        net = Patches(P=P, D=SHARED["D"])
    series = series[len(series) % P :]
    return trace(PATCHES, net, torch.from_numpy(series)[None], M=len(series), P=P)


def counted(series: np.ndarray, V: int) -> Trace:
    """The run that looks up the bins of a series `[M]`, of `V`."""
    net = Bins(V=V, D=SHARED["D"])
    return trace(BIN, net, torch.from_numpy(series)[None], n=len(series), V=V)
