"""Child processes of the library: how a module is started in one, and what it may take."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_NUM_THREADS"), "1")
"""Variables with which a process computes on one core."""


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of the library."""
    return [sys.executable, "-m", module, *arguments]


def environment(**variables: str) -> dict[str, str]:
    """Return the variables of this process for a child, in which the library can be imported, and these."""
    folders = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders), **variables}


def limit_resources(memory: int, seconds: int) -> None:
    """Limit the bytes that this process may still allocate and its seconds of processor time, where the system can."""
    with suppress(ImportError, OSError, ValueError):
        import resource  # not on Windows, where the process that waits ends this one

        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        bound = pages * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
