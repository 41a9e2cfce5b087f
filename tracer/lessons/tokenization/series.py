"""Time series as tokens: patches of consecutive values, or the number of each value's bin."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tracer.lessons.tokenization import SHARED_SIZES, Tokenization, embedding, trace
from tracer.record import Trace
from tracer.spec.spec import build_seeded
from tracer.textbook.claims import claim
from tracer.textbook.names import Hint

LENGTHS = (4, 8, 16)
"""Values of a patch that can be chosen."""
BINS = (8, 32, 128, 4096)
"""Bins that can be chosen."""
REACH = 4.0
"""The middle of the last bin, in units of the mean absolute value; that of the first is its negative."""
EPS = 1e-5


class Normal(nn.Module):
    """A series less its mean and over its standard deviation: `[B, n, P_t]` in and out."""

    def forward(self, patches) -> torch.Tensor:
        centred = patches - patches.mean((1, 2), keepdim=True)  # [B, n, P_t]
        return centred / (centred.square().mean((1, 2), keepdim=True) + EPS).sqrt()  # [B, n, P_t]


class Patches(nn.Module):
    """Patches of P_t values of a normalised series, projected (Nie et al. 2023, section 3.1, here without overlap).

    It takes `[B, M]` and returns `[B, n, D]`.
    """

    def __init__(self, *, P_t: int, D: int):
        super().__init__()
        self.P_t = P_t
        self.normal = Normal()
        self.embedding = nn.Linear(P_t, D)

    def forward(self, series) -> torch.Tensor:
        B, M = series.shape
        patches = series.reshape(B, M // self.P_t, self.P_t)  # [B, n, P_t]
        return self.embedding(self.normal(patches))  # [B, n, D]


class Bin(nn.Module):
    """Bin of each value: over the mean absolute value, rounded to the nearest of V even steps. `[B, n]`."""

    def __init__(self, *, V: int):
        super().__init__()
        self.V = V

    def forward(self, series) -> torch.Tensor:
        scaled = series / series.abs().mean(-1, keepdim=True)  # [B, n]
        steps = (scaled + REACH) * (1 / step(self.V))  # [B, n]
        return steps.round().clamp(0, self.V - 1).long()  # [B, n]


class Bins(nn.Module):
    """Each value of a series as the number of its bin, looked up (Ansari et al. 2024, section 3.1).

    It takes `[B, n]` and returns `[B, n, D]`.
    """

    def __init__(self, *, V: int, D: int):
        super().__init__()
        self.bin = Bin(V=V)
        self.table = nn.Embedding(V, D, _weight=embedding(V, D))

    def forward(self, series) -> torch.Tensor:
        return self.table(self.bin(series))  # [B, n, D]


def step(V: int) -> float:
    """Return the distance of two neighbouring bins' middles for `V` bins, in units of the mean absolute value."""
    return 2 * REACH / (V - 1)


def middles(series: np.ndarray, V: int) -> np.ndarray:
    """Return the values that `V` bins of a series `[M]` decode to: float64 `[V]`."""
    return (np.arange(V) * step(V) - REACH) * np.abs(series.astype(np.float64)).mean()


def to_bins(series: np.ndarray, V: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the bin of each value of a series `[M]`, int64, and the value that it decodes to, float64."""
    scaled = series / np.abs(series.astype(np.float64)).mean()
    ids = np.rint((scaled + REACH) / step(V)).clip(0, V - 1).astype(np.int64)
    return ids, middles(series, V)[ids]


class SeriesLoss(NamedTuple):
    """Loss of a series in bins.

    It has the largest difference of values within the bins, half the width of a bin, the number of values beyond the
    ends, the largest difference of these, and the number of used bins.
    """

    within: float
    half: float
    clipped: int
    largest: float
    used: int


def loss(series: np.ndarray, V: int) -> SeriesLoss:
    """Return the loss of a series `[M]` in bins, measured by decoding the ids again."""
    ids, decoded = to_bins(series, V)
    off, ends = np.abs(series - decoded), middles(series, V)[[0, -1]]
    half = (ends[1] - ends[0]) / (V - 1) / 2
    beyond = (series < ends[0] - half) | (series > ends[1] + half)
    far = float(off[beyond].max(initial=0))
    return SeriesLoss(float(off[~beyond].max(initial=0)), float(half), int(beyond.sum()), far, len(set(ids.tolist())))


def cut(length: int, P_t: int, value: int) -> tuple[int, int]:
    """Return the index of the patch of `P_t` values that a value is in, and the number of patches.

    A value that is left out counts to the first patch.
    """
    return max(0, (value - length % P_t) // P_t), length // P_t


def _patches(sizes: dict[str, int]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Patches(P_t=sizes["P_t"], D=sizes["D"]), (torch.randn(sizes["B"], sizes["M"]),)


def _bins(sizes: dict[str, int]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Bins(V=sizes["V"], D=sizes["D"]), (torch.randn(sizes["B"], sizes["n"]),)


PATCHES = Tokenization(
    kind="series",
    name="patches",
    title="patches of values",
    says="Consecutive values form one token. The token is a vector, and there is no vocabulary.",
    build=_patches,
    names=("M", "P_t"),
    probes=({"B": 19, "M": 40, "P_t": 5}, {"B": 17, "M": 63, "P_t": 9}, {"B": 5, "M": 84, "P_t": 12}),
    derived={"n": "M/P_t"},
    hints=(
        Hint(
            "tokens.normal",
            title="Normalise the series",
            letter=r"\mathbf{x}_{\mathrm{norm}}",
            why=claim(
                "The mean is subtracted, and the result is divided by the standard deviation, so that series of "
                "any level and unit look alike.",
                "DeviationNorm",
                "LayerNormOver",
            ),
        ),
        Hint(
            "tokens.layout",
            title="Cut to patches",
            letter=r"\mathbf{X}_{\mathrm{cut}}",
            why=claim(
                "Consecutive values become one row. Nothing is computed: the numbers are only rearranged.", "Rearrange"
            ),
        ),
        Hint(
            "tokens.embedding.linear",
            title="Project",
            why=claim("One matrix, the same for every patch.", "Plus"),
            source="Nie et al. 2023, section 3.1",
        ),
    ),
)
BIN = Tokenization(
    kind="series",
    name="bins",
    title="bins",
    says="Each value is one token: the number of the bin that it falls into. It is an id, as in text.",
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
            why=claim(
                "The series is divided by its mean absolute value, so that one set of bins suits series of any unit.",
                "Div",
            ),
            source="Ansari et al. 2024, section 3.1",
        ),
        Hint(
            "tokens.bin.to",
            title="Number the bins",
            letter=r"\mathbf{t}",
            why=claim(
                "Each value is rounded to the nearest of V evenly spaced bins. Values beyond the ends go to the "
                "first or the last bin.",
                "Truncated",
            ),
        ),
        Hint("embedding", title="Look up", why=claim("The id selects a row of a table E.", "Lookup")),
    ),
)
WAYS = (PATCHES, BIN)
SLIPS = (
    "Note 004 names TS2Vec for discretised or embedded readings. It gives each time step a **vector**, a learned "
    "representation, and no id (Yue et al. 2022). Bins give ids, as in Chronos (Ansari et al. 2024). Its bins go "
    "from −15 to 15 times the mean absolute value, and its vocabulary has 4,096 entries.",
    "The patches of PatchTST (Nie et al. 2023) may overlap; here they do not.",
)
"""Errata of texts."""


def trace_patches(series: np.ndarray, P_t: int) -> Trace:
    """Return the run that cuts a series `[M]` into patches of `P_t` values; a remainder at its start is left out."""
    net = build_seeded(Patches, {"P_t": P_t, "D": SHARED_SIZES["D"]})
    series = series[len(series) % P_t :]
    return trace(PATCHES, net, torch.from_numpy(series)[None], M=len(series), P_t=P_t)


def trace_bins(series: np.ndarray, V: int) -> Trace:
    """Return the run that looks up the bins of a series `[M]`, of `V`."""
    net = Bins(V=V, D=SHARED_SIZES["D"])
    return trace(BIN, net, torch.from_numpy(series)[None], n=len(series), V=V)
