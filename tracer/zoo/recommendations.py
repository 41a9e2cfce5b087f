"""Recommended models of libraries beside ours: stronger ones that run on a laptop, and the location of their weights.

A page says all of this before any library is imported; `tests/zoo/test_offers.py` holds it to what the libraries say.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tracer.utils.limits import limits
from tracer.zoo import available, offline

PYTORCH = "https://download.pytorch.org"


class Recommendation(NamedTuple):
    """A model's name here, its common name, its purpose, the licence and the bytes of its weights; `place` is the host
    of those, a repository of the model hub or PyTorch's own, in `file`."""

    name: str
    title: str
    what: str
    licence: str
    size: int
    place: str
    file: str


OFFERS = (
    Recommendation(
        "timm:deit_tiny_patch16_224",
        "DeiT-tiny",
        "recognises 1,000 classes of things",
        "Apache 2.0",
        22_869_664,
        "timm/deit_tiny_patch16_224.fb_in1k",
        "model.safetensors",
    ),
    Recommendation(
        "hf:facebook/dinov2-small",
        "DINOv2-small",
        "trained without labels; its attention maps follow objects",
        "Apache 2.0",
        88_226_304,
        "facebook/dinov2-small",
        "model.safetensors",
    ),
    Recommendation(
        "torchvision:vit_b_16",
        "ViT-B/16",
        "the ViT of the textbooks, 1,000 classes",
        "BSD 3-Clause",
        346_330_000,
        PYTORCH,
        "vit_b_16-c867db91.pth",
    ),
)


def offers() -> tuple[Recommendation, ...]:
    """Return the offers whose library is installed, on a server that lets visitors choose any model; a hosted one
    has none."""
    if limits().more is not None:
        return ()
    return tuple(offer for offer in OFFERS if available(offer.name.partition(":")[0]))


def is_downloaded(offer: Recommendation) -> bool:
    """Return whether the weights are on this machine, without network, and importing nothing but the hub's client."""
    if offer.place == PYTORCH:
        return (folder(offer) / offer.file).is_file()
    from huggingface_hub import try_to_load_from_cache  # may not be installed

    return isinstance(try_to_load_from_cache(offer.place, offer.file), str)


def folder(offer: Recommendation) -> Path:
    """Return the folder of the weights."""
    if offer.place == PYTORCH:
        import torch  # the page is drawn before it is there

        return Path(torch.hub.get_dir()) / "checkpoints"
    from huggingface_hub.constants import HF_HUB_CACHE  # may not be installed
    from huggingface_hub.file_download import repo_folder_name  # may not be installed

    return Path(HF_HUB_CACHE) / repo_folder_name(repo_id=offer.place, repo_type="model")


def problem(offer: Recommendation) -> str:
    """Return why the weights can't be downloaded now, in one sentence; empty where they can."""
    if not (offline.cut_off(PYTORCH) if offer.place == PYTORCH else offline.offline()):
        return ""
    forbidden = " (HF_HUB_OFFLINE)" if offline.forbidden() else ""
    return (
        f"{offer.title} can’t be downloaded, since this machine has no network{forbidden}: with one, "
        f"python -m tracer fetch {offer.name} gets it beforehand."
    )
