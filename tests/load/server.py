"""Server under load: started on a free port, and the costs of it and all its processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from tests.support.serving import App

POLL_SECONDS = 5.0
"""Seconds between two looks at the memory."""
IDLE_SHARE = 0.05
"""Share of a core below which a server is idle."""
LONGEST_START_SECONDS = 300.0
"""Seconds in which a server is idle after its start, at most."""


class Server:
    """App as a process, with the processes that it starts; `log` has their output, where that is known."""

    def __init__(self, address: str, process: int, log: Callable[[], str] = str):
        self.address, self.log = address, log
        self._root = psutil.Process(process)

    def _all(self) -> list[psutil.Process]:
        return [self._root, *self._root.children(recursive=True)]

    def cpu(self) -> float:
        """Return the seconds of CPU that all its processes have used, those that ended included."""
        total = 0.0
        for process in self._all():
            with suppress(psutil.NoSuchProcess):
                spent = process.cpu_times()
                total += spent.user + spent.system + spent.children_user + spent.children_system
        return total

    def memory(self) -> float:
        """Return the megabytes in use by all its processes; what several of them share counts once (PSS)."""
        total = 0
        for process in self._all():
            with suppress(psutil.NoSuchProcess):
                total += process.memory_full_info().pss
        return total / 2**20


@contextmanager
def start_server() -> Iterator[Server]:
    """Start a server on a free port and end it afterwards. Raise RuntimeError with its log where it does not come
    up."""
    with TemporaryDirectory() as folder, App(Path(folder) / "log.txt", TRACER_PREWARM="all") as app:
        yield Server(app.address, app.process.pid, app.log)


async def watch_memory(server: Server, seen: list[tuple[float, float]]) -> None:
    """Note (seconds since now, megabytes) in `seen` until it is cancelled."""
    began = time.monotonic()
    while True:
        seen.append((time.monotonic() - began, await asyncio.to_thread(server.memory)))
        await asyncio.sleep(POLL_SECONDS)


def wait_until_idle(server: Server) -> float:
    """Wait until a server has done its work ahead, and return the seconds that took."""
    began, spent = time.monotonic(), server.cpu()
    while time.monotonic() - began < LONGEST_START_SECONDS:
        time.sleep(POLL_SECONDS)
        before, spent = spent, server.cpu()
        if spent - before < IDLE_SHARE * POLL_SECONDS:
            break
    return time.monotonic() - began


def calibration() -> float:
    """Return the seconds that a fixed piece of work takes: beside other figures it shows how busy, and how fast, the
    machine is."""
    began = time.perf_counter()
    sum(number * number for number in range(2_000_000))
    return time.perf_counter() - began
