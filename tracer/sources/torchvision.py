"""torchvision's Vision Transformers: `torchvision:vit_b_16` and its siblings."""

from __future__ import annotations

from functools import lru_cache

import torch


@lru_cache(maxsize=1)
def imported():
    """The package `torchvision`, imported; ImportError where it is not installed.

    Its compiled ops do not load on a build of PyTorch without the device they were compiled for, and importing it
    then fails, since it registers shapes for two ops that nobody defined. No transformer needs those two, so they are
    defined first, without an implementation. timm imports torchvision too and has the same need.
    """
    try:
        import torchvision
    except RuntimeError:  # operator torchvision::nms does not exist
        for schema in (
            "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
            "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        ):
            torch.library.define(f"torchvision::{schema.partition('(')[0]}", "(" + schema.partition("(")[2])
        import torchvision
    return torchvision
