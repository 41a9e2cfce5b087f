"""torchvision's models: `torchvision:resnet50` and all others that `torchvision.models.list_models()` lists."""

from __future__ import annotations

import inspect
import sys
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tracer.record import Segment
from tracer.spec.preparation import photo_input
from tracer.spec.results import class_probabilities
from tracer.spec.spec import Spec
from tracer.textbook.names import Hint
from tracer.utils.errors import quote, reason
from tracer.zoo import generic_vision
from tracer.zoo.downloads import Download
from tracer.zoo.recommendations import is_forbidden

# Ops of torchvision in plain PyTorch, for machines on which its compiled ones do not load.

ONCE = 64
"""Regions that are cut out at once: all of them would take gigabytes."""


def import_torchvision() -> ModuleType:
    """Import `torchvision`, with fallbacks for its compiled ops. Raise ImportError if it is not installed. timm
    imports it too.

    Its compiled ops do not load on a build of PyTorch without the device they were compiled for, and importing it
    then fails. The ops that its models need are defined in plain PyTorch then.
    """
    try:
        import torchvision  # may not be installed
    except RuntimeError:  # operator torchvision::nms does not exist
        for name, (schema, run) in OPS.items():  # those that torchvision's own import and its detectors run
            torch.library.define(f"torchvision::{name}", schema)
            if run is not None:
                torch.library.impl(f"torchvision::{name}", "CompositeExplicitAutograd", run)
        import torchvision  # may not be installed

        torchvision.extension._has_ops = lambda: True
        hidden = vars(sys.modules["torchvision.ops.roi_align"])  # by the function's name
        hidden["_has_ops"] = torchvision.extension._has_ops
    return torchvision


def nms(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Return the indices, int64 `[m]`, of the boxes `[n, 4]` (left, top, right, bottom) that are kept, the best
    first: a box is dropped if its intersection over union with a better kept one is above `iou_threshold`."""
    order = scores.argsort(descending=True, stable=True)
    boxes, areas = dets[order], ((dets[:, 2] - dets[:, 0]) * (dets[:, 3] - dets[:, 1]))[order]
    open_, survivors = torch.ones(len(order), dtype=torch.bool, device=dets.device), []
    for number in range(len(order)):
        if not open_[number]:
            continue
        survivors.append(number)
        corner, rest = boxes[number], boxes[number + 1 :]
        low, high = torch.maximum(rest[:, :2], corner[:2]), torch.minimum(rest[:, 2:], corner[2:])
        shared = (high - low).clamp(min=0).prod(dim=1)
        open_[number + 1 :] &= ~(shared / (areas[number] + areas[number + 1 :] - shared) > iou_threshold)
    return order[survivors]


def roi_align(
    input: torch.Tensor,
    rois: torch.Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> torch.Tensor:
    """Return regions `[n, 5]` (index in the batch, left, top, right, bottom) of maps `[B, C, H, W]`, each as `[C,
    pooled_height, pooled_width]`: torchvision's own definition in plain PyTorch, not compiled (He et al. 2017)."""
    from torchvision.ops.roi_align import _roi_align  # torchvision is imported by now

    plain = _roi_align.__wrapped__
    size = (spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned)
    parts = [plain(input, some, *size) for some in rois.split(ONCE)]
    return torch.cat(parts) if parts else input.new_zeros(0, input.shape[1], pooled_height, pooled_width)


BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
OPS = {
    "nms": (BOXES, nms),
    "qnms": (BOXES, None),
    "roi_align": (
        "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
        "int sampling_ratio, bool aligned) -> Tensor",
        roi_align,
    ),
}


# torchvision's Vision Transformers (Dosovitskiy et al. 2021).

SIZES = {
    "vit_b_16": {"H": 224, "P": 16, "D": 768, "h": 12, "d_ff": 3072, "L": 12},
    "vit_b_32": {"H": 224, "P": 32, "D": 768, "h": 12, "d_ff": 3072, "L": 12},
    "vit_l_16": {"H": 224, "P": 16, "D": 1024, "h": 16, "d_ff": 4096, "L": 24},
    "vit_l_32": {"H": 224, "P": 32, "D": 1024, "h": 16, "d_ff": 4096, "L": 24},
    "vit_h_14": {"H": 224, "P": 14, "D": 1280, "h": 16, "d_ff": 5120, "L": 32},
}


def build_net(*, H: int, P: int, D: int, h: int, d_ff: int, L: int, K: int) -> torch.nn.Module:
    """Build torchvision's own `VisionTransformer` at these sizes; it takes `[B, 3, H, H]` and returns logits `[B,
    K]`."""
    return import_torchvision().models.vision_transformer.VisionTransformer(
        image_size=H, patch_size=P, num_layers=L, num_heads=h, hidden_dim=D, mlp_dim=d_ff, num_classes=K
    )


PROBES = (
    {"B": 19, "H": 35, "P": 5, "D": 66, "h": 6, "d_ff": 13, "K": 17},
    {"B": 13, "H": 33, "P": 3, "D": 14, "h": 2, "d_ff": 29, "K": 23},
    {"B": 8, "H": 42, "P": 7, "D": 55, "h": 5, "d_ff": 41, "K": 29},
)


NOTES = {
    "position": "Note 003 does not list that positions are added. It calls the batch N, which is the number of patches "
    "here.",
    "*.norm1": "Note 003 opens this into nine steps; PyTorch's own decomposition has seven, with one var_mean in the "
    "place of two means and a square.",
    "*.norm2": "Note 003 counts three norms per block; there are two, and one after the last block.",
    "*.attention.packed": "Note 003 has the batch in front here; opened, torchvision's attention has the sequence in "
    "front, with a transpose on the way in and one on the way out.",
    "*.attention.query": "Note 003 views this without a transpose before it, which would mix images; one runs.",
    "*.attention.context": "Note 003's standard path does not run by itself, since torchvision never asks for the "
    "weights; on this one heads are merged by permute and view, and its contiguous does not run.",
    "*.attention.residual": "Note 003 lists a dropout before this sum; in evaluation it leaves no operation.",
    "*.mlp.activation": "Note 003 opens GELU by tanh; this is the exact one, by erf, and none of those steps run.",
    "*.mlp.output": "Note 003 lists a dropout before this product and one after it; in evaluation they leave no "
    "operation.",
    "*.mlp.residual": "Note 003 counts five matrix products in a block, about 20 binary and ten unary operations and "
    "four means; opened there are six, 29, four and two.",
}
"""Differences between note 003 and the run, by the end of the step's id."""


def vit_spec(id: str) -> Spec:
    """Return the `Spec` of one of the Vision Transformers."""
    return Spec(
        net=build_net,
        takes=("image",),
        samples="photos",
        sizes={**SIZES[id], "K": 1000},
        derived={"W": "H", "C": "3", "N": "H**2/P**2", "d_k": "D/h"},
        names=tuple("B D N N+1 K P H H/P h d_k d_ff".split()),
        probes=PROBES,
        hints=tuple(Hint(step, note=note) for step, note in NOTES.items()),
        example=lambda sizes: (torch.randn(sizes["B"], 3, sizes["H"], sizes["H"]),),
        prepare=photo_input,
        result=class_probabilities,
        segments=lambda sizes: (Segment("CLS", 0, 1), Segment("image", 1, sizes["N"] + 1)),
        tiny={**PROBES[0], "L": 2},
    )


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
    if id in SIZES:
        return vit_spec(id)
    if family == "detection":
        return generic_vision.detection_spec(lambda: _build(id))
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
    weights, file = _weights(id)
    if weights is None:
        return None, None, f"seeded random weights: torchvision publishes none for {id}"
    if is_forbidden() and not file.is_file():
        return None, None, f"seeded random weights, since {file.name} is not on this machine and it is offline"
    try:
        tensors = torch.hub.load_state_dict_from_url(weights.url, str(file.parent), check_hash=True, weights_only=True)
    except (OSError, RuntimeError) as error:
        return None, None, f"seeded random weights, since {file.name} could not be downloaded ({reason(error)})"
    if id in SIZES:
        net = build_net(**{symbol: sizes[symbol] for symbol in spec.sizes})
        net.load_state_dict(tensors)
    else:  # the file was just seen to hold tensors alone: torchvision's builder sets what belongs to them
        net = _build(id, weights)
        net = generic_vision.disable_resizing(net, **sizes) if _family(id) == "detection" else net
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
    weights, file = _weights(id)
    return weights is not None and file.is_file()


def fetch(id: str) -> None:
    """Download torchvision's weights, checked by the hash in their file's name. Raise ValueError if that fails."""
    weights, file = _weights(id)
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        torch.hub.download_url_to_file(weights.url, str(file), file.stem.rpartition("-")[2])
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{file.name} could not be downloaded ({reason(error)})") from None


def download(id: str) -> Download:
    """Return the download size of the weights, as torchvision reports it."""
    weights, file = _weights(id)
    if weights is None:
        return Download(0, "torchvision publishes no weights for it, so they are seeded random ones")
    if here(id):
        return Download(0, "its weights are on this machine")
    if is_forbidden():
        return Download(0, "it is offline, so its weights are seeded random ones")
    return Download(round(weights.meta["_file_size"] * 2**20), folder=str(file.parent))


def names() -> list[str]:
    """Return all models that torchvision lists."""
    return import_torchvision().models.list_models()


def _weights(id: str) -> tuple[Any, Path]:
    """Return torchvision's weights for photos of the model's size, if there are any, and the file in which PyTorch
    keeps them. Those of quantized models belong to other nets: theirs are `unquantized`."""
    known = [weights.meta.get("unquantized", weights) for weights in import_torchvision().models.get_model_weights(id)]
    side = SIZES.get(id, {}).get("H")
    fits = [weights for weights in known if side in (None, *_crop(weights))]
    weights = fits[-1 if side is None else 0] if fits else None
    return weights, Path(torch.hub.get_dir()) / "checkpoints" / (weights.url.rpartition("/")[2] if weights else "")


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
