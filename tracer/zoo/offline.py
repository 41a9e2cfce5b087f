"""Permission and reachability of downloads, and the reason if there is none."""

from __future__ import annotations

import os
import socket
import time
from functools import lru_cache
from urllib.parse import urlsplit

WAIT = 3.0
"""Seconds that the model hub is given to answer; its own client tries for half a minute."""
CACHE_SECONDS = 60
"""Seconds for which its answer is remembered."""


def forbidden() -> bool:
    """Return whether the user forbids downloads: `HF_HUB_OFFLINE=1`, the flag of the model hub's own client."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def offline() -> bool:
    """Return whether the model hub can't be used: downloads are forbidden, or it can't be reached now."""
    from huggingface_hub.constants import ENDPOINT  # may not be installed

    return cut_off(ENDPOINT)


def cut_off(address: str) -> bool:
    """Return whether the host of any address can't be used, likewise."""
    return forbidden() or not _reachable(address, int(time.monotonic() / CACHE_SECONDS))


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
    return "it is offline (HF_HUB_OFFLINE)" if forbidden() else "the model hub can't be reached"
