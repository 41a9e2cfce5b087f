"""timm's models: `timm:vit_base_patch16_224`, `timm:resnet50` and all others that `timm.list_models()` lists."""

from __future__ import annotations

from difflib import get_close_matches
from functools import lru_cache
from types import ModuleType

import torch

from tracer.models.shared.spec import Spec
from tracer.utils.error_text import quote, reason, shorten
from tracer.zoo.download_cost import Download, on_the_hub
from tracer.zoo.offline import offline, why
from tracer.zoo.vision import generic_vision, timm_vit
from tracer.zoo.vision.torchvision_ops_fallback import import_torchvision as torchvision

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
    if (
        timm_vit.is_one(net)
        and (vit_spec := timm_vit.spec(net, lambda **sizes: _create(id, **sizes)))
        and _fits(vit_spec)
    ):
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
    with torch.device("meta"):
        try:
            _create(id, img_size=_size(id)[1:])
        except Exception:  # whatever a net makes of a setting that it does not know
            return False
    return True


def _fits(spec: Spec) -> bool:
    """Return whether a Vision Transformer can be built at the sizes of its first probe."""
    sizes = {symbol: size for symbol, size in spec.tiny.items() if symbol not in spec.runs}
    try:
        with torch.device("meta"):
            spec.net(**sizes)
    except Exception:  # whatever a relative makes of a size that it was not written for
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
