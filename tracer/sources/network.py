"""Whether weights may and can be downloaded, and why they were not."""

from __future__ import annotations

import os
import socket
import time
from functools import lru_cache
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from tracer.common.quoting import shortened

WAIT = 3.0
"""Seconds that the model hub is given to answer; its own client tries for half a minute."""
REMEMBERED = 60
"""Seconds for which its answer is remembered."""


def forbidden() -> bool:
    """Whether the user forbids downloads: `HF_HUB_OFFLINE=1`, the flag that the model hub's own client goes by."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def offline() -> bool:
    """Whether the model hub is not to be asked: downloads are forbidden, or it can't be reached now."""
    return forbidden() or not _reachable(int(time.monotonic() / REMEMBERED))


@lru_cache(maxsize=2)
def _reachable(now: int) -> bool:
    from huggingface_hub.constants import ENDPOINT

    address = urlsplit(ENDPOINT)
    try:
        port = address.port or (443 if address.scheme == "https" else 80)
        with socket.create_connection((address.hostname, port), timeout=WAIT):
            return True
    except OSError:
        return any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy"))  # then others are asked


def why() -> str:
    """Why nothing is downloaded, in a few words."""
    return "it is offline (HF_HUB_OFFLINE)" if forbidden() else "the model hub can't be reached"


def reason(error: BaseException) -> str:
    """The first line of what an error says, and all of it where that line only begins something; of a host that could
    not be reached, that it could not."""
    if isinstance(error, URLError) and not isinstance(error, HTTPError):
        return f"no connection to the network: {error.reason}"
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return shortened(" ".join(str(error).split()) if first.endswith((":", "(")) else first, 200)
