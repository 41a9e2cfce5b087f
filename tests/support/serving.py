"""App as a process of its own, for browsers, classes, faults and replicas alike."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_in_thread(coroutine: Coroutine):
    """Return the result of a coroutine, run in a loop of its own: a browser that tests drive may have one in this
    thread."""
    with ThreadPoolExecutor(1) as own:
        return own.submit(asyncio.run, coroutine).result()


def free_port() -> int:
    """Return a port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class App:
    """App on a port of its own, which it keeps when it is started again; its output is appended to `log`.

    `options` are Streamlit's own, such as `--logger.level=debug`; it is up once `health` answers. It computes only its
    first run before anybody asks, unless TRACER_PREWARM says otherwise. A variable of the environment that is None is
    taken out. Used with `with`, it is ended at the end.
    """

    def __init__(
        self,
        log: Path,
        *options: str,
        root: Path = ROOT,
        port: int | None = None,
        health: str = "/_stcore/health",
        **environment: str | None,
    ):
        self.port = port or free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.root, self.log_file, self.health = root, log, health
        self.command = [sys.executable, "-m", "tracer", "app", "--port", str(self.port), "--", *options]
        named = {"MALLOC_ARENA_MAX": "2", "TRACER_PREWARM": "first", **os.environ, **environment}
        self.environment = {name: value for name, value in named.items() if value is not None}
        self.process: subprocess.Popen | None = None

    def __enter__(self) -> App:
        try:
            return self.start()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *error) -> None:
        if self.process.poll() is None:
            try:
                self.end(signal.SIGTERM, 20)
            except subprocess.TimeoutExpired:
                self.end(signal.SIGKILL)

    def start(self, seconds: float = 180) -> App:
        """Start the app and wait until it is up. Raise RuntimeError with the end of its log where it does not come
        up."""
        with self.log_file.open("a") as log:
            options = {"cwd": self.root, "env": self.environment, "stdin": subprocess.DEVNULL}
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, **options)
        deadline = time.monotonic() + seconds
        while not self.answers():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError(f"the app did not answer on {self.address}: {self.log()[-2000:]}")
            time.sleep(0.05)
        return self

    def answers(self) -> bool:
        """Return whether the app reports that it is healthy."""
        try:
            with urllib.request.urlopen(f"{self.address}{self.health}", timeout=5):
                return True
        except (OSError, HTTPException):
            return False

    def end(self, number: signal.Signals, seconds: float = 30) -> int:
        """Send a signal and wait until the process has ended; return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(timeout=seconds)

    def log(self) -> str:
        """Return all output so far, without the colours."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.log_file.read_text(errors="replace"))
