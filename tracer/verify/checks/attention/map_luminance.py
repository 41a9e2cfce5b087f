"""Photo lit by attention: the order of lightness of its patches is the order of their weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracer.attention import parts, places
from tracer.figures.attention import lit_photo
from tracer.verify.checks.reference_run import PlainRun, array

WEIGHT_RESOLUTION = 1 / 32
"""Weights that differ by less than this share of the largest may look alike."""


def problems(run: PlainRun) -> Iterator[str]:
    """Yield a sentence for each layer whose map over the photo has patches in another order than their weights."""
    picture = run.trace.picture
    if picture is None or (photo := run.trace.values.get(picture.value)) is None:
        return
    pixels = np.asarray(photo)
    greys = lit_photo.sketch(pixels, picture.crop, picture.rows, picture.columns)
    for part in parts(run.trace):
        patches = places(run.trace, part)
        records = [record for record in run.trace.attentions if record.part == part and not record.problem]
        for layer, record in enumerate(records):
            tokens = sorted(token for token in patches if token < record.keys)
            if not tokens or record.over != "tokens" or record.queries != record.keys:
                continue
            weights = array(run.trace.attention(layer, part=part)[0].mean(0))[0]
            shares = np.zeros(picture.rows * picture.columns)
            shares[[patches[token] for token in tokens]] = weights[tokens]
            shares = (shares / max(shares.max(), 1e-12)).reshape(picture.rows, picture.columns)
            if exchanged := _swapped_patches(lit_photo.light(greys, picture.crop, shares), picture.crop, shares):
                first, second = exchanged
                yield f"layer {layer}: patch {first} has more weight than patch {second} and is not brighter"


def _swapped_patches(colours: np.ndarray, crop, shares: np.ndarray) -> tuple[int, int] | None:
    """Return two patches of which the first has clearly more weight and is not lighter, if there are any."""
    left, top, right, bottom = crop
    rows, columns = shares.shape
    row = np.floor((np.arange(colours.shape[0]) + 0.5 - top) / (bottom - top) * rows).astype(int)
    column = np.floor((np.arange(colours.shape[1]) + 0.5 - left) / (right - left) * columns).astype(int)
    light = _lightness(colours)
    luminance = np.array(
        [[light[row == r][:, column == c].mean() for c in range(columns)] for r in range(rows)]
    ).ravel()
    weights = shares.ravel()
    wrong = (weights[:, None] - weights > WEIGHT_RESOLUTION) & (luminance[:, None] <= luminance)
    return (int(np.argwhere(wrong)[0][0]), int(np.argwhere(wrong)[0][1])) if wrong.any() else None


def _lightness(colours: np.ndarray) -> np.ndarray:
    """Return L* of sRGB colours `[…, 3]` from 0 to 255. Source: CIE 15:2004, section 8.2.1; IEC 61966-2-1."""
    parts = colours / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    luminance = linear @ (0.2126, 0.7152, 0.0722)
    return np.where(luminance > 216 / 24389, 116 * np.cbrt(luminance) - 16, 24389 / 27 * luminance)
