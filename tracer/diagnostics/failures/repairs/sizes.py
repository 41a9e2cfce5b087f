"""Repairs of a number: a size of the factory, a literal in a call on the way to the error, an attribute of a module.

This is how heads that do not divide the width are repaired.
"""

from __future__ import annotations

import ast
import copy
import linecache
from collections.abc import Iterator
from types import FrameType

from torch import nn

from tracer.diagnostics.failures.scene import Scene, letters
from tracer.diagnostics.failures.source_edits import edit_node
from tracer.diagnostics.failures.trials import Candidate
from tracer.utils import python_source

REACH = 4
"""How far from a number others are tried, besides its double and its half."""
COST = 1.6


def size_repairs(scene: Scene) -> Iterator[Candidate]:
    """Yield other values for the numbers in the failed code."""
    yield from _of_factory(scene)
    yield from _of_calls(scene)
    yield from _of_attributes(scene)


def near(value: int) -> list[int]:
    """Return whole numbers near one, the nearest first."""
    around = [*range(max(1, value - REACH), value + REACH + 1), value * 2, value // 2]
    return [v for v in sorted(dict.fromkeys(around), key=lambda v: (abs(v - value), -v)) if v not in (0, value)]


def _of_factory(scene: Scene) -> Iterator[Candidate]:
    run = scene.run
    if run.rebuild is None or run.sizes is None:
        return
    lines = linecache.getlines(run.file)
    tree = python_source.parse("".join(lines))
    used = _names_of_error(scene)
    of_inputs, of_weights = set[str](), set[str]()
    for name, shape in scene.shapes.symbolic.items():
        (of_inputs if name.startswith("input ") else of_weights).update(*map(letters, shape))
    for name, value in run.sizes.items():
        if name == "B" or name in of_inputs - of_weights:  # the length of an input is what it is
            continue
        nodes = list(_defaults(tree, name, value, set(run.sizes)))
        for other in near(value):
            edits = tuple(edit_node(run.file, lines, node, str(other)) for node in nodes[:1])
            likely = 0.0 if value in used or name in used else 0.5
            cost = COST + likely + abs(other - value) / (50 * value) + 0.4 * (value == max(run.sizes.values()))
            yield Candidate(f"choose {name}={other}", cost, edits, sizes=((name, other),), family="number")


def _defaults(tree: ast.Module, name: str, value: int, sizes: set[str]) -> Iterator[ast.expr]:
    """Yield the default of a parameter of that name and value, in the factory that takes all these sizes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and sizes <= {argument.arg for argument in node.args.args}:
            named = node.args.args[len(node.args.args) - len(node.args.defaults) :]
            for argument, default in zip(named, node.args.defaults, strict=True):
                if argument.arg == name and isinstance(default, ast.Constant) and default.value == value:
                    yield default


def _names_of_error(scene: Scene) -> set[object]:
    """Return the names and the whole numbers in the failed line."""
    site, used = scene.site, set[object]()
    if site.tree is None:
        return used
    for node in ast.walk(site.tree):
        if getattr(node, "lineno", 0) == site.line and isinstance(node, (ast.Name, ast.Attribute)):
            used.add(site.text_of(node))
            value = site.value(node)
            if isinstance(value, int) and not isinstance(value, bool):
                used.add(value)
    return used


def _of_calls(scene: Scene) -> Iterator[Candidate]:
    """Yield other numbers in the calls that led to the error, such as `Attention(D, 3)`."""
    for frame in scene.site.frames:
        for node in _calls(frame):
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                if isinstance(argument, ast.Constant) and type(argument.value) is int and argument.value > 1:
                    file = frame.f_code.co_filename
                    lines = linecache.getlines(file)
                    text = ast.get_source_segment("".join(lines), node) or ""
                    for other in near(argument.value):
                        cost = COST + 0.1 + abs(other - argument.value) / (50 * argument.value)
                        edit = edit_node(file, lines, argument, str(other))
                        message = f"write {other} in the place of {argument.value} in `{text}`"
                        yield Candidate(message, cost, (edit,), family="number")


def _calls(frame: FrameType) -> Iterator[ast.Call]:
    lines = linecache.getlines(frame.f_code.co_filename)
    try:
        tree = python_source.parse("".join(lines))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.lineno <= frame.f_lineno <= (node.end_lineno or 0):
            yield node


def _of_attributes(scene: Scene) -> Iterator[Candidate]:
    """Yield other values of the whole numbers that a module holds and the failed line reads, such as `self.heads`."""
    site = scene.site
    if not site.own or site.tree is None:
        return
    module = site.modules[site.own - 1]
    path = scene.path_of(module)
    around = {
        node
        for node in ast.walk(site.tree)
        if isinstance(node, ast.FunctionDef) and node.lineno <= site.line <= (node.end_lineno or 0)
    }
    names = {
        n.attr
        for function in around
        for n in ast.walk(function)
        if isinstance(n, ast.Attribute) and getattr(n.value, "id", "") == "self"
    }
    for name in sorted(names):
        value = vars(module).get(name)
        if type(value) is not int or value < 2:
            continue
        for other in near(value):

            def change(old: nn.Module, sizes: dict[str, int], name: str = name, other: int = other) -> nn.Module:
                new = copy.copy(old)
                vars(new)[name] = other
                return new

            cost = COST + 0.2 + abs(other - value) / (50 * value)
            yield Candidate(
                f"choose `{name}` = {other} in `{path or type(module).__name__}`",
                cost,
                (),
                path,
                change,
                family="number",
            )
