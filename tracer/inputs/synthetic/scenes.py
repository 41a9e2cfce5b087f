"""Drawn scenes: one to three coloured shapes on 64×64 pixels, each with its one caption and a class for every pixel.

`draw` makes many at once for training; `scene(7)` is one to look at, and `scene(7).but(colour="blue")` the same scene,
but blue. What is drawn depends on the seed alone. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from PIL import Image

from tracer.inputs.synthetic.signed_distance import SHAPES
from tracer.utils.error_text import quote

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
