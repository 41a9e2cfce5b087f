"""Environments of faults: a copy of the app, a server of it, a full disk, a read-only folder."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.serving import ROOT, App

PARTS = ("app.py", "pages", "tracer", ".streamlit")
OFFLINE = {"HF_HUB_OFFLINE": "1"}
TRACEBACK = "Traceback"


def python(*words, root: Path = ROOT, file_size: int | None = None, **environment) -> subprocess.CompletedProcess:
    """Run `python -m` with these words, in `root`; an environment variable that is None is removed. `file_size` is the
    maximum size of a file in bytes: beyond it writing fails, as on a full disk."""
    limit = None
    if file_size is not None:
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))  # noqa: E731
    options = {"cwd": root, "env": change_environment(environment), "preexec_fn": limit, "timeout": 300}
    return subprocess.run([sys.executable, "-m", *map(str, words)], capture_output=True, text=True, **options)


def tracer(*words, **options) -> subprocess.CompletedProcess:
    """`python -m tracer` and these words."""
    return python("tracer", *words, **options)


def change_environment(environment: dict[str, str | None]) -> dict[str, str]:
    """Return the environment of this process with these variables set, or removed where they are None."""
    named = {**os.environ, **OFFLINE, **environment}
    return {name: value for name, value in named.items() if value is not None}


def refusal(done: subprocess.CompletedProcess, *parts: str) -> str:
    """Return the one line, after those on its model, in which a command was refused.

    AssertionError where it was not, or where the line does not say these parts.
    """
    said = done.stderr.strip()
    assert done.returncode == 2 and TRACEBACK not in said, f"status {done.returncode}: {said[-300:]}"
    lines = [line for line in said.splitlines() if line.startswith("tracer: ")]
    assert len(lines) == 1 and said.endswith(lines[0]), f"not one line: {said[-300:]}"
    for part in parts:
        assert part in lines[0], f"no {part!r} in: {lines[0]}"
    return lines[0]


class Server(App):
    """App whose log is searched for tracebacks."""

    def __init__(self, folder: Path, root: Path = ROOT, **environment):
        super().__init__(folder / "log.txt", root=root, **{**OFFLINE, **environment})

    def quiet(self) -> None:
        """Raise AssertionError if the app has logged a traceback."""
        where = self.log().find(TRACEBACK)
        assert where < 0, f"the server logged: {self.log()[where:][-700:]}"


def copy_install(folder: Path) -> Path:
    """Copy the app and the library into a folder, to be damaged."""
    root = folder / "install"
    root.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, root / part)
    return root


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make a folder read-only: root, who may write what nobody may, gets a mount of its own."""
    if os.geteuid() == 0:
        with mount(folder, "--bind", folder):
            subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
            yield
        return
    paths = [folder, *folder.rglob("*")]
    for path in paths:
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        yield
    finally:
        for path in paths:
            path.chmod(path.stat().st_mode | 0o200)


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[dict[str, int]]:
    """Yield a folder on a disk of `size` bytes; without the right to mount one, options for `python` that limit the
    size of files to that."""
    folder.mkdir()
    if os.geteuid() != 0:
        yield {"file_size": size}
        return
    with mount(folder, "-t", "tmpfs", "-o", f"size={size}", "tmpfs"):
        yield {}


@contextmanager
def mount(folder: Path, *words) -> Iterator[None]:
    subprocess.run(["mount", *words, folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
