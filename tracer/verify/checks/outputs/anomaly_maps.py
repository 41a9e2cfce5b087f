"""Anomaly map of a masked autoencoder, in grey levels of 255, recomputed in NumPy (He et al. 2022; note 001)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from tracer.verify.checks.reference_run import PlainRun, array

LEVELS = 0.05
"""Largest difference between two anomaly maps, in grey levels of 255."""


def problems(run: PlainRun) -> Iterator[str]:
    """Compare the map, the visible patches and the painted picture with those computed here."""
    shown = run.trace.result
    if shown.get("kind") != "reconstruction":
        return
    image, listed = array(run.inputs[0])[:1], run.inputs[1][0].tolist()
    side, card = run.model.sizes["P"], run.model.card or {}
    mean, std = np.array(card.get("mean", [0.5])), np.array(card.get("std", [0.2]))
    rows, columns = image.shape[-2] // side, image.shape[-1] // side
    if list(shown["visible"]) != listed:
        yield f"{len(shown['visible'])} patches are called visible, others than the {len(listed)} that were given"
    levels = _map(run.model.net, image, side) * std.mean() * 255
    anomaly = np.array(shown["anomaly"])
    if anomaly.shape != (rows, columns) or not abs(anomaly.ravel() - levels).max() <= LEVELS:
        yield f"the anomaly is {anomaly.ravel()[:3]} … grey levels, expected {levels[:3]} …"
    painted, reconstruction = _pixels(image, array(run.output)[0], listed, side), np.array(shown["pixels"], dtype=float)
    expected = np.clip(np.rint((painted * std + mean) * 255), 0, 255)
    if reconstruction.shape != expected.shape or not abs(reconstruction - expected).max() <= 1:
        yield "the painted picture is not made of the visible patches and of what the net predicts for the others"


def _map(net, image: np.ndarray, side: int) -> np.ndarray:
    """Return the root of the mean squared error of each patch `[N]`, predicted from the others: four times, with every
    second patch of every second row hidden; and that three times, each time from the 85 % of the others that were
    predicted best before."""
    columns, count = image.shape[-1] // side, image.shape[-2] // side * (image.shape[-1] // side)
    errors = np.zeros(count)
    for turn in range(3):
        before, patches = errors.copy(), []
        for group in range(4):
            hidden = [n for n in range(count) if (n // columns % 2, n % columns % 2) == divmod(group, 2)]
            others = [n for n in range(count) if n not in hidden]
            if not hidden or not others:
                continue
            trusted = len(others) if turn == 0 else max(1, round(0.85 * len(others)))
            context = sorted(sorted(others, key=lambda n: before[n])[:trusted])
            with torch.no_grad():
                predicted = net(torch.from_numpy(image).float(), torch.tensor([context]))
            patches += [(n, array(predicted)[0, n]) for n in hidden]
        for n, pixels in patches:
            errors[n] = np.sqrt(((pixels - _patch(image[0], n, side)) ** 2).mean())
    return errors


def _patch(image: np.ndarray, number: int, side: int) -> np.ndarray:
    """Return the pixels of a patch of `[C, H, W]`, pixel by pixel with its channels together."""
    row, column = divmod(number, image.shape[-1] // side)
    cut = image[:, row * side : (row + 1) * side, column * side : (column + 1) * side]
    return np.array([cut[:, y, x] for y in range(side) for x in range(side)]).ravel()


def _pixels(image: np.ndarray, predicted: np.ndarray, visible: list[int], side: int) -> np.ndarray:
    """Return the picture `[H, W, C]` of visible patches as they are and of the others as predicted."""
    canvas = image[0].transpose(1, 2, 0).copy()
    columns = canvas.shape[1] // side
    for number in set(range(len(predicted))) - set(visible):
        top, left = number // columns * side, number % columns * side
        canvas[top : top + side, left : left + side] = predicted[number].reshape(side, side, -1)
    return canvas
