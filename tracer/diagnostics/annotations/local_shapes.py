"""Shapes of what the functions of one file assign, take and return, in the order in which they ran."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from tracer.utils import python_source


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
    statements = _statements(python_source.parse(file.read_text(encoding="utf-8")))
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
