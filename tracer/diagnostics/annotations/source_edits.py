"""Edits of source code at positions of its syntax tree: comments at the ends of lines, annotations of signatures."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping

import torch

from tracer.diagnostics.annotations.local_shapes import Place, Value, Values, targets
from tracer.shapes import UNKNOWN
from tracer.symbols.notation import parse
from tracer.utils import python_source

SHAPE_COMMENT = re.compile(r"#\s*\[[^\]]*\]")
"""A comment that is a shape."""
IMPORT = "from jaxtyping import {}\n"
Edit = tuple[int, int, int, str]
"""Line from 1, first and last column in bytes, and what stands there then."""


def with_comments(source: str, shapes: Mapping[Place, Values]) -> str:
    """Return the source with a shape comment at the end of each statement that assigns or returns a tensor.

    A line whose calls have several shapes lists them; a comment that is a shape is replaced.
    """
    lines, comments = source.splitlines(keepends=True), _comments(source)
    for node in ast.walk(python_source.parse(source)):
        if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return)):
            continue
        names = ["return"] if isinstance(node, ast.Return) else targets(node)
        texts = [text for name in names if (text := _shapes(shapes.get(Place(node.lineno, name), ())))]
        if not texts:
            continue
        text = texts[0] if len(set(texts)) == 1 else ", ".join(texts)
        last = node.end_lineno or node.lineno
        ending = lines[last - 1][len(lines[last - 1].rstrip("\r\n")) :]
        line, comment = lines[last - 1].rstrip("\r\n"), comments.get(last)
        if comment is None:
            line = f"{line.rstrip()}  # {text}"
        else:
            old = SHAPE_COMMENT.sub("#", line[comment:], count=1).removeprefix("#").strip()
            line = f"{line[:comment].rstrip()}  # {text}" + (f" {old}" if old else "")
        lines[last - 1] = line + ending
    return "".join(lines)


def _comments(source: str) -> dict[int, int]:
    """Return the column of the comment of each line that has one."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: token.start[1] for token in tokens if token.type == tokenize.COMMENT}


def _shapes(values: Values) -> str:
    """Return the shapes of a name as text: one for a tensor, several for a tuple, or for calls that differ."""
    texts = list(dict.fromkeys(f"[{', '.join(map(_dimension, value.shape))}]" for value in values))
    alone = all(not value.place for value in values)
    return (" or " if alone else ", ").join(texts)


def _dimension(size: int | str) -> str:
    return str(size).replace("**", "^").replace(" ", "")


def with_jaxtyping(source: str, shapes: Mapping[Place, Values]) -> str:
    """Return the source with annotations of `jaxtyping` at the arguments and results of its functions.

    Only values that are a tensor of one shape in all calls get one. A dimension that is no symbol and no number is
    written as a formula where its symbols are axes of arguments, else as `_`.
    """
    kinds: set[str] = set()
    edits: list[Edit] = []
    for node in ast.walk(python_source.parse(source)):
        if isinstance(node, ast.FunctionDef):
            edits += _signature(node, source, shapes, kinds)
    if not edits:
        return source
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    for number, first, last, text in sorted(edits, reverse=True):
        lines[number - 1] = lines[number - 1][:first] + text.encode() + lines[number - 1][last:]
    at = _first_import(source)
    header = IMPORT.format(", ".join(sorted(kinds)))
    if not re.search(r"^from torch import .*\bTensor\b", source, flags=re.MULTILINE):
        header += "from torch import Tensor\n"
    lines.insert(at, header.encode())
    return b"".join(lines).decode()


def _signature(node: ast.FunctionDef, source: str, shapes: Mapping[Place, Values], kinds: set[str]) -> Iterator[Edit]:
    """Yield the edits of one function's signature."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    bound: set[str] = set()
    for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
        value = _only(shapes.get(Place(first, argument.arg, True), ()))
        if value is None or not _may_replace(argument.annotation):
            continue
        bound |= {str(size) for size in value.shape if str(size).isidentifier()}
        text = _annotation(value, bound, kinds)
        if argument.annotation is None:
            column = argument.col_offset + len(argument.arg.encode())
            yield argument.lineno, column, column, f": {text}"
        else:
            yield from _replace(argument.annotation, text)
    value = _only(shapes.get(Place(first, "return", True), ()))
    if value is None or not _may_replace(node.returns):
        return
    text = _annotation(value, bound, kinds)
    if node.returns is not None:
        yield from _replace(node.returns, text)
    elif (colon := _end_of_signature(node, source)) is not None:
        yield colon[0], colon[1], colon[1], f" -> {text}"


def _only(values: Values) -> Value | None:
    return values[0] if len(values) == 1 and not values[0].place else None


def _may_replace(annotation: ast.expr | None) -> bool:
    """Return whether there is no annotation, or that of any tensor."""
    return annotation is None or ast.unparse(annotation) in ("Tensor", "torch.Tensor")


def _replace(node: ast.expr, text: str) -> Iterator[Edit]:
    if node.lineno == node.end_lineno and node.end_col_offset is not None:
        yield node.lineno, node.col_offset, node.end_col_offset, text


def _annotation(value: Value, bound: set[str], kinds: set[str]) -> str:
    kind = "Float" if value.dtype.is_floating_point else "Complex" if value.dtype.is_complex else "Int"
    kind = "Bool" if value.dtype == torch.bool else kind
    kinds.add(kind)
    return f'{kind}[Tensor, "{" ".join(_axis(str(size), bound) for size in value.shape)}"]'


def _axis(size: str, bound: set[str]) -> str:
    """Return a dimension as jaxtyping reads it: a name, a number, or a formula of names that are known by then."""
    if size.isidentifier() or size.isdecimal():
        return size
    known = size != UNKNOWN and {str(symbol) for symbol in parse(size).free_symbols} <= bound and "/" not in size
    return size.replace(" ", "") if known else "_"


def _end_of_signature(node: ast.FunctionDef, source: str) -> tuple[int, int] | None:
    """Return the line and the column in bytes of the colon that ends a function's signature."""
    depth, started = 0, False
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.start < (node.lineno, node.col_offset):
            continue
        started = started or token.string == "def"
        if not started:
            continue
        depth += (token.string in "([{" and bool(token.string)) - (token.string in ")]}" and bool(token.string))
        if token.string == ":" and depth == 0:
            row, column = token.start
            return row, len(lines[row - 1][:column].encode())
    return None


def _first_import(source: str) -> int:
    """Return the number of lines before the first import that is not from `__future__`."""
    for node in python_source.parse(source).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)) and getattr(node, "module", "") != "__future__":
            return node.lineno - 1
    return 0
