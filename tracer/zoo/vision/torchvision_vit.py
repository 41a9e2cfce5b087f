"""torchvision's Vision Transformers (Dosovitskiy et al. 2021)."""

from __future__ import annotations

import torch

from tracer.models.shared.predictions import class_probabilities
from tracer.models.shared.preparation.to_tensors import photo_input
from tracer.models.shared.spec import Spec
from tracer.record import Segment
from tracer.textbook.hints import Hint
from tracer.zoo.vision.torchvision_ops_fallback import import_torchvision

SIZES = {
    "vit_b_16": {"H": 224, "P": 16, "D": 768, "h": 12, "d_ff": 3072, "L": 12},
    "vit_b_32": {"H": 224, "P": 32, "D": 768, "h": 12, "d_ff": 3072, "L": 12},
    "vit_l_16": {"H": 224, "P": 16, "D": 1024, "h": 16, "d_ff": 4096, "L": 24},
    "vit_l_32": {"H": 224, "P": 32, "D": 1024, "h": 16, "d_ff": 4096, "L": 24},
    "vit_h_14": {"H": 224, "P": 14, "D": 1280, "h": 16, "d_ff": 5120, "L": 32},
}


def net(*, H: int, P: int, D: int, h: int, d_ff: int, L: int, K: int) -> torch.nn.Module:
    """Build torchvision's own `VisionTransformer` at these sizes; it takes `[B, 3, H, H]` and returns logits `[B,
    K]`."""
    return import_torchvision().models.vision_transformer.VisionTransformer(
        image_size=H, patch_size=P, num_layers=L, num_heads=h, hidden_dim=D, mlp_dim=d_ff, num_classes=K
    )


PROBES = (
    {"B": 19, "H": 35, "P": 5, "D": 66, "h": 6, "d_ff": 13, "K": 17},
    {"B": 13, "H": 33, "P": 3, "D": 14, "h": 2, "d_ff": 29, "K": 23},
    {"B": 8, "H": 42, "P": 7, "D": 55, "h": 5, "d_ff": 41, "K": 29},
)


NOTES = {
    "position": "Note 003 does not list that positions are added. It calls the batch N, which is the number of patches "
    "here.",
    "*.norm1": "Note 003 opens this into nine steps; PyTorch's own decomposition has seven, with one var_mean in the "
    "place of two means and a square.",
    "*.norm2": "Note 003 counts three norms per block; there are two, and one after the last block.",
    "*.attention.packed": "Note 003 has the batch in front here; opened, torchvision's attention has the sequence in "
    "front, with a transpose on the way in and one on the way out.",
    "*.attention.query": "Note 003 views this without a transpose before it, which would mix images; one runs.",
    "*.attention.context": "Note 003's standard path does not run by itself, since torchvision never asks for the "
    "weights; on this one heads are merged by permute and view, and its contiguous does not run.",
    "*.attention.residual": "Note 003 lists a dropout before this sum; in evaluation it leaves no operation.",
    "*.mlp.activation": "Note 003 opens GELU by tanh; this is the exact one, by erf, and none of those steps run.",
    "*.mlp.output": "Note 003 lists a dropout before this product and one after it; in evaluation they leave no "
    "operation.",
    "*.mlp.residual": "Note 003 counts five matrix products in a block, about 20 binary and ten unary operations and "
    "four means; opened there are six, 29, four and two.",
}
"""Differences between note 003 and the run, by the end of the step's id."""


def spec(id: str) -> Spec:
    """Return the `Spec` of one of the Vision Transformers."""
    return Spec(
        net=net,
        takes=("image",),
        samples="photos",
        sizes={**SIZES[id], "K": 1000},
        derived={"W": "H", "C": "3", "N": "H**2/P**2", "d_k": "D/h"},
        names=tuple("B D N N+1 K P H H/P h d_k d_ff".split()),
        probes=PROBES,
        hints=tuple(Hint(step, note=note) for step, note in NOTES.items()),
        example=lambda sizes: (torch.randn(sizes["B"], 3, sizes["H"], sizes["H"]),),
        prepare=photo_input,
        result=class_probabilities,
        segments=lambda sizes: (Segment("CLS", 0, 1), Segment("image", 1, sizes["N"] + 1)),
        tiny={**PROBES[0], "L": 2},
    )
