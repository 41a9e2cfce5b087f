"""Vision Transformer of transformers, for classification (Dosovitskiy et al. 2021)."""

from __future__ import annotations

import torch

from tracer.derive.steps import Place
from tracer.equations import GELU, Tanh
from tracer.models.shared.model import Spec
from tracer.models.shared.textbook import Page
from tracer.models.vit import WHY as READ
from tracer.record import Segment
from tracer.sources.configured import ATTENTION, builder, photo, sizes_of
from tracer.sources.heads import answers, class_of, classes, vectors
from tracer.sources.textbook import Table, classified, encoded, photo_tokens, pooled
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
BLOCK = {
    "norm1": Place("layernorm_before"),
    "query": Place("attention", "transpose", 0),
    "key": Place("attention", "transpose", 1),
    "value": Place("attention", "transpose", 2),
    "output": Place("attention.o_proj"),
    "residual1": Place("", "add", 0),
    "norm2": Place("layernorm_after"),
    "hidden": Place("mlp.fc1"),
    "activation": Place("mlp.activation_fn"),
    "contract": Place("mlp.fc2"),
    "residual2": Place("", "add", 1),
}
INSIDE = {
    "sdpa": {"context": Place("attention", "reshape", -1)},
    "eager": {
        "scores": Place("attention", "mul"),
        "weights": Place("attention", "softmax"),
        "context": Place("attention", "reshape", -1),
    },
}
PARAMETERS = {
    "norm1": "layernorm_before",
    "query": "attention.q_proj",
    "key": "attention.k_proj",
    "value": "attention.v_proj",
    "output": "attention.o_proj",
    "norm2": "layernorm_after",
    "hidden": "mlp.fc1",
    "contract": "mlp.fc2",
}


HEADS = {"ViTForImageClassification": classes, "ViTModel": vectors}


def config():
    """ViT-B/16 with ten classes."""
    return imported().ViTConfig(num_labels=10)


def architecture(config):
    """The classifier, or the encoder without a head."""
    return getattr(imported(), class_of(config, HEADS))


def lines(sizes: dict, config):
    """The textbook, over the ops that transformers runs."""
    eps, headed = config.layer_norm_eps, class_of(config, HEADS) != "ViTModel"
    page, trunk = Page(eps=eps), "vit." if headed else ""
    inside = f"{trunk}embeddings"
    places = {
        "embedding": Place(f"{inside}.patch_embeddings"),
        "sequence": Place(inside, "cat"),
        "position": Place(inside, "add"),
    }
    kernels = f"{inside}.patch_embeddings.projection"
    x = photo_tokens(page, "pixel_values", kernels, f"{inside}.cls_token", f"{inside}.position_embeddings", places)
    table = Table({**BLOCK, **INSIDE[sizes["attention"]]}, PARAMETERS, GELU, eps)
    blocks = [f"{trunk}layers.{layer}" for layer in range(sizes["L"])]
    if headed:
        return classified(page, x, table, blocks, "vit.layernorm", "classifier")
    x = encoded(page, x, table, blocks, "layernorm")
    pooled(page, x, "pooler", Tanh, READ["take"])
    return page.lines


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
        lines=lambda sizes: lines(sizes, config),
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
