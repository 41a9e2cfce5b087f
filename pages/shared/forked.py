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
    ports, options = rest[:split], rest[split + 1 :]
    sys.path[0] = str(Path(app).parent)  # as for the server itself
    load()
    servers = []
    for port in ports:
        if not (server := os.fork()):
            os.close(int(outside))
            become(app, port, options)
        servers.append(f"{port}={server}")
    os.execv(sys.executable, [sys.executable, front, outside, *servers])


def load() -> None:
    """Loads what every server needs, in this one thread, since a process with more must not be forked."""
    os.environ.update(ONE_THREAD)
    import pandas  # noqa: F401  for tables: the largest part of what pages load later

    from pages.shared import memory, runs, sidebar, warm  # noqa: F401  sidebar: what every page has
    from tracer import models

    memory.few_arenas()
    for name in models.names():
        with warm.told(name):
            runs.in_line(name, ())
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise RuntimeError(f"{threads} threads before the servers are forked, expected one")
    gc.collect()
    gc.freeze()


def become(app: str, port: str, options: Sequence[str]) -> None:
    """Makes this process, which was just forked, the server at a port; it ends with the one that it was forked from."""
    from streamlit.web import cli

    ctypes.CDLL(None).prctl(WITH_PARENT, signal.SIGTERM)
    at = "--server.address", "127.0.0.1", "--server.port", port
    sys.argv = ["streamlit", "run", app, *at, *options]
    cli.main(prog_name="streamlit")
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
