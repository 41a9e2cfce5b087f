"""Ops of torchvision in plain PyTorch, for machines on which its compiled ones do not load."""

from __future__ import annotations

import sys
from types import ModuleType

import torch

ONCE = 64
"""Regions that are cut out at once: all of them would take gigabytes."""


def import_torchvision() -> ModuleType:
    """Import `torchvision`, with fallbacks for its compiled ops. Raise ImportError if it is not installed. timm
    imports it too.

    Its compiled ops do not load on a build of PyTorch without the device they were compiled for, and importing it
    then fails. The ops that its models need are defined in plain PyTorch then.
    """
    try:
        import torchvision  # may not be installed
    except RuntimeError:  # operator torchvision::nms does not exist
        define()
        import torchvision  # may not be installed

        take_for_compiled(torchvision)
    return torchvision


def define() -> None:
    """Define the missing ops that torchvision's own import and its detectors run."""
    for name, (schema, run) in OPS.items():
        torch.library.define(f"torchvision::{name}", schema)
        if run is not None:
            torch.library.impl(f"torchvision::{name}", "CompositeExplicitAutograd", run)


def take_for_compiled(torchvision) -> None:
    """Report torchvision's compiled ops as available."""
    torchvision.extension._has_ops = lambda: True
    vars(sys.modules["torchvision.ops.roi_align"])["_has_ops"] = (
        torchvision.extension._has_ops
    )  # hidden by the function's name


def nms(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Return the indices, int64 `[m]`, of the boxes `[n, 4]` (left, top, right, bottom) that are kept, the best
    first: a box is dropped if its intersection over union with a better kept one is above `iou_threshold`."""
    order = scores.argsort(descending=True, stable=True)
    boxes, areas = dets[order], ((dets[:, 2] - dets[:, 0]) * (dets[:, 3] - dets[:, 1]))[order]
    open_, survivors = torch.ones(len(order), dtype=torch.bool, device=dets.device), []
    for number in range(len(order)):
        if not open_[number]:
            continue
        survivors.append(number)
        corner, rest = boxes[number], boxes[number + 1 :]
        low, high = torch.maximum(rest[:, :2], corner[:2]), torch.minimum(rest[:, 2:], corner[2:])
        shared = (high - low).clamp(min=0).prod(dim=1)
        open_[number + 1 :] &= ~(shared / (areas[number] + areas[number + 1 :] - shared) > iou_threshold)
    return order[survivors]


def roi_align(
    input: torch.Tensor,
    rois: torch.Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> torch.Tensor:
    """Return regions `[n, 5]` (index in the batch, left, top, right, bottom) of maps `[B, C, H, W]`, each as `[C,
    pooled_height, pooled_width]`: torchvision's own definition in plain PyTorch, not compiled (He et al. 2017)."""
    from torchvision.ops.roi_align import _roi_align  # torchvision is imported by now

    plain = _roi_align.__wrapped__
    size = (spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned)
    parts = [plain(input, some, *size) for some in rois.split(ONCE)]
    return torch.cat(parts) if parts else input.new_zeros(0, input.shape[1], pooled_height, pooled_width)


BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
OPS = {
    "nms": (BOXES, nms),
    "qnms": (BOXES, None),
    "roi_align": (
        "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
        "int sampling_ratio, bool aligned) -> Tensor",
        roi_align,
    ),
}
