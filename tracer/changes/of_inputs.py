"""Changes of the inputs of a run: patches of the photo, tokens of the text, and the weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor, nn
from torch.nn import functional

from tracer.changes.kinds import Change, Seeded, TargetLine, TensorFunction, split, whole_numbers
from tracer.inputs.model_inputs import Inputs
from tracer.utils.errors import quote, shorten

FILLS = ("grey", "mean", "blur")
"""What hidden patches show: mid-grey, the mean colour of the photo, or the photo blurred."""
HIDDEN_SHARE = 4
"""One of so many patches is hidden where a map is judged by hiding what it shows."""
MASK_SIGN = "▢"
"""How a word that was masked is written."""
REMOVED_FILL = "removed"
"""The fill of patches that are not hidden in the photo but left out of the sequence."""


@dataclass(frozen=True)
class InputChange(Change):
    """Base class of changes of inputs: `key` stands for the input in place of a line."""

    key: ClassVar[str] = ""

    def change(self, inputs: Inputs, sizes: dict[str, int], card: Mapping[str, Any]) -> Inputs:
        """Return the changed inputs of a run with these sizes; `card` has the mean and the standard deviation of the
        pixels. Raise ValueError if they lack what is to be changed."""
        return inputs

    def apply(self, line: TargetLine) -> TensorFunction:
        raise ValueError(f"{quote(line.id)} can't be changed by {self.name}, which is a change of {quote(self.key)}")


@dataclass(frozen=True)
class Hide(InputChange):
    """These patches of the photo, counted from 0 row by row, show mid-grey, the mean colour, or the photo blurred.

    Removed ones are left out of the sequence, once each has its position (He et al. 2022, section 3); this takes a
    model that runs on some patches alone.
    """

    name: ClassVar[str] = "hide"
    key: ClassVar[str] = "image"
    example: ClassVar[str] = "hide(27,28,grey)"
    patches: tuple[int, ...]
    fill: str = "mean"

    def __init__(self, patches: int | Iterable[int], fill: str = "mean"):
        if fill not in (*FILLS, REMOVED_FILL):
            raise ValueError(f"fill={quote(fill)} is unknown, expected one of {', '.join((*FILLS, REMOVED_FILL))}")
        object.__setattr__(self, "patches", whole_numbers("patch", patches))
        object.__setattr__(self, "fill", fill)

    @classmethod
    def read(cls, arguments: str) -> Change:
        words = split(arguments)
        fill = words.pop() if words and not words[-1].isdecimal() else "mean"
        return cls(map(int, words), fill)

    def change(self, inputs: Inputs, sizes: dict[str, int], card: Mapping[str, Any]) -> Inputs:
        """Return inputs with the patches hidden, in the displayed photo, too.

        Raise ValueError for inputs without a photo in patches, or with fewer.
        """
        if inputs.crop is None or not {"H", "W", "P"} <= sizes.keys():
            raise ValueError(f"{shorten(str(self))}: the model takes no photo in patches")
        rows, columns = sizes["H"] // sizes["P"], sizes["W"] // sizes["P"]
        self.check_below("patch", self.patches, rows * columns)
        if self.fill == REMOVED_FILL:
            return self._remove(inputs)
        assert inputs.photo is not None  # where there is a crop
        hidden = torch.zeros(rows * columns, dtype=torch.bool)
        hidden[list(self.patches)] = True
        hidden = hidden.view(1, rows, columns)
        grey = [(0.5 - mean) / std for mean, std in zip(card["mean"], card["std"], strict=True)]

        def paint(tensor: Tensor) -> Tensor:
            if tensor.dim() != 4 or tuple(tensor.shape[-2:]) != (sizes["H"], sizes["W"]):
                return tensor
            channels = (grey * tensor.shape[1])[: tensor.shape[1]]
            return hide_patches(tensor, hidden.to(tensor.device), self.fill, channels)

        photo = paint_patches(inputs.photo, inputs.crop.box, hidden[0].numpy(), self.fill)
        return replace(inputs.map_tensors(paint), photo=photo)

    def _remove(self, inputs: Inputs) -> Inputs:
        """Return inputs with a shorter list of tokens, `named["kept"]`."""
        tokens = inputs.named.get("kept")
        visible = next((segment for segment in inputs.segments if segment.name == "visible"), None)
        if tokens is None or visible is None:
            raise ValueError(f"{shorten(str(self))}: the model can't run on some of its patches alone")
        patches = tuple(patch for patch in visible.places if patch not in self.patches)
        if not patches:
            raise ValueError(f"{shorten(str(self))} leaves no patch, expected one at least")
        first = range(visible.start)
        rows = [*first, *(visible.start + at for at, patch in enumerate(visible.places) if patch in patches)]
        shorter = replace(visible, stop=visible.start + len(patches), places=patches)
        return replace(
            inputs,
            named={**inputs.named, "kept": tokens[:, rows]},
            sizes={**inputs.sizes, "N_v": len(patches)},
            segments=tuple(shorter if segment is visible else segment for segment in inputs.segments),
        )

    def __str__(self) -> str:
        return f"{self.name}({','.join(map(str, self.patches))},{self.fill})"


@dataclass(frozen=True)
class MaskWords(InputChange):
    """Tokens at these places of the text, counted from 0, become another token, by its number."""

    name: ClassVar[str] = "mask_words"
    key: ClassVar[str] = "text"
    example: ClassVar[str] = "mask_words(3,4;0)"
    places: tuple[int, ...]
    token: int = 0

    def __init__(self, places: int | Iterable[int], token: int = 0):
        object.__setattr__(self, "places", whole_numbers("place", places))
        object.__setattr__(self, "token", *whole_numbers("token", [token]))

    @classmethod
    def read(cls, arguments: str) -> Change:
        places, _, token = arguments.partition(";")
        return cls(map(int, split(places)), int(token or 0))

    def change(self, inputs: Inputs, sizes: dict[str, int], card: Mapping[str, Any]) -> Inputs:
        """Return inputs with the tokens replaced. Raise ValueError for inputs without a text, or with a shorter one."""
        length, known = inputs.sizes.get("T", 0), sizes.get("V")
        if not length:
            raise ValueError(f"{shorten(str(self))}: the model takes no text")
        self.check_below("token", self.places, length)
        if known is not None:
            self.check_below("token number", [self.token], known)

        def mask(tensor: Tensor) -> Tensor:
            if tensor.is_floating_point() or tensor.dim() != 2 or tensor.shape[1] != length:
                return tensor
            return tensor.index_fill(1, torch.tensor(self.places, device=tensor.device), self.token)

        first = len(inputs.words) - length
        words = tuple(MASK_SIGN if at - first in self.places else word for at, word in enumerate(inputs.words))
        ids = [name for name in inputs.named if name.endswith("input_ids")]
        return replace(inputs.map_tensors(mask, ids), words=words)

    def __str__(self) -> str:
        return f"{self.name}({','.join(map(str, self.places))};{self.token})"


@dataclass(frozen=True)
class Permute(InputChange, Seeded):
    """Permutation of the numbers of each parameter, drawn from a seed: what was learned is gone, and the
    distribution of the weights stays (Adebayo et al. 2018, section 3)."""

    name: ClassVar[str] = "permute"
    key: ClassVar[str] = "weights"
    example: ClassVar[str] = "permute(0)"

    def change_net(self, net: nn.Module) -> nn.Module:
        """Permute all parameters of a net, in place, and return it."""
        generator = torch.Generator().manual_seed(self.seed)
        with torch.no_grad():
            for parameter in net.parameters():
                order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
                parameter.copy_(parameter.flatten()[order].view_as(parameter))
        return net


# Photos with some patches hidden, to see what an answer depends on (Zeiler and Fergus 2014, section 4.2).


def hide_patches(images: Tensor, hidden: Tensor, fill: str = "mean", grey: Sequence[float] | None = None) -> Tensor:
    """Return images `[B, C, H, W]` with the patches at which `hidden`, `[B, rows, columns]`, is True filled.

    `grey` is the mid-grey of each channel in the numbers of the images, 0 by default. The blur is a mean over three
    patches in each direction. Raise ValueError for an unknown fill, or patches that do not divide the images.
    """
    if fill not in FILLS:
        raise ValueError(f"fill={fill!r} is unknown, expected one of {', '.join(FILLS)}")
    height, width = (side // count for side, count in zip(images.shape[-2:], hidden.shape[-2:], strict=True))
    if (height * hidden.shape[-2], width * hidden.shape[-1]) != tuple(images.shape[-2:]):
        raise ValueError(f"{list(hidden.shape[-2:])} patches do not divide images of {list(images.shape[-2:])} pixels")
    if fill == "grey":
        colour = torch.zeros(images.shape[1]) if grey is None else torch.tensor(grey, dtype=torch.float32)
        filler = colour.to(images).view(1, -1, 1, 1)
    elif fill == "mean":
        filler = images.mean((-2, -1), keepdim=True)
    else:
        window = [3 * side // 2 * 2 + 1 for side in (height, width)]
        around = (window[1] // 2,) * 2 + (window[0] // 2,) * 2
        filler = functional.avg_pool2d(functional.pad(images, around, mode="replicate"), window, stride=1)
    pixels = hidden.repeat_interleave(height, -2).repeat_interleave(width, -1).unsqueeze(1)
    return torch.where(pixels, filler, images)


def paint_patches(
    photo: np.ndarray, box: tuple[float, float, float, float], hidden: np.ndarray, fill: str
) -> np.ndarray:
    """Return a photo `[H, W, 3]` uint8 for the screen, with the patches at which `hidden`, bool `[rows, columns]`, is
    True filled as `hide_patches` fills them.

    The grid lies over `box`: left, top, right, bottom in pixels.
    """
    painted, (left, top, right, bottom), (rows, columns) = photo.copy(), box, hidden.shape
    y, x = (np.linspace(*ends).round().astype(int) for ends in ((top, bottom, rows + 1), (left, right, columns + 1)))
    if fill == "blur":
        radius = 1.5 * max((bottom - top) / rows, (right - left) / columns)
        blurred = np.asarray(Image.fromarray(photo).filter(ImageFilter.BoxBlur(radius)))
    colour = photo[y[0] : y[-1], x[0] : x[-1]].mean((0, 1)) if fill == "mean" else 127.5
    for row, column in np.argwhere(hidden):
        place = slice(y[row], y[row + 1]), slice(x[column], x[column + 1])
        painted[place] = blurred[place] if fill == "blur" else colour
    return painted


# Changes of the inputs of a run: patches of the photo, tokens of the text, and the weights.
