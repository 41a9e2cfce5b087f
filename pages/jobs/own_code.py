"""A visitor's own code: whether it may run here, and its run in a process of its own."""

from __future__ import annotations

import ast
import json
import os
import secrets
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope
from streamlit import config

from tracer.cli import shared_options
from tracer.cli.shared_options import is_loopback
from tracer.utils.child_processes import environment, module_command
from tracer.utils.errors import limits
from tracer.utils.files import parse

# Decision whether this server runs its owner's own code, and whose requests it then accepts.
#
# It does only where `python -m tracer app --own-code` started it, on this machine's loopback and not hosted. Nothing in
# the environment, in a file or in an address turns it on. The code runs with the rights of the process, so everything
# else is refused while it is on: other hosts, pages of other origins, requests without an Origin that open a websocket,
# and what a proxy passes on. Other users of this machine can reach its loopback, too, so the page stays locked until
# somebody types the key that the terminal shows.

PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
"""Headers by which a proxy says that a request is somebody else's."""
TRIES, PAUSE = 5, 60.0
"""Wrong keys, of all visitors together, after which no key is taken for some seconds."""
REFUSAL = "This server runs code of its owner, so it answers pages of its own on this machine alone."

_wrong: list[float] = []


def is_on() -> bool:
    """Return whether this server runs its owner's code."""
    return bool(shared_options.key()) and not limits().hosted and is_loopback(address())


def address() -> str:
    """Return the address that the server listens on."""
    return config.get_option("server.address") or "0.0.0.0"


def unlocks(text: str) -> bool:
    """Return whether a text is the key. Raise ValueError after too many wrong ones."""
    now = monotonic()
    _wrong[:] = [at for at in _wrong if now - at < PAUSE]
    if len(_wrong) >= TRIES:
        raise ValueError("Too many wrong keys: try again in a minute.")
    right = is_on() and secrets.compare_digest(text.strip().lower().encode(), shared_options.key().encode())
    if not right:
        _wrong.append(now)
    return right


def is_own(scope: Scope) -> bool:
    """Return whether a request comes from a page of this server, opened on this machine under one of its own names."""
    headers = Headers(scope=scope)
    host, origin = headers.get("host"), headers.get("origin")
    client = scope["client"][0] if scope.get("client") else ""
    if any(name in headers for name in PROXY_HEADERS) or (client and not is_loopback(client)):
        return False
    if not is_loopback(host_name(host) or ""):
        return False
    if origin is None:
        return scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
    scheme, _, place = origin.partition("://")
    return scheme in ("http", "https") and place == host


def host_name(host: str | None) -> str | None:
    """Return the name or address in a Host header, without its port; None where there is none."""
    try:
        parts = urlsplit(f"//{host or ''}")
        _ = parts.port  # ValueError where that is not a number
    except ValueError:
        return None
    return parts.hostname if parts.netloc == host and parts.username is None else None


# A run of the owner's own file, in a process of its own that can be ended.

MAX_SECONDS = 120
"""Seconds after which a run is ended."""
MAX_OUTPUT_LETTERS = 4_000
"""Characters at the end of what the code printed that are kept."""
MODULE, RUN, WHY = "my_code", "run.safetensors", "why.json"
"""The names that `tracer.zoo.user_factory` has for the file, its run, and why it fails."""


class OwnRun(NamedTuple):
    """Outcome of running a text: the `file` of the run, or why it fails as plain data, or a sentence that refuses it;
    and the `output` that the code printed."""

    text: str
    file: bytes | None = None
    why: dict[str, Any] | None = None
    refusal: str = ""
    output: str = ""


def factories(text: str) -> list[str]:
    """Return the functions of a file that can be called without arguments, the last first. Raise SyntaxError if it is
    not Python."""
    functions = [node for node in parse(text).body if isinstance(node, ast.FunctionDef)]
    return [f.name for f in reversed(functions) if _needs_nothing(f) and not f.name.startswith("_")]


def _needs_nothing(function: ast.FunctionDef) -> bool:
    arguments = function.args
    named = len(arguments.posonlyargs) + len(arguments.args)
    return named == len(arguments.defaults) and None not in arguments.kw_defaults


def run(text: str, factory: str) -> OwnRun:
    """Run a factory of a file. Raise ValueError where this server does not run code."""
    if not is_on():
        raise ValueError("this server runs no code of visitors")
    with tempfile.TemporaryDirectory(prefix="tensor-tracer-") as place:
        folder = Path(place)
        (folder / f"{MODULE}.py").write_text(text, encoding="utf-8")
        log = folder / "printed.txt"
        with log.open("wb") as out:
            process = subprocess.Popen(
                module_command("tracer.zoo.run_own_file", str(folder), factory),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment(),
                start_new_session=True,
            )
            try:
                process.wait(MAX_SECONDS)
            except subprocess.TimeoutExpired:
                return OwnRun(text, refusal=f"It did not end within {MAX_SECONDS} seconds, so it was stopped.")
            finally:
                _end(process)
        output = log.read_text(encoding="utf-8", errors="replace")[-MAX_OUTPUT_LETTERS:]
        if (folder / RUN).exists():
            return OwnRun(text, (folder / RUN).read_bytes(), output=output)
        if not (folder / WHY).exists():
            return OwnRun(text, refusal=f"Its process ended with status {process.returncode}.", output=output)
        answer = json.loads((folder / WHY).read_text(encoding="utf-8"))
        if "refusal" in answer:
            return OwnRun(text, refusal=str(answer["refusal"]), output=output)
        return OwnRun(text, why=answer, output=output)


def _end(process: subprocess.Popen) -> None:
    """End a process and all that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
