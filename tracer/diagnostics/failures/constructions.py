"""Line of a constructor that built a module, from the source of the classes around it."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from tracer.diagnostics.failures.failure_site import is_users
from tracer.utils import python_source


@dataclass(frozen=True)
class Construction:
    """Call in the source that built a module: its file, its node, the file's lines, and the function around it."""

    file: str
    lines: list[str]
    call: ast.Call
    function: ast.FunctionDef

    def argument(self, kind: type, name: str) -> ast.expr | None:
        """Return the expression that the call has for a parameter, by position or by name."""
        for keyword in self.call.keywords:
            if keyword.arg == name:
                return keyword.value
        names = list(inspect.signature(kind).parameters)
        index = names.index(name) if name in names else len(self.call.args)
        if index < len(self.call.args) and not isinstance(self.call.args[index], ast.Starred):
            return self.call.args[index]
        return None


def construction_of(root: nn.Module, path: str) -> Construction | None:
    """Return the call that built the module at a path, from the source of the classes around it."""
    parts = path.split(".")
    for cut in range(len(parts) - 1, -1, -1):
        holder = root.get_submodule(".".join(parts[:cut]))
        for kind in type(holder).__mro__:
            if (constructor := constructor_of(kind)) is None:
                continue
            construction = _in_constructor(*constructor, parts[cut], parts[cut + 1 :], type(root.get_submodule(path)))
            if construction is not None:
                return construction
    return None


def _in_constructor(
    file: str, lines: list[str], function: ast.FunctionDef, name: str, rest: list[str], kind: type
) -> Construction | None:
    for target, value in assignments(function):
        if _is_attribute(target, name) and (call := _call_at(value, rest, kind)) is not None:
            return Construction(file, lines, call, function)
    return None


def assignments(function: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the assignments of a function, one target and its value at a time: two for `self.a, self.b = X(), Y()`."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=False)
            else:
                yield target, node.value


def constructor_of(kind: type) -> tuple[str, list[str], ast.FunctionDef] | None:
    """Return the file of the `__init__` of a user's class, its lines, and its node; None for any other class."""
    init = vars(kind).get("__init__")
    if not inspect.isfunction(init) or not is_users(init.__code__):
        return None
    file, first = init.__code__.co_filename, init.__code__.co_firstlineno
    lines = linecache.getlines(file)
    try:
        tree = python_source.parse("".join(lines))
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.name != "__init__":
            continue
        if first in (node.lineno, *(decorator.lineno for decorator in node.decorator_list)):
            return file, lines, node
    return None


def _is_attribute(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == name and isinstance(target.value, ast.Name)


def _call_at(value: ast.expr, rest: list[str], kind: type) -> ast.Call | None:
    """Return the call that builds a module inside an expression: the argument of `Sequential` at its number, or the
    only call of that class."""
    if rest and rest[0].isdigit() and isinstance(value, ast.Call):
        items: list[ast.expr] = list(value.args)
        if len(items) == 1 and isinstance(items[0], (ast.List, ast.Tuple)):
            items = list(items[0].elts)
        if int(rest[0]) < len(items) and not any(
            isinstance(item, (ast.Starred, ast.ListComp, ast.GeneratorExp)) for item in items
        ):
            return _call_at(items[int(rest[0])], rest[1:], kind)
    calls = [node for node in ast.walk(value) if isinstance(node, ast.Call) and class_name(node) == kind.__name__]
    return calls[0] if len(calls) == 1 else None


def class_name(call: ast.Call) -> str:
    """Return the name of what a call calls, without its module."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
