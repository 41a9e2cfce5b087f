"""DINOv2 of transformers: self-supervised Vision Transformer with layer scale (Oquab et al. 2023)."""

from __future__ import annotations

import torch

from tracer.model import Spec
from tracer.record import Segment
from tracer.results import embedding
from tracer.sources.configured import ATTENTION, builder, photo, sizes_of
from tracer.sources.transformers import imported

ATTRIBUTES = {
    "H": "image_size",
    "C": "num_channels",
    "P": "patch_size",
    "D": "hidden_size",
    "h": "num_attention_heads",
    "L": "num_hidden_layers",
}
PROBES = (
    {"B": 19, "H": 35, "C": 2, "P": 5, "D": 66, "h": 6},
    {"B": 13, "H": 33, "C": 5, "P": 3, "D": 14, "h": 2},
    {"B": 8, "H": 42, "C": 9, "P": 7, "D": 55, "h": 5},
)


def config():
    """DINOv2 base on photos of 224 pixels."""
    return imported().Dinov2Config(image_size=224, patch_size=14)


def architecture(config):
    """The backbone."""
    return imported().Dinov2Model


def spec(config, files) -> Spec:
    """All that is known of a DINOv2, from its configuration."""
    return Spec(
        net=builder(config, architecture, ATTRIBUTES),
        lines=lambda sizes: [],
        whole=False,
        takes=("image",),
        samples="photos",
        sizes=sizes_of(config, ATTRIBUTES),
        options={"attention": ATTENTION},
        derived={"W": "H", "N": "H**2/P**2", "d_k": "D/h", "d_ff": f"{int(config.mlp_ratio)}*D"},
        names=tuple("B D N N+1 C P H H/P h d_k d_ff".split()),
        probes=PROBES,
        example=lambda sizes: (torch.randn(sizes["B"], sizes["C"], sizes["H"], sizes["H"]),),
        prepare=photo,
        result=embedding,
        segments=lambda sizes: (Segment("CLS", 0, 1), Segment("image", 1, sizes["N"] + 1)),
        tiny={**PROBES[0], "L": 2},
    )
