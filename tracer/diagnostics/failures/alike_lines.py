"""Lines that are written alike but for names, as those of queries, keys and values: an edit of one suits each."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tracer.diagnostics.failures.explanation import assignments
from tracer.diagnostics.failures.failure_site import innermost_function, source_text, tree_of
from tracer.utils.files import Edit, edit_node


def renames(node: Any, other: Any) -> dict[str, str] | None:
    """Return which names of a piece of code the other has in their place; None where the two differ in more."""
    names: dict[str, str] = {}
    return names if _is_alike(node, other, names) else None


def _is_alike(node: Any, other: Any, names: dict[str, str]) -> bool:
    if type(node) is not type(other):
        return False
    if isinstance(node, list):
        return len(node) == len(other) and all(_is_alike(a, b, names) for a, b in zip(node, other, strict=True))
    if not isinstance(node, ast.AST):
        return bool(node == other)
    for field in node._fields:
        a, b = getattr(node, field, None), getattr(other, field, None)
        if field in ("id", "attr") and a is not None and b is not None:
            if names.setdefault(a, b) != b:
                return False
        elif not _is_alike(a, b, names):
            return False
    return True


def rename(text: str, names: dict[str, str]) -> str:
    """Return code with names replaced by others."""
    return re.sub(r"\b[A-Za-z_]\w*\b", lambda match: names.get(match[0], match[0]), text)


@dataclass(frozen=True)
class Alike:
    """Edit of an assignment that is written like an edited one: the name that is assigned, and the lines."""

    name: str
    lines: range
    edit: Edit
    in_constructor: bool


def alike_edits(edit: Edit) -> Iterator[Alike]:
    """Yield the same edit in each other assignment of its function that differs from the edited one by names alone."""
    lines = linecache.getlines(edit.file)
    tree = tree_of(lines)
    function = innermost_function(tree, edit.line) if tree is not None else None
    if function is None:
        return
    pairs = [(target, value) for target, value in assignments(function) if _target_name(target)]
    mine = next((pair for pair in pairs if _holds(pair[1], edit)), None)
    node = next((n for n in ast.walk(mine[1]) if _span(n) == (edit.start, edit.end)), None) if mine else None
    if mine is None or node is None:
        return
    for target, value in pairs:
        if value is mine[1] or (names := renames([*mine], [target, value])) is None:
            continue
        matching = next(b for a, b in zip(ast.walk(mine[1]), ast.walk(value), strict=True) if a is node)
        new = edit_node(edit.file, lines, matching, rename(edit.text, names))
        at = range(target.lineno, (value.end_lineno or value.lineno) + 1)
        yield Alike(_target_name(target), at, new, function.name == "__init__")


def _target_name(target: ast.expr) -> str:
    return target.id if isinstance(target, ast.Name) else getattr(target, "attr", "")


def _span(node: ast.AST) -> tuple[tuple[int, int], tuple[int, int]] | None:
    if not isinstance(node, ast.expr):
        return None
    return (node.lineno, node.col_offset), (node.end_lineno or node.lineno, node.end_col_offset or 0)


def _holds(node: ast.expr, edit: Edit) -> bool:
    span = _span(node)
    return span is not None and span[0] <= edit.start and edit.end <= span[1]


def suffixes(lines: list[str], value: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """Yield the beginnings of a chain of methods with the text that follows each, the shortest last: `self.q(x)` and
    `.view(B, T, h, d).transpose(1, 2)`."""
    whole, node = source_text(lines, value), value
    yield node, ""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
        text = source_text(lines, node)
        if isinstance(node, ast.Attribute) or not whole.startswith(text):
            return
        yield node, whole[len(text) :]
