"""Whether weights may be downloaded, and why they were not."""

from __future__ import annotations

import os


def offline() -> bool:
    """Whether the user forbids downloads: `HF_HUB_OFFLINE=1`, the flag that the model hub's own client goes by."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def reason(error: BaseException) -> str:
    """The first line of what an error says."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
