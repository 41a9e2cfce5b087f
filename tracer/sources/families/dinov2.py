"""DINOv2 of transformers: self-supervised Vision Transformer with layer scale (Oquab et al. 2023)."""

from __future__ import annotations

import copy

import torch

from tracer.models.shared.model import Spec
from tracer.record import Segment
from tracer.sources.configured import ATTENTION, builder, photo, sizes_of
from tracer.sources.heads import answers, class_of, classes, vectors
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


HEADS = {"Dinov2Model": vectors, "Dinov2ForImageClassification": classes}


def config():
    """DINOv2 base on photos of 224 pixels."""
    return imported().Dinov2Config(image_size=224, patch_size=14)


def architecture(config):
    """The backbone, or a classifier upon it."""
    return getattr(imported(), class_of(config, HEADS))


def resized(made, sizes: dict[str, int]) -> str:
    """Brings the position embeddings of a checkpoint, in place, to the grid of photos of side H: resized by the net's
    own function, which would else do so in every run. Says so, in a few words, where they were of another size."""
    if made.config.image_size == sizes["H"]:
        return ""
    inner = getattr(made, "dinov2", made).embeddings
    H, P = sizes["H"], sizes["P"]
    with torch.no_grad():
        probe = inner.position_embeddings.new_empty(1, (H // P) ** 2 + 1, inner.position_embeddings.shape[-1])
        inner.position_embeddings = torch.nn.Parameter(inner.interpolate_pos_encoding(probe, H, H).clone())
    made.config.image_size = H
    return f", its position embeddings resized to {H // P} × {H // P} patches"


def spec(config, files) -> Spec:
    """All that is known of a DINOv2, from its configuration, and of the photos that its preprocessor makes."""
    headed = class_of(config, HEADS) != "Dinov2Model"
    if files.side and files.side % config.patch_size == 0:
        config = copy.deepcopy(config)
        config.image_size = files.side
    attributes = {**ATTRIBUTES, "K": "num_labels"} if headed else ATTRIBUTES
    probes = tuple({**probe, "K": size} for probe, size in zip(PROBES, (17, 23, 29), strict=True)) if headed else PROBES
    return Spec(
        net=builder(config, architecture, attributes),
        whole=False,
        takes=("image",),
        samples="photos",
        sizes=sizes_of(config, attributes),
        options={"attention": ATTENTION},
        derived={"W": "H", "N": "H**2/P**2", "d_k": "D/h", "d_ff": f"{int(config.mlp_ratio)}*D"},
        names=("B", "D", "N", "N+1", *(["K", "2*D"] if headed else []), *"C P H H/P h d_k d_ff".split()),
        probes=probes,
        example=lambda sizes: (torch.randn(sizes["B"], sizes["C"], sizes["H"], sizes["H"]),),
        prepare=photo,
        result=answers(config, HEADS),
        segments=lambda sizes: (Segment("CLS", 0, 1), Segment("image", 1, sizes["N"] + 1)),
        tiny={**probes[0], "L": 2},
    )
