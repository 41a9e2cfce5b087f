"""Files: written whole or not at all, and Python sources read without being run."""

from __future__ import annotations

import ast
import os
import secrets
from contextlib import suppress
from importlib.resources.abc import Traversable
from pathlib import Path
from threading import Lock
from typing import Any

from tracer.utils.errors import quote

# Files that are written whole or not at all.


def write(path: str | Path, data: bytes) -> None:
    """Write a file under another name beside it, and rename it to `path`: the old file stays until then.

    Raise OSError with one sentence where that can't be done; on a full disk the old file stays. A special file, such as
    a pipe, is written to directly.
    """
    name, path = path, Path(path)
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        path = path.resolve()
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        try:
            part.write_bytes(data)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise type(error)(f"can't write {quote(str(name))}: {error.strerror or error}") from error


# Python's own parser, serialised to one text at a time.
#
# CPython 3.11 counts how deep a syntax tree is in one place for all threads: where two of them parse at once and a
# garbage collection comes between, one gets `SystemError: AST constructor recursion depth mismatch`. On a server every
# visitor has a thread, so all that is parsed is parsed here.

_one_at_a_time = Lock()


def parse(text: str) -> ast.Module:
    """Return the syntax tree of Python source, as `ast.parse` does and with its errors."""
    with _one_at_a_time:
        return ast.parse(text)


def lines(node: ast.stmt | ast.expr) -> range:
    """Return the source lines of a node of a parsed tree, counted from 1."""
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def read_literals(file: Traversable) -> dict[str, Any]:
    """Return the literals of a file without running it: the first line of its docstring, as `"summary"`, and the values
    assigned at module level to plain names; for a call, such as `Spec(…)`, the literal keywords."""
    tree = parse(file.read_text(encoding="utf-8"))
    literals: dict[str, Any] = {"summary": (ast.get_docstring(tree) or "").partition("\n")[0]}
    for line in tree.body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            name, value = line.targets[0].id, line.value
            if isinstance(value, ast.Call):
                literals[name] = _literals({keyword.arg: keyword.value for keyword in value.keywords if keyword.arg})
            else:
                literals |= _literals({name: value})
    return literals


def _literals(names: dict[str, ast.expr]) -> dict[str, Any]:
    """Return the values that are literals."""
    literals = {}
    for name, value in names.items():
        with suppress(ValueError):
            literals[name] = ast.literal_eval(value)
    return literals
