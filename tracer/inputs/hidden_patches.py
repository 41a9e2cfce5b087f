"""Photos with some patches hidden, to see what an answer depends on (Zeiler and Fergus 2014, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor
from torch.nn import functional

FILLS = ("grey", "mean", "blur")
"""What hidden patches show: mid-grey, the mean colour of the photo, or the photo blurred."""
HIDDEN_SHARE = 4
"""One of so many patches is hidden where a map is judged by hiding what it shows."""


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
