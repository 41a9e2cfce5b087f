"""Inputs that are drawn rather than recorded: scenes, textures, solids, series and clips."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from math import cos, pi, sin, sqrt
from typing import Any

import numpy as np
from PIL import Image

from tracer.utils.errors import quote

# Flat shapes as signed distances: the distance of a point from a shape's edge, negative inside.
#
# Each function takes x to the right and y down from the centre, and the radius (half the shape's width), in pixels, as
# arrays that broadcast. Source: Quilez, 2D distance functions; away from an edge's nearest side they are bounds, which
# is all that drawing with antialiased edges needs.


def circle(x, y, r) -> np.ndarray:
    return np.hypot(x, y) - r


def square(x, y, r) -> np.ndarray:
    return np.maximum(abs(x), abs(y)) - r


def triangle(x, y, r) -> np.ndarray:
    """Return the distance from a triangle that points up: base 2r at the bottom, height 2r."""
    return np.maximum(y - r, (2 * abs(x) - y - r) / sqrt(5))


def cross(x, y, r) -> np.ndarray:
    """Return the distance from a cross of two bars of a third of the width."""
    across, down = abs(x), abs(y)
    return np.minimum(
        np.maximum(across - r, down - 0.36 * r),
        np.maximum(across - 0.36 * r, down - r),
    )


def star(x, y, r) -> np.ndarray:
    """Return the distance from a star of five points, one up; the inner corners lie at 0.45 of the radius."""
    fifth = 2 * pi / 5
    angle = abs((np.arctan2(x, -y) + fifth / 2) % fifth - fifth / 2)  # 0 at a point, π/5 between two
    distance = np.hypot(x, y)
    inner = 0.45 * r
    ex, ey = inner * cos(fifth / 2) - r, inner * sin(fifth / 2)  # along the edge, from the point to the inner corner
    px, py = distance * np.cos(angle) - r, distance * np.sin(angle)
    return (ex * py - ey * px) / -np.hypot(ex, ey)


SHAPES = {"circle": circle, "square": square, "triangle": triangle, "cross": cross, "star": star}
"""The shapes by their names."""


# Points in space: a sampled torus, and centres far from one another. Nothing here imports torch.

POINTS = 1024
"""Points of a cloud."""


def torus(seed: int) -> np.ndarray:
    """Return points of a torus around the z axis, evenly spread over its surface: float32 `[N, 3]`.

    The angle around the tube is drawn again where the surface is narrow (Diaconis, Holmes and Shahshahani 2013).
    """
    random, ring, tube = np.random.default_rng(seed), 1.0, 0.4
    around = random.uniform(0, 2 * pi, POINTS)
    angle = np.empty(0)
    while len(angle) < POINTS:
        angles, chance = random.uniform(0, 2 * pi, 2 * POINTS), random.uniform(0, 1, 2 * POINTS)
        angle = np.concatenate([angle, angles[chance * (ring + tube) < ring + tube * np.cos(angles)]])
    reach = ring + tube * np.cos(angle[:POINTS])
    points = [reach * np.cos(around), reach * np.sin(around), tube * np.sin(angle[:POINTS])]
    return np.stack(points, axis=1).astype(np.float32)


def sphere(seed: int) -> np.ndarray:
    """Return points of the unit sphere, evenly spread: float32 `[N, 3]`."""
    points = np.random.default_rng(seed).normal(size=(POINTS, 3))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def box(seed: int) -> np.ndarray:
    """Return points of the faces of a cube from -1 to 1, evenly spread: float32 `[N, 3]`."""
    random = np.random.default_rng(seed)
    points = random.uniform(-1, 1, (POINTS, 3))
    points[np.arange(POINTS), random.integers(3, size=POINTS)] = random.choice((-1.0, 1.0), POINTS)
    return points.astype(np.float32)


CLOUDS: dict[str, Callable[[], np.ndarray]] = {
    "torus": lambda: torus(0),
    "sphere": lambda: sphere(0),
    "cube": lambda: box(0),
}
"""The clouds that are made here, by name."""


def farthest(points: np.ndarray, count: int, start: int = 0) -> np.ndarray:
    """Return indices int64 `[count]` into `points`, `[N, 3]`, by farthest point sampling (Eldar et al. 1997).

    The first is `start`; each next one is the point whose nearest chosen point is farthest away. Raise ValueError for
    more points than there are.
    """
    if not 1 <= count <= len(points):
        raise ValueError(f"{count} centres can't be chosen among {len(points)} points")
    points = points.astype(float)
    chosen, away = [start], np.full(len(points), np.inf)
    while len(chosen) < count:
        away = np.minimum(away, ((points - points[chosen[-1]]) ** 2).sum(axis=1))
        chosen.append(int(away.argmax()))
    return np.array(chosen)


def shortfall(points: np.ndarray, chosen: np.ndarray) -> float:
    """Return how far a choice falls short of farthest point sampling, with all distances recomputed: the most by which
    another point is farther from the earlier choices than the chosen one. 0 where each is the farthest."""
    apart = np.linalg.norm(points[:, None].astype(float) - points[chosen][None].astype(float), axis=2)  # [N, G]
    nearest = np.minimum.accumulate(apart, axis=1)[:, :-1]  # to the nearest of the first g, for each g
    taken = nearest[chosen[1:], np.arange(len(chosen) - 1)]
    return float(np.max(nearest.max(axis=0) - taken, initial=0.0))


# Drawn scenes: one to three coloured shapes on 64×64 pixels, each with its one caption and a class for every pixel.
#
# `draw` makes many at once for training; `scene(7)` is one to look at, and `scene(7).but(colour="blue")` the same
# scene, but blue. What is drawn depends on the seed alone. Nothing here imports torch.

SIDE = 64
"""Height and width of a scene in pixels."""

COLOURS = {
    "red": (214, 48, 49),
    "orange": (240, 140, 30),
    "yellow": (245, 210, 50),
    "green": (50, 160, 80),
    "blue": (50, 100, 210),
    "purple": (140, 70, 170),
}
SIZES = {"small": (5.0, 6.5), "large": (9.0, 11.0)}
"""Half the width of a shape in pixels, from least to most."""

MAX_SHAPES = 3
CLASSES = ("background", *SHAPES)
"""What a pixel can be, in the order of the numbers in `Scenes.classes`."""

VOCABULARY = ("<begin>", "<end>", "a", *SIZES, *COLOURS, *SHAPES, "left", "of", "above")
"""The words of captions; the first begins one, the second ends it."""

MAX_WORDS = 4 * MAX_SHAPES + 2 * (MAX_SHAPES - 1)
"""Words of the longest caption."""

COLUMN, COLUMN_DISTANCE, GAP = 3.0, 10.0, 2.0
"""In pixels: centres at most this far apart share a column, else they lie at least that far apart; room between."""


@dataclass(frozen=True)
class SceneObject:
    """One object of a scene: its words, its centre and half its width in pixels, and its own RGB tint."""

    shape: str
    colour: str
    size: str
    x: float
    y: float
    radius: float
    tint: tuple[int, int, int] = (0, 0, 0)

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Return (left, top, right, bottom) in pixels, edges counted from the scene's top left corner."""
        return self.x - self.radius, self.y - self.radius, self.x + self.radius, self.y + self.radius

    @property
    def words(self) -> tuple[str, str, str, str]:
        return "a", self.size, self.colour, self.shape


@dataclass(frozen=True)
class Scene:
    """Objects from left to right, then from top to bottom, on a plain background (RGB)."""

    things: tuple[SceneObject, ...]
    background: tuple[int, int, int] = (240, 240, 240)

    @property
    def mentions(self) -> tuple[tuple[str, int | None], ...]:
        """Return the caption word by word, each with the index of the object that it describes, or None."""
        mentions: list[tuple[str, int | None]] = []
        for number, thing in enumerate(self.things):
            if number:
                before = self.things[number - 1]
                relation = ("above",) if abs(thing.x - before.x) <= COLUMN else ("left", "of")
                mentions += [(word, None) for word in relation]
            mentions += [(word, number) for word in thing.words]
        return tuple(mentions)

    @property
    def caption(self) -> str:
        """Return the one caption: every object with its relation to the one before."""
        return " ".join(word for word, _ in self.mentions)

    def but(self, number: int | None = None, *, colour: str | None = None, shape: str | None = None) -> Scene:
        """Return the same scene with another colour or shape: of object `number` (from 0), or of all.

        ValueError quotes an unknown colour or shape, or a number that the scene does not have.
        """
        for word, known in ((colour, COLOURS), (shape, SHAPES)):
            if word is not None and word not in known:
                raise ValueError(f"{quote(word)} can't be drawn; expected one of {', '.join(known)}")
        if number is not None and number not in range(len(self.things)):
            raise ValueError(f"object {number} is none of this scene's {len(self.things)}, counted from 0")
        changes: dict[str, Any]
        changes = {key: word for key, word in (("colour", colour), ("shape", shape)) if word is not None}
        things = [replace(t, **changes) if number in (None, i) else t for i, t in enumerate(self.things)]
        return replace(self, things=tuple(things))

    def image(self) -> Image.Image:
        """Return the scene as a picture, RGB, 64×64."""
        return Image.fromarray(gather([self]).pixels()[0])

    def classes(self) -> np.ndarray:
        """Return the class of every pixel, uint8 `[64, 64]`; names in `CLASSES`."""
        return gather([self]).classes()[0]


@dataclass(frozen=True)
class Scenes:
    """Many scenes as arrays: `count` `[B]`; `shape`, `colour`, `size` (indices of the words), `x`, `y`, `radius` `[B,
    3]`; `tint` `[B, 3, 3]`; `background` `[B, 3]`. Objects from `count` on do not exist."""

    count: np.ndarray
    shape: np.ndarray
    colour: np.ndarray
    size: np.ndarray
    x: np.ndarray
    y: np.ndarray
    radius: np.ndarray
    tint: np.ndarray
    background: np.ndarray

    def __len__(self) -> int:
        return len(self.count)

    def __getitem__(self, index):
        """Return one scene by its index; a slice returns fewer scenes."""
        if isinstance(index, slice):
            return Scenes(*(getattr(self, part.name)[index] for part in fields(self)))
        things = tuple(
            SceneObject(
                tuple(SHAPES)[self.shape[index, i]],
                tuple(COLOURS)[self.colour[index, i]],
                tuple(SIZES)[self.size[index, i]],
                float(self.x[index, i]),
                float(self.y[index, i]),
                float(self.radius[index, i]),
                tuple(self.tint[index, i].tolist()),
            )
            for i in range(self.count[index])
        )
        return Scene(things, tuple(self.background[index].tolist()))

    def pixels(self) -> np.ndarray:
        """Return the pictures, uint8 `[B, 64, 64, 3]`, edges antialiased."""
        canvas = np.repeat(self.background[:, None, None, :], SIDE, axis=1).repeat(SIDE, axis=2).astype(np.float32)
        palette = np.array(list(COLOURS.values()))
        for number in range(MAX_SHAPES):
            for scenes, rows, columns, distance, _ in self._windows(number):
                ink = np.clip(palette[self.colour[scenes, number]] + self.tint[scenes, number], 0, 255)
                cover = np.clip(0.5 - distance, 0, 1)[..., None]
                under = canvas[scenes[:, None, None], rows, columns]
                canvas[scenes[:, None, None], rows, columns] = under + cover * (ink[:, None, None] - under)
        return np.rint(canvas).astype(np.uint8)

    def classes(self) -> np.ndarray:
        """Return the class of every pixel, by the shape under its centre: uint8 `[B, 64, 64]`, names in `CLASSES`."""
        labels = np.zeros((len(self), SIDE, SIDE), dtype=np.uint8)
        for number in range(MAX_SHAPES):
            for scenes, rows, columns, distance, shape in self._windows(number):
                under = labels[scenes[:, None, None], rows, columns]
                labels[scenes[:, None, None], rows, columns] = np.where(distance <= 0, shape + 1, under)
        return labels

    def captions(self) -> list[str]:
        """Return the caption of each scene."""
        return [self[index].caption for index in range(len(self))]

    def _windows(self, number: int):
        """Yield for each shape the scenes `[n]` whose object `number` it is, rows `[n, w, 1]` and columns `[n, 1, w]`
        of the pixels around it, their signed distance `[n, w, w]` from its edge (inside is negative), its number."""
        width = int(2 * SIZES["large"][1]) + 4
        for shape, distance in enumerate(SHAPES.values()):
            scenes = np.flatnonzero((self.count > number) & (self.shape[:, number] == shape))
            if not len(scenes):
                continue
            x, y = (axis[scenes, number].astype(np.float32) for axis in (self.x, self.y))
            left, top = (np.clip(axis - width / 2, 0, SIDE - width).astype(int) for axis in (x, y))
            columns = left[:, None, None] + np.arange(width)
            rows = top[:, None, None] + np.arange(width)[:, None]
            across = (columns + np.float32(0.5) - x[:, None, None]).astype(np.float32)
            down = (rows + np.float32(0.5) - y[:, None, None]).astype(np.float32)
            radius = self.radius[scenes, number].astype(np.float32)[:, None, None]
            yield scenes, rows, columns, distance(across, down, radius), shape


def draw(
    random: np.random.Generator,
    number: int,
    *,
    counts: Sequence[int] = (1, 2, 3),
    allowed: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
) -> Scenes:
    """Draw `number` scenes, of `counts` objects each (chosen evenly), no two of which touch.

    `allowed(colour, shape)` returns element by element which pairs may be drawn, as numbers of the words. ValueError
    quotes a count outside of 1 to 3.
    """
    if not counts or not set(counts) <= set(range(1, MAX_SHAPES + 1)):
        raise ValueError(
            f"counts={quote(tuple(counts))} can't be drawn: expected numbers of objects from 1 to {MAX_SHAPES}"
        )
    count = random.choice(np.array(counts), number)
    pairs = np.argwhere(np.ones((len(COLOURS), len(SHAPES)), dtype=bool))
    if allowed is not None:
        pairs = pairs[allowed(pairs[:, 0], pairs[:, 1])]
    chosen = pairs[random.integers(len(pairs), size=(number, MAX_SHAPES))]
    size = random.integers(len(SIZES), size=(number, MAX_SHAPES))
    least, most = np.array(list(SIZES.values())).T
    radius = least[size] + (most - least)[size] * random.random((number, MAX_SHAPES))
    x, y = _places(random, radius, count)
    there = np.arange(MAX_SHAPES) < count[:, None]
    column = ((x[:, None, :] < x[:, :, None] - COLUMN) & there[:, None, :]).sum(axis=2)
    order = np.argsort(np.where(there, column * SIDE + y, np.inf), axis=1)
    things = [np.take_along_axis(v, order, axis=1) for v in (chosen[..., 1], chosen[..., 0], size, x, y, radius)]
    tint = random.integers(-15, 16, size=(number, MAX_SHAPES, 3))
    background = random.integers(220, 246, size=(number, 1)) + random.integers(-5, 6, size=(number, 3))
    shape, colour, size, x, y, radius = things
    return Scenes(count, shape, colour, size, x, y, radius, tint, background)


def _places(random, radius: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return centres `[B, 3]` of shapes that don't touch, in columns that are clearly equal or clearly different; drawn
    until they fit."""
    x, y = np.zeros_like(radius), np.zeros_like(radius)
    waiting = np.arange(len(count))
    tries = 16
    while len(waiting):
        r = np.repeat(radius[waiting][:, None], tries, axis=1)  # [B, tries, 3]
        across, down = (r + 1 + (SIDE - 2 * r - 2) * random.random(r.shape) for _ in range(2))
        for i in range(1, MAX_SHAPES):
            below = random.random(r.shape[:2]) < 0.35
            near = across[..., i - 1] + random.uniform(-COLUMN / 2, COLUMN / 2, r.shape[:2])
            near = np.clip(near, r[..., i] + 1, SIDE - r[..., i] - 1)
            across[..., i] = np.where(below, near, across[..., i])
        fits = np.ones(r.shape[:2], dtype=bool)
        for i in range(MAX_SHAPES):
            for j in range(i):
                dx, dy = abs(across[..., i] - across[..., j]), abs(down[..., i] - down[..., j])
                apart = np.maximum(dx, dy) >= r[..., i] + r[..., j] + GAP
                fits &= (apart & ((dx <= COLUMN) | (dx >= COLUMN_DISTANCE))) | (count[waiting] <= i)[:, None]
        first = fits.argmax(axis=1)
        columns = fits.any(axis=1)
        rows = np.flatnonzero(columns)
        x[waiting[columns]], y[waiting[columns]] = across[rows, first[rows]], down[rows, first[rows]]
        waiting = waiting[~columns]
    return x, y


def gather(scenes: Sequence[Scene]) -> Scenes:
    """Return single scenes as arrays."""
    things = [[*s.things, *[s.things[0]] * (MAX_SHAPES - len(s.things))] for s in scenes]
    words = {"shape": tuple(SHAPES), "colour": tuple(COLOURS), "size": tuple(SIZES)}
    numbers = [
        np.array([[known.index(getattr(t, key)) for t in row] for row in things]) for key, known in words.items()
    ]
    rest = [np.array([[getattr(t, key) for t in row] for row in things]) for key in ("x", "y", "radius", "tint")]
    ground = np.array([s.background for s in scenes])
    return Scenes(np.array([len(s.things) for s in scenes]), *(*numbers, *rest, ground))


def scene(seed: int, count: int | None = None) -> Scene:
    """Return the scene of a seed (a whole number from 0), with `count` objects if that is set."""
    counts = (1, 2, 3) if count is None else (count,)
    return draw(np.random.default_rng(seed), 1, counts=counts)[0]


def sample_scene() -> Scene:
    """Return the scene that models show first: a large red circle left of a small blue square."""
    return Scene(
        (
            SceneObject("circle", "red", "large", 20.0, 26.0, 10.0),
            SceneObject("square", "blue", "small", 46.0, 38.0, 6.0),
        )
    )


# Surfaces to inspect: drawn patterns and real textures in grey, and damage to them, all seeded.
#
# A drawn surface is a `Pattern`, so that a lesson can ask for the same one at another angle; a real one is cut from a
# photo of a texture. Nothing here imports torch.

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


# Generated time series: a trend, seasons and noise. Nothing here imports torch.

LENGTH = 96
"""Values of a series."""


def generate_series(level: float, trend: float, seasons: dict[float, float], noise: float, seed: int = 0) -> np.ndarray:
    """Return a series float32 `[T]`: `level`, plus `trend` from its first value to its last, plus waves of the periods
    and heights in `seasons`, plus normal noise of that standard deviation."""
    t = np.arange(LENGTH)
    waves = sum(height * np.sin(2 * pi * t / period) for period, height in seasons.items())
    grain = np.random.default_rng(seed).normal(0, noise, LENGTH)
    return (level + trend * t / (LENGTH - 1) + waves + grain).astype(np.float32)


def _jump() -> np.ndarray:
    """Return the first series, with one value that is six times as high."""
    series = SERIES["trend and season"]()
    series[70] *= 6
    return series


SERIES: dict[str, Callable[[], np.ndarray]] = {
    "trend and season": lambda: generate_series(20, 12, {24: 6, 8: 2}, 1),
    "two seasons": lambda: generate_series(5, 0, {32: 3, 12: 2}, 0.3, seed=1),
    "one outlier": _jump,
}
"""The series that are made here, by name."""


# A drawn scene that moves: a circle rolls past a square that stays. Nothing here imports torch.

FRAMES = 8
"""Frames of the clip."""
HEIGHT, WIDTH = 48, SIDE
"""Pixels of a frame: fewer rows than columns, so that the two are not mistaken for one another."""
START, STEP = 11.0, 6.0
"""Where the centre of the circle is in the first frame, and how far it goes in each, in pixels."""


def clip() -> np.ndarray:
    """Return the frames of the clip, uint8 `[F, H, W, 3]`: a red circle that goes right, above a blue square that
    stays."""
    top = (SIDE - HEIGHT) // 2
    return gather([_scene(frame) for frame in range(FRAMES)]).pixels()[:, top : top + HEIGHT]


def _scene(frame: int) -> Scene:
    moving = SceneObject("circle", "red", "large", START + STEP * frame, 24.0, 9.0)
    return Scene((moving, SceneObject("square", "blue", "small", 40.0, 46.0, 6.0)))
