"""Anomaly map of a masked autoencoder: errors of patches predicted from others (He et al. 2022; note 001)."""

from __future__ import annotations

import torch

from tracer.models.shared.preparation.masked_image_inputs import MEAN, STD

ROUNDS, TRUSTED_SHARE = 3, 0.85
"""The number of rounds of an anomaly map, and the share of the other patches that it reads."""


def patches_of(image: torch.Tensor, side: int) -> torch.Tensor:
    """Return the pixels of each patch, in the layout that the model predicts: `[B, C, H, W]` to `[B, N, P²C]`."""
    B, C, H, W = image.shape
    cut = image.view(B, C, H // side, side, W // side, side)
    return cut.permute(0, 2, 4, 3, 5, 1).reshape(B, -1, side * side * C)


def image_of(patches: torch.Tensor, rows: int, columns: int, side: int) -> torch.Tensor:
    """Return the image of these patches: `[B, N, P²C]` to `[B, C, H, W]`."""
    B, _, width = patches.shape
    grid = patches.view(B, rows, columns, side, side, width // side**2)
    return grid.permute(0, 5, 1, 3, 2, 4).reshape(B, -1, rows * side, columns * side)


def complementary(rows: int, columns: int) -> list[torch.Tensor]:
    """Return four masks that together hide every patch once: the indices of the hidden patches, in raster order.

    Each hides every second patch of every second row, so that all neighbours of a hidden patch are visible. A mask that
    would hide nothing, or everything, is left out.
    """
    row, column = torch.arange(rows)[:, None], torch.arange(columns)
    visible = [((row % 2 == i) & (column % 2 == j)).reshape(-1).nonzero()[:, 0] for i in (0, 1) for j in (0, 1)]
    return [hidden for hidden in visible if 0 < len(hidden) < rows * columns]


@torch.no_grad()
def predict_hidden(net: torch.nn.Module, image: torch.Tensor, doubt: torch.Tensor | None = None) -> torch.Tensor:
    """Return each patch as predicted from the others, over complementary masks: `[B, N, P²C]` of `[B, C, H, W]`.

    With `doubt`, `[B, N]`, the prediction reads only the others with the least doubt: `TRUSTED_SHARE` of them.
    """
    rows, columns = image.shape[-2] // net.P, image.shape[-1] // net.P
    predicted = patches_of(image, net.P).clone()
    share = 1.0 if doubt is None else TRUSTED_SHARE
    doubt = torch.zeros(predicted.shape[:2], device=predicted.device) if doubt is None else doubt
    for masks in _alike(complementary(rows, columns)):
        count = max(1, round(share * (rows * columns - len(masks[0]))))
        ranked = [doubt.index_fill(1, hidden.to(doubt.device), torch.inf).argsort(dim=1) for hidden in masks]
        visible = torch.cat([each[:, :count].sort(dim=1).values for each in ranked])
        batch = image.repeat(len(masks), 1, 1, 1)  # one run for all masks that hide as many patches
        for hidden, output in zip(masks, net(batch, visible).split(len(image)), strict=True):
            predicted[:, hidden] = output[:, hidden]
    return predicted


def _alike(masks: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return masks in groups that hide as many patches each."""
    groups: dict[int, list[torch.Tensor]] = {}
    for hidden in masks:
        groups.setdefault(len(hidden), []).append(hidden)
    return list(groups.values())


def anomaly_map(net: torch.nn.Module, image: torch.Tensor) -> torch.Tensor:
    """Return the error of each patch predicted from the others: the root mean square, `[B, N]`.

    A visible defect would be continued into its neighbours. So the prediction is repeated `ROUNDS` times, and each time
    the patches with the largest errors before are hidden from all.
    """
    prediction = None
    for _ in range(ROUNDS):
        prediction = (predict_hidden(net, image, prediction) - patches_of(image, net.P)).square().mean(dim=-1).sqrt()
    return prediction


@torch.no_grad()
def reconstruction(model, inputs, output: torch.Tensor) -> dict:
    """Return the visible patches of the first input, the picture with predicted ones, and the anomaly map.

    `pixels` are 0 to 255, `[H][W][C]`; `anomaly` is `[rows][columns]`, in grey levels of 255.
    """
    image, visible = inputs[0][:1], inputs[1][0]
    side, card = model.sizes["P"], model.card or {}
    rows, columns = image.shape[-2] // side, image.shape[-1] // side
    patches = output[:1].clone()
    patches[0, visible] = patches_of(image, side)[0, visible]
    mean, std = (
        torch.tensor(card.get(name, default)).view(-1, 1, 1) for name, default in (("mean", MEAN), ("std", STD))
    )
    pixels = (image_of(patches, rows, columns, side)[0] * std + mean).mul(255).round().clamp(0, 255)
    levels = anomaly_map(model.net, image)[0] * float(std.mean()) * 255
    return {
        "kind": "reconstruction",
        "visible": visible.tolist(),
        "pixels": pixels.permute(1, 2, 0).int().tolist(),
        "anomaly": levels.view(rows, columns).tolist(),
    }
