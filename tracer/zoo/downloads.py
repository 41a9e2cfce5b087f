"""Downloads of libraries' weights before they are needed, in a process of its own, so that it can be ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tracer.utils.error_text import quote, shorten
from tracer.utils.progress import doing, tell
from tracer.zoo import source_of
from tracer.zoo.download_cost import Download, bytes_on_disk

POLL_SECONDS = 0.2
"""Seconds between two looks at how much has landed."""
ROOT = Path(__file__).resolve().parents[2]


def fetch(name: str) -> str:
    """Download the weights of a library's model and the files beside them, if they are not here. Return a report in
    a few words. Raise ValueError if the download fails."""
    source, id = source_of(name)
    download = source.download(id)
    if download.size == 0:
        if not source.here(id):
            raise ValueError(f"the weights of {quote(name)} can't be downloaded: {download.note}")
        return download.note
    source.fetch(id)
    return "downloaded"


def fetch_in_subprocess(name: str, download: Download) -> None:
    """Download in another process, which ends with this work, and report the bytes so far. Raise ValueError with the
    message of that process."""
    before = bytes_on_disk(download.folder, whole=True)
    quiet = {**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tracer", "fetch", name]
    child = subprocess.Popen(command, env=quiet, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        with doing(f"Downloading {name}"):
            while True:
                tell(max(0, bytes_on_disk(download.folder) - before), download.size or 0, "B")
                try:
                    message = child.communicate(timeout=POLL_SECONDS)[1]
                    break
                except subprocess.TimeoutExpired:
                    continue
    finally:
        if child.poll() is None:
            child.terminate()  # it takes what it has begun away itself
            child.communicate()
    if child.returncode:
        last = (message.strip().splitlines() or ["it ended without a message"])[-1].removeprefix("tracer: ")
        raise ValueError(shorten(last, 400))
