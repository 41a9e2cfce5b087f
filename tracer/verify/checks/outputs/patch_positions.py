"""Positions of a run's patches on the photo, on photos of odd sizes whose colours encode the position.

A grey ramp across the photo tells of every pixel that the model is given from which column it comes, one down the photo
from which row. Then single patches are painted, to see which token of the first attention changes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image

from tracer.attention import layers, places
from tracer.inputs.images import Crop, centre_crop, patch_boxes
from tracer.verify.checks.reference_run import PlainRun, array

PHOTOS = ((97, 61), (45, 71))
"""Width and height in pixels."""

MAX_DISTANCE = 0.25
"""Largest distance between the centre of a patch and where its pixels come from, in pixels of the photo."""


def problems(run: PlainRun) -> Iterator[str]:
    """Check every patch of the grid by its position, and some by their token."""
    picture = run.trace.picture
    pixels = _input(run)
    if picture is None or "image" not in run.model.takes or pixels is None:
        return
    yield from _lies(picture.crop, run.trace.values[picture.value].shape, pixels.shape[-2:], run)
    for size in PHOTOS:
        yield from _from(run, (picture.rows, picture.columns), pixels.shape[-2:], size)
    yield from _share()
    yield from _tokens(run, (picture.rows, picture.columns), (3 * PHOTOS[0][0], 3 * PHOTOS[0][1]))


def _lies(box, shape, size: tuple[int, int], run: PlainRun) -> Iterator[str]:
    """Check that the crop is the largest one of the model's shape in the middle of the photo, or a share of that."""
    (left, top, right, bottom), (height, width), (rows, columns) = box, shape[:2], size
    share = (run.model.card or {}).get("crop", 1.0)
    if max(abs(left + right - width), abs(top + bottom - height)) > 1e-6:
        yield f"the crop {tuple(box)} is not in the middle of a photo of {width} × {height}"
    if abs((right - left) * rows - (bottom - top) * columns) > 1e-6 * width * rows:
        yield f"the crop {tuple(box)} has not the shape of the model's input"
    if abs(max((right - left) / width, (bottom - top) / height) - share) > 1e-6:
        yield f"the crop {tuple(box)} is not {share:g} of what fits into {width} × {height}"


def _from(run: PlainRun, grid: tuple[int, int], photo_size: tuple[int, int], size: tuple[int, int]) -> Iterator[str]:
    """Check that each patch lies where its pixels come from."""
    positions, crop = [], None
    for axis in (0, 1):
        length = size[axis]
        levels = np.rint(np.arange(length) * (254 / length)).astype(np.uint8)
        ramp = np.broadcast_to(levels[None, :] if axis == 0 else levels[:, None], size[::-1])
        inputs = run.model.inputs(image=Image.fromarray(np.repeat(ramp[..., None], 3, axis=2)))
        crop = inputs.crop
        pixels = _grey(run, inputs) / (254 / length) + 0.5
        positions.append(pixels.reshape(grid[0], pixels.shape[0] // grid[0], grid[1], -1).mean(axis=(1, 3)).ravel())
    if crop is None:
        yield f"of a photo of {size[0]} × {size[1]} it is not said which part the model sees"
        return
    yield from _lies(crop.box, size[::-1], photo_size, run)
    boxes = np.array(patch_boxes(crop, *grid))
    off = np.hypot((boxes[:, 0] + boxes[:, 2]) / 2 - positions[0], (boxes[:, 1] + boxes[:, 3]) / 2 - positions[1])
    yield from _points(crop, boxes)
    inner = off.reshape(grid)[1:-1, 1:-1] if min(grid) > 2 else off  # at the edge the filter has less to read
    if not inner.max() <= MAX_DISTANCE:
        yield f"patches of a photo of {size[0]} × {size[1]} are drawn up to {inner.max():.2f} pixels off their place"


def _share() -> Iterator[str]:
    """Check that a crop of a share of the photo, as libraries cut it, is that share of the largest one."""
    photo, share = Image.new("RGB", PHOTOS[0]), 0.875
    _, crop = centre_crop(photo, 32, 48, share=share)
    height = min(PHOTOS[0][1], PHOTOS[0][0] * 32 / 48) * share
    width = height * 48 / 32
    expected = [(PHOTOS[0][0] - width) / 2, (PHOTOS[0][1] - height) / 2]
    expected += [expected[0] + width, expected[1] + height]
    if np.abs(np.subtract(crop.box, expected)).max() > 1e-6:
        yield f"{share} of a photo is said to lie at {crop.box}, expected {tuple(expected)}"


def _points(crop: Crop, boxes: np.ndarray) -> Iterator[str]:
    """Check that points of the model's input map to the photo as the crop does, and back."""
    for across, down in ((0.0, 0.0), (0.25, 0.75), (1.0, 1.0)):
        expected = (
            boxes[:, 0].min() + across * (boxes[:, 2].max() - boxes[:, 0].min()),
            boxes[:, 1].min() + down * (boxes[:, 3].max() - boxes[:, 1].min()),
        )
        point = (across * crop.width, down * crop.height)
        shown, back = crop.to_photo(*point), crop.to_input(*expected)
        if max(np.abs(np.subtract(shown, expected)).max(), np.abs(np.subtract(back, point)).max()) > 1e-6:
            yield f"the point {point} of the input is said to lie at {shown} of the photo, expected {expected}"


def _tokens(run: PlainRun, grid: tuple[int, int], size: tuple[int, int]) -> Iterator[str]:
    """Check that painting a patch changes its token, more than any other, if the first attention reads tokens."""
    trace = run.trace
    part, stop = next(((s.part, s.stop) for s in trace.segments if s.name in ("visible", "image")), ("", None))
    if part not in {record.part for record in trace.attentions}:
        return
    at = {patch: token for token, patch in places(trace, part).items()}
    known = sorted(at)
    if not known:
        yield f"no token of {part!r} is said to be a patch"
        return
    samples = {known[number * (len(known) - 1) // 6] for number in range(7)}
    photo = np.random.default_rng(0).integers(64, 192, (size[1], size[0], 3)).astype(np.uint8)
    first = layers(trace, part)[0].module
    before, crop = _entering(run, first, photo)
    if before is None or crop is None:
        return
    for patch in sorted(samples):
        left, top, right, bottom = patch_boxes(crop, *grid)[patch]
        painted = photo.copy()
        inner = [(3 * a + b) / 4 for a, b in ((top, bottom), (bottom, top), (left, right), (right, left))]
        first_row, last_row, first_column, last_column = map(round, inner)
        painted[first_row : last_row + 1, first_column : last_column + 1] = 255
        after, _ = _entering(run, first, painted)
        moved = np.abs(after[:stop] - before[:stop]).sum(axis=-1)  # a text that the model writes may be another now
        token = int(moved.argmax()) if moved.any() else None
        if token != at[patch]:
            yield f"patch {patch} is said to be token {at[patch]}, painting it changes token {token}"


def _entering(run: PlainRun, path: str, photo: np.ndarray):
    """Return the first attention's input for a photo, `[S, D]` float64, and the crop; None if it is not a sequence."""
    inputs, read = run.model.inputs(image=Image.fromarray(photo)), []

    def keep(module, args, kwargs):
        read.extend(x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor) and x.dim() == 3)

    hook = run.model.net.get_submodule(path).register_forward_pre_hook(keep, with_kwargs=True)
    try:
        with torch.no_grad():
            run.model.net(*inputs, **inputs.named)
    finally:
        hook.remove()
    return array(read[0])[0] if read else None, inputs.crop


def _input(run: PlainRun, inputs=None) -> torch.Tensor | None:
    """Return the pixels of forward's input, `[B, C, H, W]`; None if it takes patches."""
    arguments = run.inputs if inputs is None else inputs
    return next((x for x in (*arguments, *arguments.named.values()) if x.is_floating_point() and x.dim() == 4), None)


def _grey(run: PlainRun, inputs) -> np.ndarray:
    """Return the first channel of the pixels of forward's input, as levels of 255, `[H, W]`."""
    card = run.model.card or {}
    usual = ((0.5, 0.2) if run.model.sizes["C"] == 1 else (0.5, 0.5)) if "C" in run.model.sizes else (0.5, 0.5)
    mean, std = (np.ravel(card.get(name, statistic))[0] for name, statistic in zip(("mean", "std"), usual, strict=True))
    return (array(_input(run, inputs))[0, 0] * std + mean) * 255
