"""Videos as tokens: squares of each frame, or blocks that reach over several frames."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from tracer.inputs.synthetic import clip
from tracer.lessons.tokenization import SHARED_SIZES, Tokenization, trace
from tracer.record import Trace
from tracer.spec.spec import build_seeded
from tracer.textbook.claims import claim
from tracer.textbook.names import Hint

SIDE = 16
"""Side of a patch in pixels."""
DEPTHS = (2, 4, 8)
"""Frames of a tubelet that can be chosen."""


class FramePatches(nn.Module):
    """Squares of P × P pixels of each frame, flattened and projected (Bertasius et al. 2021, section 3.1).

    It takes `[B, F, C, H, W]` and returns `[B, n, D]`: frame by frame, each row by row.
    """

    def __init__(self, *, C: int, P: int, D: int):
        super().__init__()
        self.P = P
        self.embedding = nn.Linear(P * P * C, D)

    def forward(self, video) -> torch.Tensor:
        B, F, C, H, W, P = *video.shape, self.P
        x = video.reshape(B, F, C, H // P, P, W // P, P)  # [B, F, C, H/P, P, W/P, P]
        x = x.permute(0, 1, 3, 5, 4, 6, 2).reshape(B, -1, P * P * C)  # [B, n, P²C]
        return self.embedding(x)  # [B, n, D]


class Tubelets(nn.Module):
    """Blocks of τ frames × P × P pixels, flattened and projected (Arnab et al. 2021, section 3.2).

    It takes `[B, F, C, H, W]` and returns `[B, n, D]`: in the order of time, and of one time row by row.
    """

    def __init__(self, *, C: int, P: int, D: int, tau: int):
        super().__init__()
        self.P, self.tau = P, tau
        self.embedding = nn.Linear(tau * P * P * C, D)

    def forward(self, video) -> torch.Tensor:
        B, F, C, H, W, P, tau = *video.shape, self.P, self.tau
        x = video.reshape(B, F // tau, tau, C, H // P, P, W // P, P)  # [B, F/tau, tau, C, H/P, P, W/P, P]
        x = x.permute(0, 1, 4, 6, 2, 5, 7, 3).reshape(B, -1, tau * P * P * C)  # [B, n, tau·P²C]
        return self.embedding(x)  # [B, n, D]


def _frames(sizes: dict[str, int]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return FramePatches(**{name: sizes[name] for name in ("C", "P", "D")}), (_draw(sizes),)


def _tubelets(sizes: dict[str, int]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Tubelets(**{name: sizes[name] for name in ("C", "P", "D", "tau")}), (_draw(sizes),)


def _draw(sizes: dict[str, int]) -> Tensor:
    return torch.randn(*(sizes[name] for name in ("B", "F", "C", "H", "W")))


PROBES = (
    {"B": 19, "F": 8, "H": 35, "W": 15, "C": 2, "P": 5},
    {"B": 17, "F": 10, "H": 15, "W": 33, "C": 7, "P": 3},
    {"B": 5, "F": 9, "H": 28, "W": 42, "C": 2, "P": 7},
)
NAMES = ("F", "C", "P", "H", "W", "H/P", "W/P")
PROJECT = claim("One matrix, the same for every block of pixels, projects each block to D numbers.", "Plus", "Product")
FRAMES = Tokenization(
    kind="video",
    name="frames",
    title="patches of each frame",
    says="Each frame is cut into squares. A token is one place at one time.",
    build=_frames,
    names=(*NAMES, "C*P**2"),
    probes=PROBES,
    derived={"n": "F*H*W/P**2"},
    hints=(
        Hint(
            "tokens.layout",
            title="Cut each frame to patches",
            letter=r"\mathbf{X}_p",
            why=claim(
                "The squares have P × P pixels and are taken frame by frame. Nothing is computed yet: the numbers "
                "are only rearranged.",
                "Rearrange",
            ),
        ),
        Hint("tokens.embedding.linear", title="Project", why=PROJECT, source="Bertasius et al. 2021, section 3.1"),
    ),
)
TUBELETS = Tokenization(
    kind="video",
    name="tubelets",
    title="tubelets",
    says="Blocks span τ frames. A token is one place over a stretch of time, and there are τ times fewer tokens.",
    build=_tubelets,
    names=(*NAMES, "tau", "F/tau", "C*tau*P**2"),
    probes=tuple({**probe, "tau": tau} for probe, tau in zip(PROBES, (4, 5, 3), strict=True)),
    derived={"n": "F*H*W/(tau*P**2)"},
    hints=(
        Hint(
            "tokens.layout",
            title="Cut to tubelets",
            letter=r"\mathbf{X}_p",
            why=claim("Blocks have τ frames and P × P pixels. Motion within a block stays in one token.", "Rearrange"),
        ),
        Hint("tokens.embedding.linear", title="Project", why=PROJECT, source="Arnab et al. 2021, section 3.2"),
    ),
)
WAYS = (FRAMES, TUBELETS)
SLIPS = (
    "Note 004 has TimeSformer split a video into spatio-temporal patches. Bertasius et al. 2021 cut **single frames** "
    "into patches, and divide attention, not the patches, into time and space. Blocks over several frames are the "
    "**tubelets** of Arnab et al. 2021 (ViViT).",
)
"""Errata of texts."""


@cache
def pixels() -> Tensor:
    """Return the clip as float32 `[1, F, 3, H, W]`, from -1 to 1."""
    return torch.from_numpy(clip()).permute(0, 3, 1, 2)[None].float() / 127.5 - 1


def frames() -> Trace:
    """Return the run that cuts each frame of the clip into patches."""
    net = build_seeded(FramePatches, {"C": 3, "P": SIDE, "D": SHARED_SIZES["D"]})
    return trace(FRAMES, net, pixels(), **_sizes())


def tubelets(tau: int) -> Trace:
    """Return the run that cuts the clip into tubelets of `tau` frames."""
    net = build_seeded(Tubelets, {"C": 3, "P": SIDE, "D": SHARED_SIZES["D"], "tau": tau})
    return trace(TUBELETS, net, pixels(), **_sizes(), tau=tau)


def _sizes() -> dict[str, int]:
    _, F, C, H, W = pixels().shape
    return {"F": F, "C": C, "H": H, "W": W, "P": SIDE}
