"""A photo under an attention map: a grey sketch in which every patch has the same mean, lit in amber by the weights.

So a patch is the brighter the larger its weight, whatever the photo shows there. The browser draws the same
(`pages/components/attention_map/sketch.js`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracer.figures import palette

GREY, CONTRAST, PASSES = 72.0, 0.7, 6
AMBER, STRENGTH = np.array(palette.AMBER, float), 0.8
"""The colour of the largest weight, and its opacity."""


def sketch(photo: np.ndarray, crop: Sequence[float], rows: int, columns: int) -> np.ndarray:
    """Return a photo `[H, W, 3]` as greys `[H, W]` from 0 to 255; the mean of each patch of the crop is `GREY`.

    `crop` is left, top, right and bottom of the patches, in pixels. The means are taken away as a smooth field, so that
    edges and texture stay; what is left of them goes patch by patch.
    """
    grey = photo[..., :3].astype(np.float64) @ (0.299, 0.587, 0.114)
    left, top, right, bottom = crop
    x = (np.arange(grey.shape[1]) + 0.5 - left) / (right - left) * columns
    y = (np.arange(grey.shape[0]) + 0.5 - top) / (bottom - top) * rows
    for _ in range(PASSES):
        grey -= _field(_means(grey, x, y, rows, columns), x, y)
    grey = GREY * np.tanh(CONTRAST * grey / GREY)
    grey -= _patch_by_patch(_means(grey, x, y, rows, columns), x, y)
    return np.clip(grey + GREY, 0, 255)


def light(greys: np.ndarray, crop: Sequence[float], shares: np.ndarray) -> np.ndarray:
    """Return a sketch `[H, W]` lit in amber, as colours `[H, W, 3]`.

    `shares` are the weights of the patches as shares of the largest, `[rows, columns]`; outside of them nothing is lit.
    """
    left, top, right, bottom = crop
    rows, columns = shares.shape
    x = (np.arange(greys.shape[1]) + 0.5 - left) / (right - left) * columns
    y = (np.arange(greys.shape[0]) + 0.5 - top) / (bottom - top) * rows
    inside = ((y >= 0) & (y < rows))[:, None] & ((x >= 0) & (x < columns))
    alpha = (STRENGTH * _patch_by_patch(shares, x, y) * inside)[..., None]
    return np.round((1 - alpha) * greys[..., None] + alpha * AMBER).astype(np.uint8)


def _means(grey: np.ndarray, x: np.ndarray, y: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Return the mean of each patch `[rows, columns]`; `x` and `y` are the positions of the pixels, in patches."""
    across, down = (x >= 0) & (x < columns), (y >= 0) & (y < rows)
    patches = (np.floor(y[down]).astype(int)[:, None] * columns + np.floor(x[across]).astype(int)).ravel()
    counts = np.bincount(patches, minlength=rows * columns)
    sums = np.bincount(patches, grey[down][:, across].ravel(), minlength=rows * columns)
    return (sums / np.maximum(counts, 1)).reshape(rows, columns)


def _patch_by_patch(values: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the value of the patch of each pixel; outside the patches, of the nearest one."""
    row, column = (
        np.clip(np.floor(at).astype(int), 0, count - 1) for at, count in zip((y, x), values.shape, strict=True)
    )
    return values[row][:, column]


def _field(values: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return values at each pixel, bilinear between the middles of patches."""
    middles = [np.arange(count) + 0.5 for count in values.shape]
    across = np.stack([np.interp(x, middles[1], line) for line in values])
    low = np.clip(np.floor(y - 0.5).astype(int), 0, max(len(values) - 2, 0))
    high, share = np.minimum(low + 1, len(values) - 1), np.clip(y - 0.5 - low, 0, 1)[:, None]
    return across[low] * (1 - share) + across[high] * share
