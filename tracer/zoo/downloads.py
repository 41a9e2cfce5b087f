"""Downloads of libraries' weights before they are needed, in a process of its own, so that it can be ended."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import NamedTuple

from tracer.spec.checkpoints import check_memory, shapes
from tracer.utils.child_processes import environment, module_command
from tracer.utils.errors import quote, shorten
from tracer.utils.job_queue import doing, tell
from tracer.zoo import source_of, summary

# Cost of loading a library's model, known before anything large is downloaded or built.


class Download(NamedTuple):
    """Bytes of weights that loading downloads, None where no host could be asked; `note` states why there are none, and
    `folder` is their destination."""

    size: int | None
    note: str = ""
    folder: str = ""


class Cost(NamedTuple):
    """Cost of a model: its parameters, their bytes as float32, and its download."""

    name: str
    summary: str
    parameters: int
    memory: int
    download: Download


def cost(name: str) -> Cost:
    """Return the cost of loading the model of that name; only the small files of its description are read.

    The net is built on `meta`, where it takes no memory. ValueError in one sentence for an unknown model, and for one
    that is larger or deeper than is allowed (see `check_memory`).
    """
    source, id = source_of(name)
    spec = source.spec(id)
    check_memory(spec, name, spec.defaults)
    parameters = sum(map(prod, shapes(spec, spec.defaults).values()))
    download = source.download(id) if hasattr(source, "download") else Download(None)
    return Cost(name, summary(name), parameters, parameters * 4, download)


PART = (".incomplete", ".partial")
"""Suffixes of files that are still being written."""


def bytes_on_disk(folder: str, whole: bool = False) -> int:
    """Return the bytes of the files in a folder, including partial ones, or with `whole` without them."""
    total = 0
    for file in Path(folder).rglob("*") if folder else ():
        if whole and file.name.endswith(PART):
            continue
        with suppress(OSError):  # a file that was there a moment ago
            total += file.lstat().st_size if not file.is_dir() else 0
    return total


def on_the_hub(id: str) -> Download:
    """Return the size of the weights of a repository, as the hub reports it; unknown if it does not answer."""
    from huggingface_hub import HfApi  # may not be installed
    from huggingface_hub.constants import HF_HUB_CACHE  # may not be installed
    from huggingface_hub.file_download import repo_folder_name  # may not be installed

    try:
        files = HfApi().model_info(id, files_metadata=True, timeout=10).siblings or ()
    except Exception:  # whatever the network or the hub make of the question
        return Download(None)
    sizes = [file.size for file in files if file.rfilename.endswith(".safetensors") and "/" not in file.rfilename]
    folder = Path(HF_HUB_CACHE) / repo_folder_name(repo_id=id, repo_type="model")
    return Download(None if None in sizes else sum(sizes), folder=str(folder))


POLL_SECONDS = 0.2
"""Seconds between two looks at how much has landed."""


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
    quiet, command = environment(HF_HUB_DISABLE_PROGRESS_BARS="1"), module_command("tracer", "fetch", name)
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
