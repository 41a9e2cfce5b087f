"""torchvision's models: `torchvision:resnet50` and all others that `torchvision.models.list_models()` lists."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

import torch

from tracer.models.shared.spec import Spec
from tracer.utils.error_text import quote, reason
from tracer.zoo.download_cost import Download
from tracer.zoo.offline import forbidden
from tracer.zoo.vision import detection, generic_vision, torchvision_vit
from tracer.zoo.vision.torchvision_ops_fallback import import_torchvision

PREFIX = "torchvision"
PACKAGE = "torchvision"
EXAMPLES = {
    "vit_b_16": "ViT-B/16 of torchvision, 1,000 classes of ImageNet (Dosovitskiy et al. 2021).",
    "vit_b_32": "ViT-B/32 of torchvision, 1,000 classes of ImageNet.",
    "vit_l_16": "ViT-L/16 of torchvision, 1,000 classes of ImageNet.",
    "vit_l_32": "ViT-L/32 of torchvision, 1,000 classes of ImageNet.",
    "vit_h_14": "ViT-H/14 of torchvision, 1,000 classes of ImageNet.",
}
FRAMES = 16
"""Frames of a video, as torchvision's models were trained on."""
SIDE = 224
"""Side of a photo where torchvision names none."""
SLOW_MODELS = ("googlenet", "inception_v3")
"""Nets that draw their weights for half a minute if they are not told to draw them as others do."""
FLOW = (128, 192)
"""Height and width of the two photos between which motion is looked for."""


@lru_cache(maxsize=1)
@lru_cache(maxsize=16)
def spec(id: str) -> Spec:
    """Return the `Spec` of one of torchvision's models. Raise ValueError for an unknown one."""
    family = _family(id)
    if id in torchvision_vit.SIZES:
        return torchvision_vit.spec(id)
    if family == "detection":
        return detection.spec(lambda: _build(id))
    if family == "optical_flow":
        return generic_vision.spec(lambda **sizes: _build(id), side=FLOW, pair=True)
    return generic_vision.spec(
        lambda K, **sizes: _build(id, num_classes=K),
        side=(_side(id),) * 2,
        classes={"segmentation": 21, "video": 400}.get(family, 1000),
        frames=FRAMES if family == "video" else None,
    )


def _build(id: str, weights=None, **options) -> torch.nn.Module:
    """Build one of torchvision's models; without `weights` nothing is downloaded."""
    builder = import_torchvision().models.get_model_builder(id)
    if "weights_backbone" in inspect.signature(builder).parameters:
        options["weights_backbone"] = None
    if id.endswith(SLOW_MODELS) and weights is None:
        options["init_weights"] = False
    return builder(weights=weights, **options)


def load_pretrained(id: str, spec: Spec, sizes: dict) -> tuple[torch.nn.Module | None, dict | None, str]:
    """Return the net with torchvision's own weights, their card, and their source; None for the net if they are
    neither in PyTorch's cache nor can be downloaded.

    The file is a checkpoint of tensors alone, whose hash its name tells; it is read with `weights_only=True`.
    """
    weights, folder = _weights(id)
    if weights is None:
        return None, None, f"seeded random weights: torchvision publishes none for {id}"
    name = weights.url.rpartition("/")[2]
    if forbidden() and not (folder / name).is_file():
        return None, None, f"seeded random weights, since {name} is not on this machine and it is offline"
    try:
        tensors = torch.hub.load_state_dict_from_url(weights.url, str(folder), check_hash=True, weights_only=True)
    except (OSError, RuntimeError) as error:
        return None, None, f"seeded random weights, since {name} could not be downloaded ({reason(error)})"
    if id in torchvision_vit.SIZES:
        net = torchvision_vit.net(**{symbol: sizes[symbol] for symbol in spec.sizes})
        net.load_state_dict(tensors)
    else:  # the file was just seen to hold tensors alone: torchvision's builder sets what belongs to them
        net = _build(id, weights)
        net = detection.disable_resizing(net, **sizes) if _family(id) == "detection" else net
    transform, data = weights.transforms(), weights.meta.get("_metrics", {"its own data": None})
    crop, resize = (getattr(transform, f"{what}_size", None) for what in ("crop", "resize"))
    card = {
        "sizes": dict(spec.sizes),
        **({"classes": weights.meta["categories"]} if "categories" in weights.meta else {}),
        "mean": getattr(transform, "mean", (0.0, 0.0, 0.0)),  # a detector normalises by itself
        "std": getattr(transform, "std", (1.0, 1.0, 1.0)),
        **({"crop": min(1.0, crop[0] / resize[0])} if crop and resize else {}),
        "data": " and ".join(data).replace("ImageNet-1K", "ImageNet-1k"),
    }
    return net.eval(), card, f"torchvision's weights {weights.name}, trained on {card['data']}"


def here(id: str) -> bool:
    """Return whether torchvision's weights are on this machine, in PyTorch's cache."""
    weights, folder = _weights(id)
    return weights is not None and (folder / weights.url.rpartition("/")[2]).is_file()


def fetch(id: str) -> None:
    """Download torchvision's weights, checked by the hash in their file's name. Raise ValueError if that fails."""
    weights, folder = _weights(id)
    name = weights.url.rpartition("/")[2]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        torch.hub.download_url_to_file(weights.url, str(folder / name), name.rpartition("-")[2].partition(".")[0])
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{name} could not be downloaded ({reason(error)})") from None


def download(id: str) -> Download:
    """Return the download size of the weights, as torchvision reports it."""
    weights, folder = _weights(id)
    if weights is None:
        return Download(0, "torchvision publishes no weights for it, so they are seeded random ones")
    if here(id):
        return Download(0, "its weights are on this machine")
    if forbidden():
        return Download(0, "it is offline, so its weights are seeded random ones")
    return Download(round(weights.meta["_file_size"] * 2**20), folder=str(folder))


def names() -> list[str]:
    """Return all models that torchvision lists."""
    return import_torchvision().models.list_models()


def _weights(id: str):
    """Return torchvision's weights for photos of the model's size, if there are any, and the folder where PyTorch keeps
    their file. Those of quantized models belong to other nets: theirs are `unquantized`."""
    known = [weights.meta.get("unquantized", weights) for weights in import_torchvision().models.get_model_weights(id)]
    side = torchvision_vit.SIZES.get(id, {}).get("H")
    fits = [weights for weights in known if side in (None, *_crop(weights))]
    return fits[-1 if side is None else 0] if fits else None, Path(torch.hub.get_dir()) / "checkpoints"


def _crop(weights) -> tuple[int, ...]:
    """Return height and width to which the photos of some weights are cropped; () where they are not."""
    return tuple(getattr(weights.transforms(), "crop_size", None) or ())


def _side(id: str) -> int:
    """Return the side of a model's photos in pixels."""
    weights, _ = _weights(id)
    return (_crop(weights) or (SIDE,))[0] if weights else SIDE


def _family(id: str) -> str:
    """Return the folder of torchvision that a model belongs to, "" for a classifier. Raise ValueError for an unknown
    model."""
    if id not in names():
        near = get_close_matches(id, names(), n=1, cutoff=0.4)
        hint = f"did you mean {quote(f'torchvision:{near[0]}')}?" if near else f"expected one of {', '.join(names())}"
        raise ValueError(f"there is no model {quote(f'torchvision:{id}')}; {hint}")
    folder = (
        import_torchvision().models.get_model_builder(id).__module__.removeprefix("torchvision.models.").split(".")[0]
    )
    return folder if folder in ("detection", "optical_flow", "segmentation", "video") else ""
