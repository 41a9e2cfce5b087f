"""Vision Transformer of transformers, for classification (Dosovitskiy et al. 2021)."""

from __future__ import annotations

import torch

from tracer.models.shared.model import Spec
from tracer.record import Segment
from tracer.sources.configured import ATTENTION, builder, photo, sizes_of
from tracer.sources.heads import POOLER, answers, class_of, classes, vectors
from tracer.sources.transformers import imported

ATTRIBUTES = {
    "H": "image_size",
    "C": "num_channels",
    "P": "patch_size",
    "D": "hidden_size",
    "h": "num_attention_heads",
    "d_ff": "intermediate_size",
    "L": "num_hidden_layers",
    "K": "num_labels",
}
PROBES = (
    {"B": 19, "H": 35, "C": 2, "P": 5, "D": 66, "h": 6, "d_ff": 13, "K": 17},
    {"B": 13, "H": 33, "C": 4, "P": 3, "D": 14, "h": 2, "d_ff": 29, "K": 23},
    {"B": 8, "H": 42, "C": 9, "P": 7, "D": 55, "h": 5, "d_ff": 41, "K": 29},
)
HEADS = {"ViTForImageClassification": classes, "ViTModel": vectors}


def config():
    """ViT-B/16 with ten classes."""
    return imported().ViTConfig(num_labels=10)


def architecture(config):
    """The classifier, or the encoder without a head."""
    return getattr(imported(), class_of(config, HEADS))


def spec(config, files) -> Spec:
    """All that is known of a ViT, from its configuration."""
    headed = class_of(config, HEADS) != "ViTModel"
    attributes = {symbol: name for symbol, name in ATTRIBUTES.items() if headed or symbol != "K"}
    probes = tuple({symbol: size for symbol, size in probe.items() if headed or symbol != "K"} for probe in PROBES)

    def adjust(changed) -> None:
        if getattr(config, "pooler_output_size", None) == config.hidden_size:
            changed.pooler_output_size = changed.hidden_size

    return Spec(
        net=builder(config, architecture, attributes, adjust),
        hints=() if headed else POOLER,
        takes=("image",),
        samples="photos",
        sizes=sizes_of(config, attributes),
        options={"attention": ATTENTION},
        derived={"W": "H", "N": "H**2/P**2", "d_k": "D/h"},
        names=("B", "D", "N", "N+1", *(["K"] if headed else []), *"C P H H/P h d_k d_ff".split()),
        probes=probes,
        example=lambda sizes: (torch.randn(sizes["B"], sizes["C"], sizes["H"], sizes["H"]),),
        prepare=photo,
        result=answers(config, HEADS),
        segments=lambda sizes: (Segment("CLS", 0, 1), Segment("image", 1, sizes["N"] + 1)),
        tiny={**probes[0], "L": 2},
    )
