"""torchvision's Vision Transformers (Dosovitskiy et al. 2021)."""

from __future__ import annotations

import torch

from tracer.inputs.tensors import photo_input
from tracer.models.shared.model import Spec
from tracer.models.shared.results import class_probabilities
from tracer.record import Segment
from tracer.sources.missing_ops import imported

SIZES = {
    "vit_b_16": {"H": 224, "P": 16, "D": 768, "h": 12, "d_ff": 3072, "L": 12},
    "vit_b_32": {"H": 224, "P": 32, "D": 768, "h": 12, "d_ff": 3072, "L": 12},
    "vit_l_16": {"H": 224, "P": 16, "D": 1024, "h": 16, "d_ff": 4096, "L": 24},
    "vit_l_32": {"H": 224, "P": 32, "D": 1024, "h": 16, "d_ff": 4096, "L": 24},
    "vit_h_14": {"H": 224, "P": 14, "D": 1280, "h": 16, "d_ff": 5120, "L": 32},
}


def net(*, H: int, P: int, D: int, h: int, d_ff: int, L: int, K: int) -> torch.nn.Module:
    """torchvision's own `VisionTransformer` at these sizes; takes `[B, 3, H, H]`, returns logits `[B, K]`."""
    return imported().models.vision_transformer.VisionTransformer(
        image_size=H, patch_size=P, num_layers=L, num_heads=h, hidden_dim=D, mlp_dim=d_ff, num_classes=K
    )


PROBES = (
    {"B": 19, "H": 35, "P": 5, "D": 66, "h": 6, "d_ff": 13, "K": 17},
    {"B": 13, "H": 33, "P": 3, "D": 14, "h": 2, "d_ff": 29, "K": 23},
    {"B": 8, "H": 42, "P": 7, "D": 55, "h": 5, "d_ff": 41, "K": 29},
)


def spec(id: str) -> Spec:
    """What is known of one of the Vision Transformers."""
    return Spec(
        net=net,
        takes=("image",),
        samples="photos",
        sizes={**SIZES[id], "K": 1000},
        derived={"W": "H", "C": "3", "N": "H**2/P**2", "d_k": "D/h"},
        names=tuple("B D N N+1 K P H H/P h d_k d_ff".split()),
        probes=PROBES,
        example=lambda sizes: (torch.randn(sizes["B"], 3, sizes["H"], sizes["H"]),),
        prepare=photo_input,
        result=class_probabilities,
        segments=lambda sizes: (Segment("CLS", 0, 1), Segment("image", 1, sizes["N"] + 1)),
        tiny={**PROBES[0], "L": 2},
    )
