"""Edits of a source file: an expression replaced by its position in the syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass


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
        marked = (
            [f"- {line}" for line in self.before.splitlines()],
            [f"+ {line}" for line in self.after.splitlines()],
        )
        return "\n".join([*marked[0], *marked[1]])


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
