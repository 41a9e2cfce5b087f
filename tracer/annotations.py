"""Shapes written into a copy of a module's source: comments, or annotations of `jaxtyping`.

Nothing is read from the code alone. The forward runs at several sizes, the shape of every value that it assigns is
recorded by its line, and each dimension is the formula over the symbols that fits all runs and predicts one more."""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from tracer.shapes import UNKNOWN, Vocabulary
from tracer.shapes.solver import Solver
from tracer.symbols.notation import parse
from tracer.utils import files
from tracer.utils.errors import quote, reason
from tracer.utils.files import Edit, apply_edits, edit_node, edit_span
from tracer.zoo import user_factory

# Shapes of what the functions of one file assign, take and return, in the order in which they ran.


class Value(NamedTuple):
    """A tensor: its place within a tuple, empty for a value alone, its dtype and its shape, in numbers or formulas."""

    place: tuple[int, ...]
    dtype: torch.dtype
    shape: tuple[int | str, ...]


class Place(NamedTuple):
    """Location of a value: the line of the statement that assigns or returns it, or the name of an argument of the
    function that begins there. The name of a returned value is "return"."""

    line: int
    name: str
    argument: bool = False


Values = tuple[Value, ...]
LocalShapes = dict[Place, Values]


def observe(run: Callable[[], Any], file: Path) -> LocalShapes:
    """Return the shapes of all tensors that the functions of a file assign, take and return while `run` goes on."""
    statements = _statements(files.parse(file.read_text(encoding="utf-8")))
    observer = _Observer(str(file), statements)
    before = sys.gettrace()
    sys.settrace(observer.call)
    try:
        run()
    finally:
        sys.settrace(before)
    return {place: tuple(values) for place, values in observer.shapes.items() if values}


def _statements(tree: ast.Module) -> dict[int, ast.stmt]:
    """Return the simple statement of each line; lines of compound ones have none."""
    statements: dict[int, ast.stmt] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr)):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            statements.update(dict.fromkeys(lines, node))
    return statements


def targets(statement: ast.stmt) -> list[str]:
    """Return the names that a statement assigns."""
    nodes = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [n.id for node in nodes if node is not None for n in ast.walk(node) if isinstance(n, ast.Name)]


class _Observer:
    """A trace function of Python: it inspects local names each time that a statement has ended."""

    def __init__(self, file: str, statements: dict[int, ast.stmt]):
        self.file, self.statements = file, statements
        self.shapes: dict[Place, list[Value]] = {}
        self._current: dict[int, ast.stmt | None] = {}

    def call(self, frame: FrameType, event: str, argument: Any):
        code = frame.f_code
        if code.co_filename != self.file or code.co_name.startswith("<"):
            return None
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            self._add(Place(code.co_firstlineno, name, True), frame.f_locals.get(name))
        self._current[id(frame)] = None
        return self.line

    def line(self, frame: FrameType, event: str, argument: Any):
        if event == "line":
            statement = self.statements.get(frame.f_lineno)
            if statement is not (before := self._current.get(id(frame))):
                self._end(before, frame)
                self._current[id(frame)] = statement
        elif event == "return":
            before = self._current.pop(id(frame), None)
            self._end(before, frame)
            if argument is not None:
                self._add(Place(frame.f_code.co_firstlineno, "return", True), argument)
                if isinstance(before, ast.Return):
                    self._add(Place(before.lineno, "return"), argument)
        return self.line

    def _end(self, statement: ast.stmt | None, frame: FrameType) -> None:
        if statement is None or isinstance(statement, (ast.Return, ast.Expr)):
            return
        for name in targets(statement):
            self._add(Place(statement.lineno, name), frame.f_locals.get(name))

    def _add(self, place: Place, value: Any, within: tuple[int, ...] = ()) -> None:
        if isinstance(value, torch.Tensor):
            self.shapes.setdefault(place, []).append(Value(within, value.dtype, tuple(value.shape)))
        elif isinstance(value, (tuple, list)) and len(within) < 2:
            for number, item in enumerate(value):
                self._add(place, item, (*within, number))


# Edits of source code at positions of its syntax tree: comments at the ends of lines, annotations of signatures.

SHAPE_COMMENT = re.compile(r"#\s*\[[^\]]*\]")
"""A comment that is a shape."""
IMPORT = "from jaxtyping import {}\n"


def with_comments(source: str, shapes: Mapping[Place, Values]) -> str:
    """Return the source with a shape comment at the end of each statement that assigns or returns a tensor.

    A line whose calls have several shapes lists them; a comment that is a shape is replaced.
    """
    lines, comments = source.splitlines(keepends=True), _comments(source)
    for node in ast.walk(files.parse(source)):
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
    lines = source.splitlines(keepends=True)
    for node in ast.walk(files.parse(source)):
        if isinstance(node, ast.FunctionDef):
            edits += _signature(node, lines, shapes, kinds)
    if not edits:
        return source
    lines = apply_edits(lines, edits).splitlines(keepends=True)
    at = _first_import(source)
    header = IMPORT.format(", ".join(sorted(kinds)))
    if not re.search(r"^from torch import .*\bTensor\b", source, flags=re.MULTILINE):
        header += "from torch import Tensor\n"
    return "".join([*lines[:at], header, *lines[at:]])


def _signature(
    node: ast.FunctionDef, lines: list[str], shapes: Mapping[Place, Values], kinds: set[str]
) -> Iterator[Edit]:
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
            end = argument.lineno, argument.col_offset + len(argument.arg.encode())
            yield edit_span("", lines, end, end, f": {text}")
        elif argument.annotation.lineno == argument.annotation.end_lineno:
            yield edit_node("", lines, argument.annotation, text)
    value = _only(shapes.get(Place(first, "return", True), ()))
    if value is None or not _may_replace(node.returns):
        return
    text = _annotation(value, bound, kinds)
    if node.returns is not None and node.returns.lineno == node.returns.end_lineno:
        yield edit_node("", lines, node.returns, text)
    elif node.returns is None and (colon := _end_of_signature(node, lines)) is not None:
        yield edit_span("", lines, colon, colon, f" -> {text}")


def _only(values: Values) -> Value | None:
    return values[0] if len(values) == 1 and not values[0].place else None


def _may_replace(annotation: ast.expr | None) -> bool:
    """Return whether there is no annotation, or that of any tensor."""
    return annotation is None or ast.unparse(annotation) in ("Tensor", "torch.Tensor")


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


def _end_of_signature(node: ast.FunctionDef, lines: list[str]) -> tuple[int, int] | None:
    """Return the line and the column in bytes of the colon that ends a function's signature."""
    depth, started = 0, False
    for token in tokenize.generate_tokens(io.StringIO("".join(lines)).readline):
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
    for node in files.parse(source).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)) and getattr(node, "module", "") != "__future__":
            return node.lineno - 1
    return 0


STYLES: dict[str, Callable[[str, dict], str]] = {"comments": with_comments, "jaxtyping": with_jaxtyping}


def annotate(reference: str, style: str = "comments") -> str:
    """Return the source of the file that `FILE.py:factory` or `package.file:factory` names, with shapes in it.

    `factory()` returns `(module, args)`, and its arguments with whole numbers for defaults are the symbols. The file
    itself is left alone. Raise ValueError in one sentence for a style or a factory that there is not, and where the
    module does not run.
    """
    if style not in STYLES:
        raise ValueError(f"{quote(style)} is not a style, expected {' or '.join(STYLES)}")
    file, function = source_of(reference)
    sizes = user_factory.sizes_of(function)
    vocabulary = Vocabulary(tuple(sizes), {}, lambda at: user_factory.unpack(reference, function(**at)))
    runs = [sizes]
    if sizes:
        with torch.no_grad():
            runs += islice(user_factory.probes_of(vocabulary, sizes, False), user_factory.PROBES)
    shapes = [_run(reference, function, file, at) for at in runs]
    names = tuple(sizes) if len(runs) > 2 else ()
    return STYLES[style](file.read_text(encoding="utf-8"), _solve_shapes(shapes, names, runs))


def source_of(reference: str) -> tuple[Path, Callable]:
    """Return the file that a reference names, and its factory."""
    function = user_factory.factory(reference)
    file = inspect.getsourcefile(function)
    if file is None:
        raise ValueError(f"the source of {quote(reference)} can't be read, expected a function in a file")
    return Path(file), function


def _run(reference: str, function: Callable, file: Path, at: dict[str, int]) -> LocalShapes:
    """Return the shapes of what one run assigns in the lines of a file."""
    try:
        module, args, *named = user_factory.unpack(reference, function(**at))
        with torch.no_grad():
            return observe(lambda: module(*args, **(named[0] if named else {})), file)
    except ValueError:
        raise
    except Exception as error:  # of the user's own code
        raise ValueError(f"{quote(reference)} failed: {type(error).__name__}: {reason(error)}") from error


def _solve_shapes(runs: list[LocalShapes], names: tuple[str, ...], sizes: list[dict[str, int]]) -> dict[Any, Values]:
    """Return the shapes of the first run with a formula for each dimension; `"?"` where none fits all runs."""
    solver = Solver(names, {}, sizes[:-1], sizes[-1]) if names else None

    def solve(dimension: tuple[int, ...]) -> str:
        if len(set(dimension)) == 1:
            return str(dimension[0])
        return solver.solve(dimension) if solver is not None else UNKNOWN

    solved: dict[Any, Values] = {}
    for place, values in runs[0].items():
        others = [run.get(place) for run in runs[1:]] if names else []
        ranks = [[len(value.shape) for value in values], *([len(v.shape) for v in other or ()] for other in others)]
        if any(rank != ranks[0] for rank in ranks):
            continue
        calls = [values, *(other for other in others if other is not None)]
        symbolic = [
            value._replace(shape=tuple(solve(dimension) for dimension in zip(*(v.shape for v in same), strict=True)))
            for value, *same in ((each[0], *each) for each in zip(*calls, strict=True))
        ]
        solved[place] = tuple(dict.fromkeys(symbolic))
    return solved
