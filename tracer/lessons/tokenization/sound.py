"""Sounds as tokens: frames of a log spectrogram, projected, or the code of the nearest row of a codebook."""

from __future__ import annotations

from functools import cache
from math import pi

import numpy as np
import torch
from torch import Tensor, nn

from tracer.inputs.audio import lesson
from tracer.lessons.tokenization import SHARED_SIZES, Tokenization, trace
from tracer.lessons.tokenization.pictures import NEAREST, Nearest, k_means
from tracer.record import Trace
from tracer.spec.spec import build_seeded
from tracer.textbook.claims import claim
from tracer.textbook.names import Hint

WINDOW, HOP = 256, 128
"""Samples of a frame, and from the beginning of one to that of the next: 32 ms and 16 ms at 8 kHz."""
FLOOR = 1e-4
"""The constant added to the power before the logarithm, so that silence has one."""
ROWS = (16, 32, 64)
"""Rows of a codebook that can be chosen."""


class Spectrogram(nn.Module):
    """Log power of overlapping frames at w/2 + 1 frequencies: `[B, M]` to `[B, n, w/2 + 1]`.

    A discrete Fourier transform is two matrix products, with cosines and with sines; an FFT gives the same numbers with
    fewer multiplications. The window is Hann's.
    """

    def __init__(self, *, M: int, w: int, s: int):
        super().__init__()
        n = (M - w) // s + 1
        t, frequency = torch.arange(w), torch.arange(w // 2 + 1)
        turns = 2 * pi * t[:, None].double() * frequency / w
        self.register_buffer("places", s * torch.arange(n)[:, None] + t)  # [n, w]
        self.register_buffer("window", torch.hann_window(w))
        self.register_buffer("cosines", turns.cos().float())
        self.register_buffer("sines", turns.sin().float())

    def forward(self, sound) -> torch.Tensor:
        frames = sound[:, self.places]  # [B, n, w]
        faded = frames * self.window  # [B, n, w]
        across = faded @ self.cosines  # [B, n, w/2 + 1]
        along = faded @ self.sines  # [B, n, w/2 + 1]
        power = across.square() + along.square()  # [B, n, w/2 + 1]
        return (power + FLOOR).log()  # [B, n, w/2 + 1]


class Frames(nn.Module):
    """Frames of a spectrogram, projected: takes `[B, M]`, returns `[B, n, D]`."""

    def __init__(self, *, M: int, w: int, s: int, D: int):
        super().__init__()
        self.spectrogram = Spectrogram(M=M, w=w, s=s)
        self.embedding = nn.Linear(w // 2 + 1, D)

    def forward(self, sound) -> torch.Tensor:
        return self.embedding(self.spectrogram(sound))  # [B, n, D]


class Codes(nn.Module):
    """Frames of a spectrogram as codes of a codebook, looked up: takes `[B, M]`, returns `[B, n, D]`."""

    def __init__(self, *, M: int, w: int, s: int, D: int, rows: Tensor):
        super().__init__()
        self.spectrogram = Spectrogram(M=M, w=w, s=s)
        self.codebook = Nearest(rows, D)

    def forward(self, sound) -> torch.Tensor:
        return self.codebook(self.spectrogram(sound))  # [B, n, D]


def _frames(sizes: dict[str, int]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Frames(**{name: sizes[name] for name in ("M", "w", "s", "D")}), (torch.randn(sizes["B"], sizes["M"]),)


def _codes(sizes: dict[str, int]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    rows = torch.randn(sizes["V"], sizes["w"] // 2 + 1)
    net = Codes(**{name: sizes[name] for name in ("M", "w", "s", "D")}, rows=rows)
    return net, (torch.randn(sizes["B"], sizes["M"]),)


PROBES = (
    {"B": 19, "M": 48, "w": 8, "s": 5},
    {"B": 17, "M": 63, "w": 24, "s": 3},
    {"B": 5, "M": 102, "w": 18, "s": 7},
)
LINE = "tokens.spectrogram."
STEPS = (
    *(Hint(apart=call, module="tokens.spectrogram") for call in ("index", "mul", "matmul")),
    Hint("parameter *.places", letter=r"\boldsymbol{\pi}"),
    Hint("parameter *.window", letter=r"\mathbf{w}"),
    Hint("parameter *.cosines", letter=r"\mathbf{F}_{\cos}"),
    Hint("parameter *.sines", letter=r"\mathbf{F}_{\sin}"),
    Hint(
        f"{LINE}index",
        title="Cut to frames",
        letter=r"\mathbf{X}_{\mathrm{cut}}",
        why=claim(
            "Frame j takes w samples, starting at sample j · s; π holds their indices. If the hop s is smaller "
            "than w, frames overlap.",
            "Index",
        ),
    ),
    Hint(
        f"{LINE}mul",
        title="Fade in and out",
        letter=r"\mathbf{X}_{w}",
        why=claim(
            "Each frame is multiplied by a window that rises from 0 and falls back to 0. A sharp edge would "
            "contain all frequencies.",
            "Times",
        ),
    ),
    Hint(
        f"{LINE}matmul",
        title="How much of each cosine",
        letter=r"\mathbf{Y}_{\cos}",
        why=claim(
            "A discrete Fourier transform is a matrix product. Column k holds a cosine with k periods in a frame.",
            "Product",
        ),
    ),
    Hint(
        f"{LINE}matmul2",
        title="How much of each sine",
        letter=r"\mathbf{Y}_{\sin}",
        why=claim("This is the same with sines: a wave that is shifted in time is part sine, part cosine.", "Product"),
    ),
    Hint(
        f"{LINE}log",
        title="Log spectrum",
        letter=r"\mathbf{L}",
        why=claim(
            "Both parts together say how loud a frequency is, wherever its wave begins. The logarithm makes quiet "
            "sounds count too, as the ear does.",
            "Log",
        ),
    ),
)
FRAMES = Tokenization(
    kind="sound",
    name="frames",
    title="frames of a spectrogram",
    says="Each short frame becomes the loudness of each frequency, which is then projected. The token is a vector, "
    "and there is no vocabulary.",
    build=_frames,
    names=("w", "M", "s", "w/2 + 1"),
    probes=PROBES,
    derived={"n": "floor((M - w)/s) + 1"},
    hints=(
        *STEPS,
        Hint(
            "tokens.embedding.linear",
            title="Project",
            why=claim("One matrix, the same for all frames, projects each frame to D numbers.", "Plus", "Product"),
        ),
    ),
)
CODES = Tokenization(
    kind="sound",
    name="codes",
    title="codes",
    says="Each frame becomes the number of the nearest row of a codebook. The token is an id, as in text.",
    build=_codes,
    names=("w", "M", "s", "V", "w/2 + 1"),
    probes=tuple({**probe, "V": V} for probe, V in zip(PROBES, (31, 43, 25), strict=True)),
    derived={"n": "floor((M - w)/s) + 1"},
    hints=(*STEPS, *NEAREST),
)
WAYS = (FRAMES, CODES)
SLIPS = (
    "A VQ-VAE, to which note 004 leads, learns the **encoder** that makes the vectors together with the codebook, and "
    "a decoder that turns codes back into sound (van den Oord et al. 2017). Here the vectors are a log spectrogram, "
    "and the codebook is found by k-means on nine other sounds. The step from a vector to the id of its nearest row "
    "is the same.",
)
"""Errata of texts."""


def spectrogram(sound: np.ndarray) -> np.ndarray:
    """Return the log power of the frames of a sound `[M]`, natural logarithm: float32 `[n, w/2 + 1]`."""
    with torch.no_grad():
        return _net(len(sound))(torch.from_numpy(sound)[None])[0].numpy()


def _net(M: int) -> Spectrogram:
    return Spectrogram(M=M, w=WINDOW, s=HOP)


@cache
def codebook(V: int) -> np.ndarray:
    """Return `V` rows, learned from the frames of the sounds of `lesson`: float32 `[V, w/2 + 1]`."""
    return k_means(np.concatenate([spectrogram(sound) for sound in lesson()]), V)


def codes(sound: np.ndarray, V: int) -> np.ndarray:
    """Return the code of each frame of a sound: int64 `[n]`."""
    with torch.no_grad():
        net = Nearest(torch.from_numpy(codebook(V)), SHARED_SIZES["D"])
        return net.codes(torch.from_numpy(spectrogram(sound))[None])[0].numpy()


def trace_frames(sound: np.ndarray) -> Trace:
    """Return the run that projects the frames of a sound `[M]`."""
    net = build_seeded(Frames, {**_sizes(sound), "D": SHARED_SIZES["D"]})
    return trace(FRAMES, net, torch.from_numpy(sound)[None], **_sizes(sound))


def trace_codes(sound: np.ndarray, V: int) -> Trace:
    """Return the run that looks up the codes of a sound `[M]`, of a codebook of `V` rows."""
    net = Codes(M=len(sound), w=WINDOW, s=HOP, D=SHARED_SIZES["D"], rows=torch.from_numpy(codebook(V)))
    return trace(CODES, net, torch.from_numpy(sound)[None], **_sizes(sound), V=V)


def _sizes(sound: np.ndarray) -> dict[str, int]:
    return {"M": len(sound), "w": WINDOW, "s": HOP}
