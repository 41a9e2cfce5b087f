"""timm's models: `timm:vit_base_patch16_224`, `timm:resnet50` and all others that `timm.list_models()` lists."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import lru_cache
from types import ModuleType

import torch

from tracer.spec.preparation import photo_input
from tracer.spec.results import class_probabilities, embedding
from tracer.spec.spec import Spec
from tracer.utils.errors import quote, reason, shorten
from tracer.zoo import generic_vision
from tracer.zoo.downloads import Download, on_the_hub
from tracer.zoo.recommendations import offline, why
from tracer.zoo.torchvision_models import import_torchvision as torchvision

# timm's Vision Transformers: plain ones, and those with registers or rotary positions.

PROBES = (
    {"B": 19, "H": 35, "P": 5, "D": 72, "h": 6, "K": 17, "d_ff": 62},
    {"B": 13, "H": 33, "P": 3, "D": 80, "h": 4, "K": 23, "d_ff": 74},
    {"B": 7, "H": 14, "P": 2, "D": 24, "h": 2, "K": 29, "d_ff": 86},
    {"B": 9, "H": 42, "P": 7, "D": 100, "h": 5, "K": 31, "d_ff": 98},
)


def is_one(net: torch.nn.Module) -> bool:
    """Return whether a model is a Vision Transformer whose sizes can be changed: square photos and patches, equal
    blocks."""
    if not all(hasattr(net, name) for name in ("patch_embed", "blocks", "num_prefix_tokens", "embed_dim")):
        return False
    patches, block = net.patch_embed, net.blocks[0] if len(net.blocks) else None
    sides = (getattr(patches, "img_size", None), getattr(patches, "patch_size", None))
    return (
        all(isinstance(side, tuple) and len(side) == 2 and side[0] == side[1] for side in sides)
        and hasattr(getattr(patches, "proj", None), "in_channels")
        and hasattr(getattr(block, "attn", None), "num_heads")
        and hasattr(getattr(getattr(block, "mlp", None), "fc2", None), "in_features")
    )


def spec_of_vit(net: torch.nn.Module, create: Callable[..., torch.nn.Module]) -> Spec:
    """Return the `Spec` of a Vision Transformer, measured on the model itself; `create` builds it with other
    settings."""
    prefix, block = net.num_prefix_tokens, net.blocks[0]
    registers = getattr(net, "num_reg_tokens", 0)
    classes = {"K": net.num_classes} if net.num_classes else {}  # without a head it gives features
    derived = {"W": "H", "C": str(net.patch_embed.proj.in_channels), "N": "H**2/P**2", "d_k": "D/h"}
    S = "S" if prefix > 1 else "N+1" if prefix else "N"
    if prefix > 1:
        derived["S"] = f"N + {prefix}"
    names = ["B", "D", "N", S, "P", "H", "H/P", "h", "d_k", "d_k/2", "d_ff", "2*d_ff", *classes]
    probes = tuple({name: size for name, size in probe.items() if name != "K" or classes} for probe in PROBES)

    return Spec(
        net=lambda **sizes: _build(create, **sizes),
        whole=False,
        takes=("image",),
        samples="photos",
        sizes={
            "H": net.patch_embed.img_size[0],
            "P": net.patch_embed.patch_size[0],
            "D": net.embed_dim,
            "h": block.attn.num_heads,
            "L": len(net.blocks),
            **classes,
            "d_ff": _mlp_width(net),
        },
        derived=derived,
        names=tuple(dict.fromkeys(names)),
        probes=probes,
        example=lambda sizes: (torch.randn(sizes["B"], net.patch_embed.proj.in_channels, sizes["H"], sizes["H"]),),
        prepare=photo_input,
        result=class_probabilities if classes else embedding,
        segments=lambda sizes: generic_vision.leading_segments(prefix, registers, sizes["N"]),
        tiny={**probes[0], "L": 2},
    )


def _build(create: Callable, *, H: int, P: int, D: int, h: int, L: int, d_ff: int, K: int = 0) -> torch.nn.Module:
    sizes = {"img_size": H, "patch_size": P, "embed_dim": D, "num_heads": h, "depth": L, "num_classes": K}
    for halves in (1, 2):  # of a gated MLP (SwiGLU, Shazeer 2020) some models count both halves
        ratio = (halves * d_ff + 0.5) / D  # which is rounded down
        net = create(**sizes, mlp_ratio=ratio)
        if _mlp_width(net) == d_ff:
            break
    return net


def _mlp_width(net: torch.nn.Module) -> int:
    """Return the hidden width of the MLPs."""
    return net.blocks[0].mlp.fc2.in_features


PREFIX = "timm"
PACKAGE = "timm"
FILE = "model.safetensors"
EXAMPLES = {
    "vit_tiny_patch16_224": "ViT-Ti/16 of timm, a plain Vision Transformer.",
    "vit_base_patch16_reg4_gap_256": "ViT-B/16 of timm with four register tokens and no CLS (Darcet et al. 2024).",
    "vit_base_patch16_rope_224": "ViT-B/16 of timm with rotary positions (Heo et al. 2024).",
}


@lru_cache(maxsize=1)
def import_timm() -> ModuleType:
    """Import `timm`; it imports torchvision, for which fallbacks are installed."""
    torchvision()
    import timm  # may not be installed

    return timm


@lru_cache(maxsize=16)
def spec(id: str) -> Spec:
    """Return the `Spec` of one of timm's models, measured on the model itself. Raise ValueError for an unknown one."""
    net = _on_meta(id)
    if is_one(net) and (vit_spec := spec_of_vit(net, lambda **sizes: _create(id, **sizes))) and _fits(vit_spec):
        return vit_spec
    channels, height, width = _size(id)
    shaped = _takes_size(id)

    def build(H: int, W: int, K: int | None = None) -> torch.nn.Module:
        return _create(id, **({"num_classes": K} if K else {}), **({"img_size": (H, W)} if shaped else {}))

    return generic_vision.spec(
        build, side=(height, width), channels=channels, classes=net.num_classes or None, shaped=shaped
    )


def load_pretrained(id: str, spec: Spec, sizes: dict) -> tuple[torch.nn.Module | None, dict | None, str]:
    """Return the net with timm's weights (safetensors), its `Spec`, and their source; None for the net if they are
    neither on this machine nor can be downloaded."""
    known = import_timm().get_pretrained_cfg(id)
    if known is None or not known.hf_hub_id:
        return None, None, f"seeded random weights: timm publishes none for {id}"
    import huggingface_hub  # may not be installed

    try:
        file = huggingface_hub.hf_hub_download(known.hf_hub_id, FILE, local_files_only=offline())
    except (OSError, ValueError) as error:
        why_not = why() if offline() else reason(error)
        return None, None, f"seeded random weights, since those of {id} are not on this machine, and {why_not}"
    net = import_timm().create_model(id, pretrained=True, pretrained_cfg_overlay={"file": file})
    card = {
        "sizes": dict(spec.sizes),
        **({"classes": names} if (names := classes(known)) else {}),
        "mean": known.mean,
        "std": known.std,
        "crop": known.crop_pct,
        "data": known.hf_hub_id,
    }
    return net.eval(), card, f"timm's weights {known.hf_hub_id}"


def classes(known) -> list[str]:
    """Return the names of the classes of pretrained weights, from timm's table for ImageNet's 1,000: the first word of
    each in WordNet, and its definition if two classes share that; [] for others."""
    from timm.data import ImageNetInfo, infer_imagenet_subset  # may not be installed

    subset = infer_imagenet_subset(known.to_dict())
    if subset != "imagenet-1k":
        return []
    descriptions = ImageNetInfo(subset).label_descriptions(detailed=True)
    first = [words.split(",")[0].split(":")[0] for words in descriptions]
    return [
        name if first.count(name) == 1 else shorten(words, 60) for name, words in zip(first, descriptions, strict=True)
    ]


def here(id: str) -> bool:
    """Return whether timm's weights are on this machine, without network."""
    from huggingface_hub import try_to_load_from_cache  # may not be installed

    known = import_timm().get_pretrained_cfg(id)
    return bool(known and known.hf_hub_id) and isinstance(try_to_load_from_cache(known.hf_hub_id, FILE), str)


def fetch(id: str) -> None:
    """Download timm's weights. Raise ValueError if that fails."""
    import huggingface_hub  # may not be installed

    try:
        huggingface_hub.hf_hub_download(import_timm().get_pretrained_cfg(id).hf_hub_id, FILE)
    except (OSError, ValueError) as error:
        raise ValueError(f"the weights of {quote(f'timm:{id}')} could not be downloaded: {reason(error)}") from None


def download(id: str) -> Download:
    """Return the download size of the weights, as the hub reports it for timm's file."""
    known = import_timm().get_pretrained_cfg(id)
    if known is None or not known.hf_hub_id:
        return Download(0, "timm publishes no weights for it, so they are seeded random ones")
    if here(id):
        return Download(0, "its weights are on this machine")
    if offline():
        return Download(0, f"{why()}, so its weights are seeded random ones")
    return on_the_hub(known.hf_hub_id)


def names() -> list[str]:
    """Return all models that timm lists."""
    return import_timm().list_models()


def _create(id: str, **settings) -> torch.nn.Module:
    return import_timm().create_model(id, pretrained=False, **settings)


def _size(id: str) -> tuple[int, int, int]:
    """Return channels, height and width of the photos that a model was built for."""
    known = import_timm().get_pretrained_cfg(id)
    return tuple(known.input_size) if known else (3, 224, 224)


@lru_cache(maxsize=64)
def _takes_size(id: str) -> bool:
    """Return whether a net is built for photos of one size, and can be built for another."""
    return _builds(lambda: _create(id, img_size=_size(id)[1:]))


def _fits(spec: Spec) -> bool:
    """Return whether a Vision Transformer can be built at the sizes of its first probe."""
    return _builds(lambda: spec.net(**{symbol: size for symbol, size in spec.tiny.items() if symbol not in spec.runs}))


def _builds(build: Callable[[], torch.nn.Module]) -> bool:
    """Return whether a net can be built, on `meta`, where it takes no memory."""
    with torch.device("meta"):
        try:
            build()
        except Exception:  # whatever a net makes of a setting or a size that it was not written for
            return False
    return True


@lru_cache(maxsize=16)
def _on_meta(id: str) -> torch.nn.Module:
    """Build the model itself on `meta`, where it takes no memory."""
    if not import_timm().is_model(id):
        near = get_close_matches(id, names(), n=1, cutoff=0.4) or list(EXAMPLES)
        raise ValueError(f"there is no model {quote(f'timm:{id}')}; did you mean {quote(f'timm:{near[0]}')}?")
    with torch.device("meta"):
        net = import_timm().create_model(id, pretrained=False)
    return net
