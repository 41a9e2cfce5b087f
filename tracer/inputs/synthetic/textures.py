"""Surfaces to inspect: drawn patterns and real textures in grey, and damage to them, all seeded.

A drawn surface is a `Pattern`, so that a lesson can ask for the same one at another angle; a real one is cut from a
photo of a texture. Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import pi

import numpy as np
from PIL import Image

from tracer.utils.error_text import quote

KINDS = ("stripes", "checks", "dots", "weave")
"""What a drawn surface can be."""

TEXTURES = ("brick", "grass", "gravel")
"""The real textures; `textures/CREDITS.md` says whose they are."""

DEFECTS = ("scratch", "stain", "dent")
"""What can be done to a surface."""

PARTS = {"train": (0.0, 0.6), "test": (0.64, 1.0)}
"""The columns of a texture that surfaces of a part are cut from, as shares of its width: apart from one another."""

MIN_CONTRAST = 20
"""By how many grey levels of 255 a pixel must differ to belong to a defect."""


@dataclass(frozen=True)
class Pattern:
    """A drawn surface: a regular pattern in uneven light with grain, drawn by `render`.

    `period` in pixels, `angle` and `phase` in radians, `base`, `contrast`, `light` and `grain` in grey levels of 255;
    `seed` decides the grain.
    """

    kind: str
    period: float
    angle: float
    phase: float
    base: float
    contrast: float
    light: float
    grain: float
    seed: int

    def render(self, size: int = 64) -> np.ndarray:
        """Return the surface as uint8 `[size, size]`."""
        y, x = np.mgrid[:size, :size].astype(np.float32)
        rotated = np.cos(self.angle) * x + np.sin(self.angle) * y, np.cos(self.angle) * y - np.sin(self.angle) * x
        u, v = (2 * pi * along / self.period + self.phase for along in rotated)
        match self.kind:
            case "stripes":
                wave = np.tanh(2 * np.sin(u))
            case "checks":
                wave = np.tanh(3 * np.sin(u) * np.sin(v))
            case "dots":
                wave = 2 * np.exp(np.cos(u) + np.cos(v) - 2) ** 1.5 - 1
            case "weave":
                wave = np.where(np.sin(u / 2) * np.sin(v / 2) > 0, np.sin(u), np.sin(v))
            case _:
                raise ValueError(f"there is no surface {quote(self.kind)}; expected one of {', '.join(KINDS)}")
        light = self.light * (x * np.sin(self.phase) + y * np.cos(self.phase)) / size
        grain = np.random.default_rng(self.seed).normal(0, self.grain, (size, size))
        return np.clip(self.base + self.contrast * wave + light + grain, 0, 255).astype(np.uint8)


def pattern(seed: int, kind: str | None = None) -> Pattern:
    """Return the drawn surface of that seed, of any kind or of the kind `kind`."""
    random = np.random.default_rng(seed)
    random_kind = KINDS[random.integers(len(KINDS))]
    return Pattern(
        kind=kind or random_kind,
        period=float(random.uniform(8, 20)),
        angle=float(random.uniform(0, pi)),
        phase=float(random.uniform(0, 2 * pi)),
        base=float(random.uniform(95, 160)),
        contrast=float(random.uniform(10, 40)),
        light=float(random.uniform(-30, 30)),
        grain=float(random.uniform(1, 5)),
        seed=seed,
    )


@cache
def texture(name: str, part: str) -> np.ndarray:
    """Return the region of a real texture that belongs to a part, "train" or "test": uint8 `[H, W]`, read-only.

    Raise ValueError for a texture that is not in `TEXTURES`.
    """
    if name not in TEXTURES:
        raise ValueError(f"there is no texture {quote(name)}; expected one of {', '.join(TEXTURES)}")
    with (resources.files("tracer") / "inputs" / "textures" / f"{name}.png").open("rb") as file:
        pixels = np.asarray(Image.open(file).convert("L"))
    left, right = (round(share * pixels.shape[1]) for share in PARTS[part])
    region = pixels[:, left:right].copy()
    region.flags.writeable = False
    return region


def cut(name: str, seed: int, part: str, size: int = 64) -> np.ndarray:
    """Return a square cut from a texture's region, 1 to 1.5 times `size` wide and resized to `size`: uint8 `[size,
    size]`."""
    random, region = np.random.default_rng(seed), texture(name, part)
    side = int(random.integers(size, size * 3 // 2 + 1))
    top, left = (int(random.integers(length - side + 1)) for length in region.shape)
    piece = Image.fromarray(region[top : top + side, left : left + side])
    return np.asarray(piece.resize((size, size), Image.Resampling.BILINEAR))


def surface(name: str, seed: int, *, part: str = "test", size: int = 64) -> np.ndarray:
    """Return a defect-free surface: "drawn", one of `KINDS`, or one of `TEXTURES`; uint8 `[size, size]`."""
    if name in TEXTURES:
        return cut(name, seed, part, size)
    return pattern(2 * seed + (part == "test"), None if name == "drawn" else name).render(size)


def damage(pixels: np.ndarray, seed: int, kind: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return a surface with one defect, and its mask: uint8 and bool, both `[H, W]`.

    A scratch is a bent line, 1.5 to 3 pixels wide; a stain a smooth blot that darkens or lightens; a dent is bright on
    the side of the light and dark on the other. A pixel belongs to the defect if it changed by `MIN_CONTRAST` or more.
    """
    random = np.random.default_rng(seed)
    random_kind = DEFECTS[random.integers(len(DEFECTS))]
    kind = kind or random_kind
    height, width = pixels.shape
    y, x = np.mgrid[:height, :width].astype(np.float32)
    at_x, at_y = random.uniform(0.2, 0.8, 2) * (width, height)
    angle, sign = random.uniform(0, 2 * pi), random.choice((-1, 1))
    along = np.cos(angle) * (x - at_x) + np.sin(angle) * (y - at_y)
    across = np.cos(angle) * (y - at_y) - np.sin(angle) * (x - at_x)
    match kind:
        case "scratch":
            length, bend = random.uniform(0.2, 0.45) * width, random.uniform(-0.15, 0.15) * width
            off = across - bend * (along / length) ** 2
            inside = np.exp(-((off / random.uniform(0.75, 1.5)) ** 2)) * (np.abs(along) < length)
            change = sign * random.uniform(60, 110) * inside
        case "stain":
            radius = random.uniform(0.08, 0.18) * width
            wobble = 1 + 0.25 * np.sin(3 * np.arctan2(across, along) + random.uniform(0, 2 * pi))
            inside = 1 / (1 + np.exp((np.hypot(along, 1.4 * across) / (radius * wobble) - 1) * 8))
            change = sign * random.uniform(45, 80) * inside
        case "dent":
            radius = random.uniform(0.06, 0.12) * width
            change = random.uniform(75, 120) * along / radius * np.exp(-(along**2 + across**2) / (2 * radius**2))
        case _:
            raise ValueError(f"there is no defect {quote(kind)}; expected one of {', '.join(DEFECTS)}")
    marred = np.clip(pixels + change, 0, 255).astype(np.uint8)
    return marred, np.abs(marred.astype(int) - pixels) >= MIN_CONTRAST


def patch_mask(mask: np.ndarray, side: int, share: float = 0.1) -> np.ndarray:
    """Return which patches a defect covers by at least this share of their pixels: bool `[N]`, in raster order."""
    height, width = mask.shape
    patches = mask.reshape(height // side, side, width // side, side)
    return patches.mean(axis=(1, 3)).reshape(-1) >= share


def sample() -> Image.Image:
    """Return the surface that models show first: drawn, with a scratch."""
    return Image.fromarray(damage(surface("weave", 5), 3, "scratch")[0])
