"""Data that models are trained on."""

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.nn import functional as F

from tracer.inputs import synthetic
from tracer.inputs.model_inputs import Words
from tracer.inputs.synthetic import VOCABULARY, Scenes
from tracer.spec.preparation import BEGIN, END
from tracer.utils.errors import quote

# CIFAR-10 as JPEG files in one folder per class, read from zip files in place (Krizhevsky 2009).
#
# A part, "train" or "test", is `cifar10-<part>.zip` with `<part>/<class>/<number>.jpg`, or a folder `<part>/`.

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True)
class Images:
    """Labelled images: `pixels` uint8 `[M, C, H, W]` and `labels` int64 `[M]`, indices into `CLASSES`."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, chosen: Tensor) -> "Images":
        """Return the images that bool `chosen`, `[M]`, marks."""
        return Images(self.pixels[chosen], self.labels[chosen])


def read(data: Path, part: str) -> Images:
    """Read all images of a part from `data`, a folder that holds the parts or the zip file of either.

    Raise FileNotFoundError if there is no such part, ValueError if its content isn't such images of one size.
    """
    source = _find(data, part)
    files = _files_of_zip(source, part) if source.is_file() else _files_of_folder(source)
    if not files:
        raise ValueError(f"no images in {quote(source)}: expected {part}/<class>/<number>.jpg")
    images, labels = [], []
    for label, content in files:
        if label not in CLASSES:
            raise ValueError(f"unknown class {quote(label)} in {quote(source)}: expected one of {', '.join(CLASSES)}")
        try:
            images.append(np.asarray(Image.open(io.BytesIO(content)).convert("RGB")))
        except (UnidentifiedImageError, OSError) as error:
            raise ValueError(
                f"can't read an image of class {quote(label)} in {quote(source)}: expected JPEG files"
            ) from error
        labels.append(CLASSES.index(label))
    shapes = {image.shape for image in images}
    if len(shapes) > 1:
        raise ValueError(f"images of several shapes in {quote(source)}, {sorted(shapes)}: expected one")
    return Images(torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels))


def normalise(pixels: Tensor, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> Tensor:
    """Return uint8 `[B, C, H, W]` as float32 of about zero mean and unit variance, by the training set's statistics."""
    return (pixels.float() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)


def augment(pixels: Tensor, *, pad: int, hole: int, generator: torch.Generator) -> Tensor:
    """Apply a random crop after reflection by `pad` pixels, a horizontal flip, and a grey square of side `hole`.

    It takes and returns uint8 `[B, C, H, W]`; each image has its own draw.
    """
    B, _, H, W = pixels.shape
    top, flip, left = (torch.randint(0, high, (B, 1), generator=generator) for high in (2 * pad + 1, 2, 2 * pad + 1))
    row, column = torch.arange(H), torch.arange(W)
    rows = row + top  # [B, H]
    columns = torch.where(flip == 1, column.flip(0), column) + left  # [B, W]
    padded = F.pad(pixels.float(), (pad, pad, pad, pad), mode="reflect").to(torch.uint8)  # [B, C, H+2·pad, W+2·pad]
    images = torch.arange(B).view(B, 1, 1)
    cropped = padded.permute(0, 2, 3, 1)[images, rows[:, :, None], columns[:, None, :]]  # [B, H, W, C]
    return cut_out(cropped.permute(0, 3, 1, 2).contiguous(), hole, generator)


def cut_out(pixels: Tensor, hole: int, generator: torch.Generator) -> Tensor:
    """Return the images, uint8 `[B, C, H, W]`, each with a grey square of side `hole`, clipped at the edges.

    Source: Cutout, DeVries and Taylor 2017, section 3.2.
    """
    B, _, H, W = pixels.shape
    row, column = torch.arange(H), torch.arange(W)
    top, left = (torch.randint(1 - hole, size, (B, 1), generator=generator) for size in (H, W))
    high, wide = (row >= top) & (row < top + hole), (column >= left) & (column < left + hole)
    inside = (high[:, :, None] & wide[:, None, :])[:, None]  # [B, 1, H, W]
    grey = torch.tensor(MEAN).mul(255).to(torch.uint8).view(1, 3, 1, 1)
    return torch.where(inside, grey, pixels)


def _find(data: Path, part: str) -> Path:
    archive = data / f"cifar10-{part}.zip"
    if data.is_file():
        archive = data.with_name(data.name.replace("train", part).replace("test", part))
    for source in (archive, data / part):
        if source.exists():
            return source
    raise FileNotFoundError(f"no CIFAR-10 {part} images in {quote(data)}: expected {archive.name} or a folder {part}/")


def _files_of_zip(source: Path, part: str) -> list[tuple[str, bytes]]:
    try:
        with zipfile.ZipFile(source) as archive:
            paths = [name.split("/") for name in sorted(archive.namelist()) if name.endswith(".jpg")]
            return [(path[1], archive.read("/".join(path))) for path in paths if len(path) == 3 and path[0] == part]
    except zipfile.BadZipFile as error:
        raise ValueError(f"can't read {quote(source)}: expected a zip file") from error


def _files_of_folder(source: Path) -> list[tuple[str, bytes]]:
    return [(path.parent.name, path.read_bytes()) for path in sorted(source.glob("*/*.jpg"))]


# Drawn scenes as training data, generated anew for every step.

SEEDS = {"validation": 2**40, "test": 2**41}
"""The seeds of scenes that are held out; steps of training draw theirs from 31 bits."""

IGNORE_INDEX = -100
"""The target where there is no word to predict; cross-entropy leaves it out."""
SCENE_MEAN, SCENE_STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
SCENE_CARD = {
    "mean": list(SCENE_MEAN),
    "std": list(SCENE_STD),
    "resize": "centre crop to a square, then 64×64 by bicubic with antialias; pixels from 0 to 1, less the mean, over "
    "the std",
}
"""What cards say of how scenes are read."""


@dataclass(frozen=True)
class SceneStream:
    """Number of scenes of one pass over the data; each step draws its own."""

    number: int

    def __len__(self) -> int:
        return self.number


def draw(generator: torch.Generator, number: int, **choice) -> Scenes:
    """Return `number` new scenes, fixed by the generator; `choice` as for `tracer.inputs.synthetic.draw`."""
    seed = torch.randint(2**31, (), generator=generator).item()
    return synthetic.draw(np.random.default_rng(seed), number, **choice)


def held_out(number: int, part: str, *, salt: int = 0, **choice) -> Scenes:
    """Return the scenes of a part, "validation" or "test", the same each time; training draws none of them."""
    return synthetic.draw(np.random.default_rng((SEEDS[part], salt)), number, **choice)


def pixels(scenes: Scenes) -> Tensor:
    """Return the pictures as models take them: float32 `[B, 3, 64, 64]`, normalised by `MEAN` and `STD`."""
    return normalise(torch.from_numpy(scenes.pixels()).permute(0, 3, 1, 2), SCENE_MEAN, SCENE_STD)


def captions(scenes: Scenes) -> tuple[Tensor, Tensor]:
    """Return the input tokens, `[B, T]`, and the target after each, `[B, T]`; T fits the longest caption."""
    known = Words(VOCABULARY)
    rows = [known.encode(caption) for caption in scenes.captions()]
    T = max(map(len, rows)) + 1
    tokens = [[BEGIN, *row] + [END] * (T - 1 - len(row)) for row in rows]
    targets = [[*row, END] + [IGNORE_INDEX] * (T - 1 - len(row)) for row in rows]
    return torch.tensor(tokens), torch.tensor(targets)
