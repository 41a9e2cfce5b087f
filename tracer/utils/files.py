"""Files: written whole or not at all, and Python sources read, without being run, and edited."""

from __future__ import annotations

import ast
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
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


def checked_bytes(data: object, kind: str, most: int, expectation: str) -> bytes:
    """Return the bytes of a file of some kind, such as "photo". Raise ValueError for anything else, for more than
    `most`, and for none."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ValueError(f"A {kind} is given as the bytes of a file, not as {quote(data)}; {expectation}")
    if len(data) > most:
        raise ValueError(f"This file has {len(data):,} bytes; expected at most {most:,} ({most >> 20} MB)")
    if not data:
        raise ValueError(f"This file is empty (0 bytes); {expectation}")
    return bytes(data)


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


# Edits of a source file: an expression replaced by its position in the syntax tree.


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of the source: the text from `start` to `end`, each a line from 1 and a column in bytes, is replaced by
    `text`. `before` and `after` are the lines that hold it."""

    file: str
    start: tuple[int, int]
    end: tuple[int, int]
    text: str
    before: str
    after: str

    @property
    def line(self) -> int:
        """Number of the first line."""
        return self.start[0]

    def diff(self) -> str:
        """Return the change of the line as a diff."""
        before, after = self.before.splitlines(), self.after.splitlines()
        return "\n".join([*(f"- {line}" for line in before), *(f"+ {line}" for line in after)])


def edit_node(file: str, lines: list[str], node: ast.AST, text: str) -> Edit:
    """Return the edit that replaces a node of a file's syntax tree by a text."""
    start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
    return edit_span(file, lines, start, end, text)


def edit_span(file: str, lines: list[str], start: tuple[int, int], end: tuple[int, int], text: str) -> Edit:
    """Return the edit that replaces the text between two positions of a file."""
    before = "".join(lines[start[0] - 1 : end[0]])
    first, last = lines[start[0] - 1].encode()[: start[1]].decode(), lines[end[0] - 1].encode()[end[1] :].decode()
    return Edit(file, start, end, text, before.rstrip("\n"), f"{first}{text}{last}".rstrip("\n"))


def add_argument(file: str, lines: list[str], call: ast.Call, text: str) -> Edit:
    """Return the edit that passes an argument more at the end of a call."""
    end = (call.end_lineno or call.lineno, (call.end_col_offset or 1) - 1)
    comma = ", " if call.args or call.keywords else ""
    return edit_span(file, lines, end, end, f"{comma}{text}")


def set_argument(file: str, lines: list[str], call: ast.Call, name: str, text: str) -> Edit:
    """Return the edit that passes an argument by its name, in place of another value where there is one."""
    value = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    if value is not None:
        return edit_node(file, lines, value, text)
    return add_argument(file, lines, call, f"{name}={text}")


def apply_edits(lines: list[str], edits: Iterable[Edit]) -> str:
    """Return the text of a file, from its lines, with edits that do not overlap."""
    data = [line.encode() for line in lines]
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        (first, left), (last, right) = edit.start, edit.end
        merged = data[first - 1][:left] + edit.text.encode() + data[last - 1][right:]
        # as many lines as before, so that all code below keeps its first line
        data[first - 1 : last] = [merged, *[b""] * (last - first)]
    return b"".join(data).decode()


def line_edits(file: str, lines: list[str], text: str) -> tuple[Edit, ...]:
    """Return the edits of whole lines that lead from the lines of a file to a text of as many lines."""
    after = text.splitlines(keepends=True)
    changed = [number for number, pair in enumerate(zip(lines, after, strict=True), 1) if pair[0] != pair[1]]
    ends = {number: (number, len(lines[number - 1].rstrip("\n").encode())) for number in changed}
    return tuple(edit_span(file, lines, (n, 0), ends[n], after[n - 1].rstrip("\n")) for n in changed)
