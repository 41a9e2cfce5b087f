"""Edits of a user's source: an expression replaced by its position, and the functions of a module recompiled."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable, Iterator
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

from tracer.capture.callable_module import Function
from tracer.diagnostics.failures.explanation import Edit
from tracer.diagnostics.failures.failure_site import is_users
from tracer.shapes.shadow_module import parameters, shadow_copy

Codes = dict[tuple[str, int], CodeType]
"""Code objects by their qualified name and first line."""


def edit_node(file: str, lines: list[str], node: ast.AST, text: str) -> Edit:
    """Return the edit that replaces a node of a file's syntax tree by a text."""
    start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
    return edit_span(file, lines, start, end, text)


def edit_span(file: str, lines: list[str], start: tuple[int, int], end: tuple[int, int], text: str) -> Edit:
    """Return the edit that replaces the text between two positions of a file."""
    before = "".join(lines[start[0] - 1 : end[0]])
    first, last = lines[start[0] - 1].encode()[: start[1]].decode(), lines[end[0] - 1].encode()[end[1] :].decode()
    return Edit(file, start, end, text, before.rstrip("\n"), f"{first}{text}{last}".rstrip("\n"))


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


def codes_of(text: str, file: str) -> Codes:
    """Return the code of all functions in a text. Raise SyntaxError if it is not Python."""
    whole = compile(text, file, "exec", dont_inherit=True)

    def walk(code: CodeType) -> Iterator[CodeType]:
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield constant
                yield from walk(constant)

    return {(code.co_qualname, code.co_firstlineno): code for code in walk(whole)}


def with_codes(module: nn.Module, file: str, codes: Codes, detach: bool = False) -> nn.Module:
    """Have a copied module and its submodules run the edited code of a file; the classes themselves stay as they are.

    Functions of the file that the methods call by their global names, or close over, are the edited ones, too. With
    `detach`, the module is a function that was not copied: the twin of it reads copies of the modules around it.
    """
    copies: dict[int, nn.Module] = {}
    if detach:
        children = dict(module.named_children())
        copied = shadow_copy(children, parameters(module))
        copies = {id(child): copied[name] for name, child in children.items()}
        module = Function(module.forward)
        for name, child in copied.items():
            module.add_module(name, child)
    return Rebinder(file, codes, copies).rebind_all(module)


class Rebinder:
    """Edited twins of the functions and classes of one file."""

    def __init__(self, file: str, codes: Codes, copies: dict[int, nn.Module]):
        self._file, self._codes, self._copies = file, codes, copies
        self._globals: dict[int, dict[str, Any]] = {}
        self._functions: dict[int, FunctionType] = {}
        self._classes: dict[type, type] = {}

    def rebind_all(self, root: nn.Module) -> nn.Module:
        """Change the classes of a module and of all inside it to their edited twins."""
        for module in root.modules():
            module.__class__ = self._class(type(module))
            forward = vars(module).get("forward")
            if isinstance(forward, FunctionType):
                vars(module)["forward"] = self.function(forward)
            elif isinstance(forward, MethodType) and isinstance(forward.__self__, nn.Module):
                forward.__self__.__class__ = self._class(type(forward.__self__))  # a copy, as all of the module
                vars(module)["forward"] = getattr(forward.__self__, forward.__name__)
        return root

    def _class(self, kind: type) -> type:
        if kind not in self._classes:
            own: dict[str, Any] = {}
            for base in reversed(kind.__mro__):
                for name, value in vars(base).items():
                    if isinstance(value, FunctionType) and (edited := self.function(value)) is not value:
                        own[name] = edited
                    elif name in own:
                        del own[name]
            self._classes[kind] = type(kind.__name__, (kind,), own | {"__module__": kind.__module__}) if own else kind
        return self._classes[kind]

    def function(self, function: FunctionType) -> FunctionType:
        """Return the edited twin of a function, the function itself if it is not of this file."""
        code = function.__code__
        if code.co_filename != self._file or not is_users(code):
            return function
        if id(function) in self._functions:
            return self._functions[id(function)]
        edited = self._codes.get((code.co_qualname, code.co_firstlineno))
        if edited is None or edited.co_freevars != code.co_freevars:
            return function
        around = function.__closure__
        cells = tuple(CellType() for _ in around) if around is not None else None
        twin = FunctionType(edited, self._globals_of(function), function.__name__, function.__defaults__, cells)
        self._functions[id(function)] = twin
        for mine, theirs in zip(cells or (), around or (), strict=True):  # a function may close over itself
            self._fill(mine, theirs)
        twin.__kwdefaults__, twin.__dict__ = function.__kwdefaults__, dict(vars(function))
        return twin

    def _fill(self, cell: CellType, original: CellType) -> None:
        try:
            content = original.cell_contents
        except ValueError:  # a name that has no value yet
            return
        if id(content) in self._copies:
            content = self._copies[id(content)]
        elif isinstance(content, FunctionType):
            content = self.function(content)
        cell.cell_contents = content

    def _globals_of(self, function: FunctionType) -> dict[str, Any]:
        names = function.__globals__
        if id(names) not in self._globals:
            twins = self._globals[id(names)] = dict(names)
            for name, value in names.items():
                if id(value) in self._copies:
                    twins[name] = self._copies[id(value)]
                elif isinstance(value, FunctionType):
                    twins[name] = self.function(value)
        return self._globals[id(names)]


def run_text(text: str, file: str, name: str) -> ModuleType:
    """Run the text of a file as a module of that name, without adding it to the imported ones."""
    module = ModuleType(name)
    module.__file__ = file
    module.__dict__["__builtins__"] = builtins
    if package := getattr(sys.modules.get(name), "__package__", ""):
        module.__package__ = package
    exec(compile(text, file, "exec", dont_inherit=True), module.__dict__)  # the user's own code, edited
    return module
