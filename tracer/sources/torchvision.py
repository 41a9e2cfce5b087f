"""torchvision's Vision Transformers: `torchvision:vit_b_16` and its siblings (Dosovitskiy et al. 2021)."""

from __future__ import annotations

from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

import torch

from tracer.inputs.tensors import photo_input
from tracer.model import Spec
from tracer.record import Segment
from tracer.results import class_probabilities
from tracer.sources.download import Download
from tracer.sources.network import forbidden, reason
from tracer.sources.textbook import Table, classified, photo_tokens
from tracer.steps import Place
from tracer.textbook import Page

PREFIX = "torchvision"
PACKAGE = "torchvision"
EXAMPLES = {
    "vit_b_16": "ViT-B/16 of torchvision, 1,000 classes of ImageNet (Dosovitskiy et al. 2021).",
    "vit_b_32": "ViT-B/32 of torchvision, 1,000 classes of ImageNet.",
    "vit_l_16": "ViT-L/16 of torchvision, 1,000 classes of ImageNet.",
    "vit_l_32": "ViT-L/32 of torchvision, 1,000 classes of ImageNet.",
    "vit_h_14": "ViT-H/14 of torchvision, 1,000 classes of ImageNet.",
}

SIZES = {
    "vit_b_16": {"H": 224, "P": 16, "D": 768, "h": 12, "d_ff": 3072, "L": 12},
    "vit_b_32": {"H": 224, "P": 32, "D": 768, "h": 12, "d_ff": 3072, "L": 12},
    "vit_l_16": {"H": 224, "P": 16, "D": 1024, "h": 16, "d_ff": 4096, "L": 24},
    "vit_l_32": {"H": 224, "P": 32, "D": 1024, "h": 16, "d_ff": 4096, "L": 24},
    "vit_h_14": {"H": 224, "P": 14, "D": 1280, "h": 16, "d_ff": 5120, "L": 32},
}


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
        for op in ("nms", "qnms"):
            torch.library.define(f"torchvision::{op}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    return torchvision


def net(*, H: int, P: int, D: int, h: int, d_ff: int, L: int, K: int) -> torch.nn.Module:
    """torchvision's own `VisionTransformer` at these sizes; takes `[B, 3, H, H]`, returns logits `[B, K]`."""
    transformers = imported().models.vision_transformer
    return transformers.VisionTransformer(
        image_size=H, patch_size=P, num_layers=L, num_heads=h, hidden_dim=D, mlp_dim=d_ff, num_classes=K
    )


TABLE = Table(
    places={
        "norm1": Place("ln_1"),
        "packed": Place("self_attention", op="clone", nth=-1),
        "query": Place("self_attention", op="view", nth=-5),
        "key": Place("self_attention", op="view", nth=-4),
        "value": Place("self_attention", op="view", nth=-3),
        "context": Place("self_attention", op="view", nth=-2),
        "output": Place("self_attention"),
        "residual1": Place("", "add", 0),
        "norm2": Place("ln_2"),
        "hidden": Place("mlp.0"),
        "activation": Place("mlp.1"),
        "contract": Place("mlp.3"),
        "residual2": Place("", "add", 1),
    },
    parameters={
        "norm1": "ln_1",
        "packed": ("self_attention.in_proj_weight", "self_attention.in_proj_bias"),
        "output": "self_attention.out_proj",
        "norm2": "ln_2",
        "hidden": "mlp.0",
        "contract": "mlp.3",
    },
    sequence_first=True,
    notes={
        "context": "nn.MultiheadAttention lays the tokens of all inputs one under the other, so S and B are one axis "
        "here."
    },
)


def lines(config: dict):
    """The textbook of torchvision's ViT, over the ops that it runs."""
    page = Page()
    places = {
        "embedding": Place("", "permute"),
        "sequence": Place("", "cat"),
        "position": Place("encoder", "add"),
    }
    x = photo_tokens(page, "x", "conv_proj", "class_token", "encoder.pos_embedding", places)
    blocks = [f"encoder.layers.encoder_layer_{layer}" for layer in range(config["L"])]
    return classified(page, x, TABLE, blocks, "encoder.ln", "heads.head")


PROBES = (
    {"B": 19, "H": 35, "P": 5, "D": 66, "h": 6, "d_ff": 13, "K": 17},
    {"B": 13, "H": 33, "P": 3, "D": 14, "h": 2, "d_ff": 29, "K": 23},
    {"B": 8, "H": 42, "P": 7, "D": 55, "h": 5, "d_ff": 41, "K": 29},
)


@lru_cache(maxsize=16)
def spec(id: str) -> Spec:
    """What is known of one of torchvision's models. ValueError for an unknown one."""
    return Spec(
        net=net,
        lines=lines,
        takes=("image",),
        samples="photos",
        sizes={**SIZES[_known(id)], "K": 1000},
        derived={"W": "H", "C": "3", "N": "H**2/P**2", "d_k": "D/h"},
        names=tuple("B D N N+1 K P H H/P h d_k d_ff".split()),
        probes=PROBES,
        example=lambda sizes: (torch.randn(sizes["B"], 3, sizes["H"], sizes["H"]),),
        prepare=photo_input,
        result=class_probabilities,
        segments=lambda sizes: (Segment("CLS", 0, 1), Segment("image", 1, sizes["N"] + 1)),
        tiny={**PROBES[0], "L": 2},
    )


def pretrained(id: str, spec: Spec, sizes: dict) -> tuple[torch.nn.Module | None, dict | None, str]:
    """The net with torchvision's ImageNet weights, their card, and where they come from; without the net where they
    are neither in PyTorch's cache nor can be downloaded.

    The file is a checkpoint of tensors alone, whose hash its name tells; it is read with `weights_only=True`.
    """
    found, folder = _weights(id)
    name = found.url.rpartition("/")[2]
    if forbidden() and not (folder / name).is_file():
        return None, None, f"seeded random weights, since {name} is not on this machine and it is offline"
    try:
        tensors = torch.hub.load_state_dict_from_url(found.url, str(folder), check_hash=True, weights_only=True)
    except (OSError, RuntimeError) as error:
        return None, None, f"seeded random weights, since {name} could not be downloaded ({reason(error)})"
    made = net(**{symbol: sizes[symbol] for symbol in spec.sizes})
    made.load_state_dict(tensors)
    transform = found.transforms()
    card = {
        "sizes": dict(spec.sizes),
        "classes": found.meta["categories"],
        "mean": transform.mean,
        "std": transform.std,
        "crop": transform.crop_size[0] / transform.resize_size[0],
        "data": "ImageNet-1k",
    }
    return made.eval(), card, f"torchvision's weights {found.name}, trained on ImageNet-1k"


def download(id: str) -> Download:
    """What loading the weights downloads; torchvision tells the size of their file."""
    found, folder = _weights(id)
    if (folder / found.url.rpartition("/")[2]).is_file():
        return Download(0, "its weights are on this machine")
    if forbidden():
        return Download(0, "it is offline, so its weights are seeded random ones")
    return Download(round(found.meta["_file_size"] * 2**20), folder=str(folder))


def _weights(id: str):
    """torchvision's ImageNet weights for photos of 224 pixels, and the folder where PyTorch keeps their file."""
    found = next(weights for weights in imported().models.get_model_weights(id) if 224 in weights.meta["min_size"])
    return found, Path(torch.hub.get_dir()) / "checkpoints"


def _known(id: str) -> str:
    if id not in SIZES:
        near = get_close_matches(id, SIZES, n=1, cutoff=0.4)
        hint = f"did you mean 'torchvision:{near[0]}'?" if near else f"known are {', '.join(SIZES)}"
        raise ValueError(f"there is no model 'torchvision:{id}'; {hint}")
    return id
