"""A run of the owner's own file, in a process of its own that can be ended."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pages.server import own_code
from tracer.utils.python_source import parse

MAX_SECONDS = 120
"""Seconds after which a run is ended."""
MAX_OUTPUT_LETTERS = 4_000
"""Characters at the end of what the code printed that are kept."""
MODULE, RUN, WHY = "my_code", "run.safetensors", "why.json"
"""The names that `tracer.zoo.run_own_file` has for the file, its run, and why it fails."""
ROOT = Path(__file__).resolve().parents[2]


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
    if not own_code.is_on():
        raise ValueError("this server runs no code of visitors")
    with tempfile.TemporaryDirectory(prefix="tensor-tracer-") as place:
        folder = Path(place)
        (folder / f"{MODULE}.py").write_text(text, encoding="utf-8")
        log = folder / "printed.txt"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "tracer.zoo.run_own_file", str(folder), factory],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
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
