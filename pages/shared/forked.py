"""Several servers of the app, forked from one process: what all of them need is loaded once and in memory once.

Each would otherwise load the libraries and the models and run the samples for itself, half of all the memory that a
server takes. As a program, `forked.py FRONT APP SOCKET PORT PORT … -- OPTION …` forks one server for each of the ports
of this machine, with Streamlit's own options. Then it becomes the front before them, which listens at the socket.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""What keeps numpy and Arrow from starting threads when they are loaded."""
WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl.h: the signal that a process gets when the one that it was forked from ends."""


def main(front: str, app: str, outside: str, *rest: str) -> None:
    """Loads, forks, and becomes the front."""
    split = rest.index("--")
    sys.path[0] = str(Path(app).parent)  # as for the server itself
    start = forked if load() else apart
    servers = [f"{port}={start(int(outside), at(app, port, rest[split + 1 :]))}" for port in rest[:split]]
    os.execv(sys.executable, [sys.executable, front, outside, *servers])


def at(app: str, port: str, options: Sequence[str]) -> list[str]:
    """What Streamlit is told for a server at a port."""
    return ["run", app, "--server.address", "127.0.0.1", "--server.port", port, *options]


def load() -> bool:
    """Loads what every server needs; whether this process can be forked then. One that has threads, or holds an
    accelerator, can't."""
    from tracer.common.devices import wanted  # found from here on only: `main` has set the path

    if wanted() != "cpu":
        return False
    os.environ.update(ONE_THREAD)
    import pandas  # noqa: F401  for tables: the largest part of what pages load later

    from pages.shared import memory, runs, sidebar, warm  # noqa: F401  sidebar: what every page has
    from tracer import models

    memory.few_arenas()
    for name in models.names():
        with warm.told(name):
            runs.in_line(name, ())
    gc.collect()
    gc.freeze()
    return len(os.listdir("/proc/self/task")) == 1


def forked(outside: int, told: list[str]) -> int:
    """The number of a server that is forked from this process, and ends with it."""
    if server := os.fork():
        return server
    from streamlit.web import cli

    os.close(outside)
    ctypes.CDLL(None).prctl(WITH_PARENT, signal.SIGTERM)
    sys.argv = ["streamlit", *told]
    cli.main(prog_name="streamlit")
    os._exit(0)


def apart(outside: int, told: list[str]) -> int:
    """The number of a server that loads everything for itself."""
    return subprocess.Popen([sys.executable, "-m", "streamlit", *told]).pid


if __name__ == "__main__":
    main(*sys.argv[1:])
