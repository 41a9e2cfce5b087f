"""Models of libraries that the pages recommend, the sizes of published ones, and what is on this machine already."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tracer.utils.errors import limits
from tracer.utils.lazy_import import lazy_import
from tracer.zoo import available

huggingface_hub = lazy_import("huggingface_hub")
constants = lazy_import("huggingface_hub.constants")
file_download = lazy_import("huggingface_hub.file_download")
torch = lazy_import("torch")


# Table of published models, read without loading any library: `presets.json`.
#
# A count is given as published: `405,853,388,800` to the number, `175B` to the billion.

UNITS = {"": 1, "M": 10**6, "B": 10**9}


class PublishedModel(NamedTuple):
    """A published model: its title, its number of parameters as published, the source of that number, and its
    configuration.

    `blocks` is the number of first blocks that have all kinds of blocks, of a model that is too deep to be run with all
    of them; None for any other.
    """

    title: str
    parameters: str
    source: str
    config: dict[str, Any]
    blocks: int | None = None

    def agrees(self, count: int) -> bool:
        """Return whether a number of parameters is the published one, to the digits that were published."""
        number, unit = re.fullmatch(r"([\d.,]+)([MB]?)", self.parameters).groups()  # type: ignore[union-attr]
        digits = number.replace(",", "")
        decimals = len(digits.partition(".")[2])
        return round(count / UNITS[unit], decimals) == float(digits) if unit else count == int(digits)


def _read_table(name: str) -> Any:
    return json.loads((files(__package__) / name).read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def published_models() -> dict[str, PublishedModel]:
    """Return all published models by name."""
    return {name: PublishedModel(**entry) for name, entry in _read_table("presets.json").items()}


# Permission and reachability of downloads, and the reason if there is none.

WAIT = 3.0
"""Seconds that the model hub is given to answer; its own client tries for half a minute."""
CACHE_SECONDS = 60
"""Seconds for which its answer is remembered."""


def is_forbidden() -> bool:
    """Return whether the user forbids downloads: `HF_HUB_OFFLINE=1`, the flag of the model hub's own client."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def offline() -> bool:
    """Return whether the model hub can't be used: downloads are forbidden, or it can't be reached now."""
    return cut_off(constants.ENDPOINT)


def cut_off(address: str) -> bool:
    """Return whether the host of any address can't be used, likewise."""
    return is_forbidden() or not _reachable(address, int(time.monotonic() / CACHE_SECONDS))


@lru_cache(maxsize=4)
def _reachable(address: str, now: int) -> bool:
    url = urlsplit(address)
    try:
        port = url.port or (443 if url.scheme == "https" else 80)
        with socket.create_connection((url.hostname, port), timeout=WAIT):
            return True
    except OSError:
        return any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy"))  # then others are asked


def why() -> str:
    """Return why nothing is downloaded, in a few words."""
    return "it is offline (HF_HUB_OFFLINE)" if is_forbidden() else "the model hub can't be reached"


# Recommended models of libraries beside ours: stronger ones that run on a laptop, and the location of their weights.
#
# A page says all of this before any library is imported, from `offers.json`; `tests/zoo/test_offers.py` holds it to
# what the libraries say.

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


OFFERS = tuple(Recommendation(**entry) for entry in _read_table("offers.json"))


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
    return isinstance(huggingface_hub.try_to_load_from_cache(offer.place, offer.file), str)


def folder(offer: Recommendation) -> Path:
    """Return the folder of the weights."""
    if offer.place == PYTORCH:
        return Path(torch.hub.get_dir()) / "checkpoints"
    return Path(constants.HF_HUB_CACHE) / file_download.repo_folder_name(repo_id=offer.place, repo_type="model")


def problem(offer: Recommendation) -> str:
    """Return why the weights can't be downloaded now, in one sentence; empty where they can."""
    if not (cut_off(PYTORCH) if offer.place == PYTORCH else offline()):
        return ""
    forbidden = " (HF_HUB_OFFLINE)" if is_forbidden() else ""
    return (
        f"{offer.title} can’t be downloaded, since this machine has no network{forbidden}: with one, "
        f"python -m tracer fetch {offer.name} gets it beforehand."
    )
