"""timm's Vision Transformers: `timm:vit_base_patch16_224` and its relatives, with registers or rotary positions."""

from __future__ import annotations

from difflib import get_close_matches
from functools import lru_cache

import torch

from tracer.inputs.tensors import photo_input
from tracer.model import Spec
from tracer.record import Segment
from tracer.results import class_probabilities, embedding
from tracer.sources.download import Download, on_the_hub
from tracer.sources.network import offline, reason, why
from tracer.sources.textbook import Table, classified, photo_tokens
from tracer.sources.torchvision import imported as torchvision
from tracer.steps import Place
from tracer.textbook import Page

PREFIX = "timm"
PACKAGE = "timm"
FILE = "model.safetensors"
EXAMPLES = {
    "vit_tiny_patch16_224": "ViT-Ti/16 of timm, a plain Vision Transformer.",
    "vit_base_patch16_reg4_gap_256": "ViT-B/16 of timm with four register tokens and no CLS (Darcet et al. 2024).",
    "vit_base_patch16_rope_224": "ViT-B/16 of timm with rotary positions (Heo et al. 2024).",
}
PROBES = (
    {"B": 19, "H": 35, "P": 5, "D": 72, "h": 6, "K": 17, "d_ff": 62},
    {"B": 13, "H": 33, "P": 3, "D": 80, "h": 4, "K": 23, "d_ff": 74},
    {"B": 7, "H": 14, "P": 2, "D": 24, "h": 2, "K": 29, "d_ff": 86},
    {"B": 9, "H": 42, "P": 7, "D": 100, "h": 5, "K": 31, "d_ff": 98},
)


BLOCK = Table(
    places={
        "norm1": Place("norm1"),
        "packed": Place("attn.qkv"),
        "query": Place("attn", op="unbind", output=0),
        "key": Place("attn", op="unbind", output=1),
        "value": Place("attn", op="unbind", output=2),
        "context": Place("attn", "reshape", -1),
        "output": Place("attn.proj"),
        "residual1": Place("", "add", 0),
        "norm2": Place("norm2"),
        "hidden": Place("mlp.fc1"),
        "activation": Place("mlp.act"),
        "contract": Place("mlp.fc2"),
        "residual2": Place("", "add", 1),
    },
    parameters={
        "norm1": "norm1",
        "packed": "attn.qkv",
        "output": "attn.proj",
        "norm2": "norm2",
        "hidden": "mlp.fc1",
        "contract": "mlp.fc2",
    },
)


@lru_cache(maxsize=1)
def imported():
    """The package `timm`; it imports torchvision, which may need help."""
    torchvision()
    import timm

    return timm


def plain(made: torch.nn.Module) -> bool:
    """Whether a model is the Vision Transformer of the textbook: CLS, learned positions, no more norms or scales."""
    block, nothing = made.blocks[0], torch.nn.Identity
    return (
        type(made).__name__ == "VisionTransformer"
        and (made.num_prefix_tokens, made.num_reg_tokens, made.global_pool) == (1, 0, "token")
        and not (made.no_embed_class or made.norm_pre.__class__ is not nothing)
        and all(type(part) is nothing for part in (made.fc_norm, block.ls1, block.attn.q_norm, block.attn.norm))
        and isinstance(block.mlp.act, torch.nn.GELU)
        and block.attn.qkv.bias is not None
        and block.norm1.eps == made.norm.eps == BLOCK.eps
    )


def lines(config: dict):
    """The textbook of a plain ViT, over the ops that timm runs."""
    page = Page()
    places = {"embedding": Place("patch_embed"), "sequence": Place("", "cat"), "position": Place("", "add")}
    x = photo_tokens(page, "x", "patch_embed.proj", "cls_token", "pos_embed", places)
    return classified(page, x, BLOCK, [f"blocks.{layer}" for layer in range(config["L"])], "norm", "head")


@lru_cache(maxsize=16)
def spec(id: str) -> Spec:
    """What is known of one of timm's models, measured on the model itself. ValueError for one that is no ViT."""
    made = _measured(id)
    prefix, block = made.num_prefix_tokens, made.blocks[0]
    registers = getattr(made, "num_reg_tokens", 0)
    classes = {"K": made.num_classes} if made.num_classes else {}  # without a head it gives features
    derived = {"W": "H", "C": str(made.patch_embed.proj.in_channels), "N": "H**2/P**2", "d_k": "D/h"}
    S = "S" if prefix else "N"
    if prefix:
        derived["S"] = f"N + {prefix}"
    names = ["B", "D", "N", S, "P", "H", "H/P", "h", "d_k", "d_k/2", "d_ff", "2*d_ff", *classes]
    probes = tuple({name: size for name, size in probe.items() if name != "K" or classes} for probe in PROBES)

    def segments(sizes) -> tuple[Segment, ...]:
        first = (Segment("CLS", 0, prefix - registers),) if prefix > registers else ()
        held = (Segment("registers", prefix - registers, prefix),) if registers else ()
        return (*first, *held, Segment("image", prefix, prefix + sizes["N"]))

    return Spec(
        net=lambda **sizes: _built(id, **sizes),
        lines=lines if plain(made) else lambda sizes: [],
        whole=plain(made),
        takes=("image",),
        samples="photos",
        sizes={
            "H": made.patch_embed.img_size[0],
            "P": made.patch_embed.patch_size[0],
            "D": made.embed_dim,
            "h": block.attn.num_heads,
            "L": len(made.blocks),
            **classes,
            "d_ff": _hidden(made),
        },
        derived=derived,
        names=tuple(dict.fromkeys(names)),
        probes=probes,
        example=lambda sizes: (torch.randn(sizes["B"], made.patch_embed.proj.in_channels, sizes["H"], sizes["H"]),),
        prepare=photo_input,
        result=class_probabilities if classes else embedding,
        segments=segments,
        tiny={**probes[0], "L": 2},
    )


def pretrained(id: str, spec: Spec, sizes: dict) -> tuple[torch.nn.Module | None, dict | None, str]:
    """The net with timm's weights (safetensors), what is known of them, and where they come from; without the net
    where they are neither on this machine nor can be downloaded."""
    known = imported().get_pretrained_cfg(id)
    if known is None or not known.hf_hub_id:
        return None, None, f"seeded random weights: timm publishes none for {id}"
    import huggingface_hub

    try:
        file = huggingface_hub.hf_hub_download(known.hf_hub_id, FILE, local_files_only=offline())
    except (OSError, ValueError) as error:
        said = why() if offline() else reason(error)
        return None, None, f"seeded random weights, since those of {id} are not on this machine, and {said}"
    made = imported().create_model(id, pretrained=True, pretrained_cfg_overlay={"file": file})
    card = {
        "sizes": dict(spec.sizes),
        "mean": known.mean,
        "std": known.std,
        "crop": known.crop_pct,
        "data": known.hf_hub_id,
    }
    return made.eval(), card, f"timm's weights {known.hf_hub_id}"


def download(id: str) -> Download:
    """What loading the weights downloads; the hub, where timm keeps them, is asked for the size of their file."""
    known = imported().get_pretrained_cfg(id)
    if known is None or not known.hf_hub_id:
        return Download(0, "timm publishes no weights for it, so they are seeded random ones")
    from huggingface_hub import try_to_load_from_cache

    if try_to_load_from_cache(known.hf_hub_id, FILE):
        return Download(0, "its weights are on this machine")
    if offline():
        return Download(0, f"{why()}, so its weights are seeded random ones")
    return on_the_hub(known.hf_hub_id)


def _built(id: str, *, H: int, P: int, D: int, h: int, L: int, d_ff: int, K: int = 0) -> torch.nn.Module:
    sizes = {"img_size": H, "patch_size": P, "embed_dim": D, "num_heads": h, "depth": L, "num_classes": K}
    for halves in (1, 2):  # of a gated MLP (SwiGLU, Shazeer 2020) some models count both halves
        ratio = (halves * d_ff + 0.5) / D  # which is rounded down
        made = imported().create_model(id, **sizes, mlp_ratio=ratio, pretrained=False)
        if _hidden(made) == d_ff:
            break
    return made


def _hidden(made: torch.nn.Module) -> int:
    """The hidden width of the MLPs."""
    return made.blocks[0].mlp.fc2.in_features


@lru_cache(maxsize=16)
def _measured(id: str) -> torch.nn.Module:
    """The model itself on `meta`, where it costs no memory."""
    if not imported().is_model(id):
        near = get_close_matches(id, imported().list_models(), n=1, cutoff=0.4)
        raise ValueError(
            f"there is no model 'timm:{id}'; did you mean 'timm:{near[0] if near else next(iter(EXAMPLES))}'?"
        )
    with torch.device("meta"):
        made = imported().create_model(id, pretrained=False)
    if not all(hasattr(made, name) for name in ("patch_embed", "blocks", "num_prefix_tokens")):
        raise ValueError(
            f"'timm:{id}' is no Vision Transformer ({type(made).__name__}), which is what has symbols here; "
            "tracer.trace(module, …) records it all the same"
        )
    return made
