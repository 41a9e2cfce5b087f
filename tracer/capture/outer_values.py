"""Values outside a module that its own code reads: variables around its functions, their defaults, attributes of
classes.

They are looked up by the names in the code of its functions, and of those that these call. Code of libraries, and of
this package, is not looked into, nor hooks: what they collect is for somebody else.
"""

from __future__ import annotations

import dis
import os
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache, partial, partialmethod
from types import BuiltinMethodType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from torch import nn

MAX_FUNCTIONS = 1000
"""Functions and classes that are looked into."""
_LIBRARIES = tuple(
    {os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")}
)
"""Folders of the code that is not looked into."""

STORING = "STORE_GLOBAL", "STORE_ATTR"
"""Instructions by which code gives a name a value that is read elsewhere."""
CACHED = type(lru_cache(len))
"""Type of functions that keep their results, which is not public."""
ABSENT = object()
"""Value of a name that has none."""


CHANGED, ITERATOR, DRAWS = "changed", "iterator", "draws"
"""Kinds of state: a value that is another one after a forward; an iterator, which can't be put back; a source of random
numbers."""


class StateName(NamedTuple):
    """A name by which code reads a state: an attribute, or, with a `file`, a variable there; with a `line`, a parameter
    of the function at that line."""

    name: str
    file: str = ""
    line: int = 0
    kind: str = CHANGED


class Binding(NamedTuple):
    """A name with a value outside a module: in a dictionary of variables, a cell, or a class; a default argument has no
    `place`, since no code can replace it."""

    place: dict | CellType | type | None
    name: StateName
    default: Any = None

    @property
    def key(self) -> tuple[int, str]:
        """What it is known by: two bindings of a key have one value."""
        return id(self.place if self.place is not None else self.default), self.name.name

    def value(self) -> Any:
        """Return the value now; `ABSENT` if there is none."""
        match self.place:
            case None:
                return self.default
            case dict():
                return self.place.get(self.name.name, ABSENT)
            case CellType():
                try:
                    return self.place.cell_contents
                except ValueError:
                    return ABSENT
            case _:
                return vars(self.place).get(self.name.name, ABSENT)

    def put(self, value: Any) -> None:
        """Give the name a value, or take it away."""
        match self.place:
            case dict() if value is ABSENT:
                self.place.pop(self.name.name, None)
            case dict():
                self.place[self.name.name] = value
            case CellType() if value is ABSENT:
                del self.place.cell_contents
            case CellType():
                self.place.cell_contents = value
            case type() if value is ABSENT:
                delattr(self.place, self.name.name)
            case type():
                setattr(self.place, self.name.name, value)


@lru_cache(maxsize=4096)
def is_own(file: str) -> bool:
    """Return whether a file of code belongs to no library."""
    return not file.startswith((*_LIBRARIES, "<frozen")) and not {"site-packages", "dist-packages"} & {
        *file.split(os.sep)
    }


@lru_cache(maxsize=4096)
def is_own_module(name: str) -> bool:
    """Return whether a module of Python belongs to no library; one without a file is of a notebook or a shell."""
    if name in sys.builtin_module_names or name not in sys.modules:
        return False
    file = getattr(sys.modules[name], "__file__", None)
    return file is None or is_own(file)


def is_own_class(kind: type) -> bool:
    """Return whether a class belongs to no library."""
    functions = [value for value in vars(kind).values() if isinstance(value, FunctionType)]
    if functions:
        return any(is_own(function.__code__.co_filename) for function in functions)
    return is_own_module(kind.__module__)


def outer_values(module: nn.Module) -> list[Binding]:
    """Return the names outside a module by which its own code reads values, each once."""
    walk = _Walk()
    for kind in {type(part) for part in module.modules()}:
        walk.visit(kind)
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, (FunctionType, MethodType)):
                walk.visit(value)
    walk.run()
    return [*{binding.key: binding for binding in walk.bindings}.values()]


class _Walk:
    """A walk over functions and classes, from one to those that it names."""

    def __init__(self):
        self.bindings: list[Binding] = []
        self._known: set[int] = set()
        self._waiting: list[FunctionType | type] = []

    def visit(self, value: Any) -> bool:
        """Walk on from a value if it is a function, a method or a class; return whether it is one."""
        if isinstance(value, (MethodType, staticmethod, classmethod)):
            value = value.__func__
        elif isinstance(value, (partial, partialmethod)):
            value = value.func
        elif isinstance(value, CACHED):
            value = value.__wrapped__
        if not isinstance(value, (FunctionType, type)):
            return False
        if id(value) not in self._known:
            self._known.add(id(value))
            self._waiting.append(value)
        return True

    def run(self) -> None:
        """Walk until all are visited."""
        for _ in range(MAX_FUNCTIONS):
            if not self._waiting:
                return
            value = self._waiting.pop()
            if isinstance(value, FunctionType):
                self._function(value)
            else:
                self._class(value)

    def _class(self, kind: type) -> None:
        for base in kind.__mro__:
            if base is not kind:
                self.visit(base)
        if not is_own_class(kind):
            return
        stored: set[str] = set()
        for name, value in vars(kind).items():
            own = value.fget if isinstance(value, property) else value
            if not self.visit(own) and not name.startswith("__"):
                self.bindings.append(Binding(kind, StateName(name)))
            if isinstance(value, FunctionType):
                stored |= stored_names(value.__code__)
        self.bindings += [Binding(kind, StateName(name)) for name in stored if name not in vars(kind)]

    def _function(self, function: FunctionType) -> None:
        code = function.__code__
        if not is_own(code.co_filename):
            return
        for name in names_in(code):
            self._name(function.__globals__, name, code.co_filename, code)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self._add(Binding(cell, StateName(name, code.co_filename)))
        names = code.co_varnames[: code.co_argcount]
        defaults = function.__defaults__ or ()
        pairs = [
            *zip(names[len(names) - len(defaults) :], defaults, strict=True),
            *(function.__kwdefaults__ or {}).items(),
        ]
        for name, value in pairs:
            self._add(Binding(None, StateName(name, code.co_filename, code.co_firstlineno), value))
        if vars(function):
            self.bindings += [Binding(vars(function), StateName(name)) for name in vars(function)]

    def _name(self, variables: dict, name: str, file: str, code: CodeType) -> None:
        value = variables.get(name, ABSENT)
        if isinstance(value, ModuleType) and is_own_module(value.__name__):  # its variables are attributes of it here
            self.bindings += [Binding(vars(value), StateName(own)) for own in names_in(code) if own in vars(value)]
        elif value is not ABSENT or name in stored_names(code):
            self._add(Binding(variables, StateName(name, file)))

    def _add(self, binding: Binding) -> None:
        value = binding.value()
        if not self.visit(value):
            if value is not ABSENT:
                self.visit(type(value))
            self.bindings.append(binding)


@lru_cache(maxsize=4096)
def names_in(code: CodeType) -> frozenset[str]:
    """Return the names of variables and attributes in code, and in the functions inside it."""
    inner = (names_in(part) for part in code.co_consts if isinstance(part, CodeType))
    return frozenset(code.co_names).union(*inner)


@lru_cache(maxsize=4096)
def stored_names(code: CodeType) -> frozenset[str]:
    """Return the global variables and the attributes that code gives a value."""
    inner = (stored_names(part) for part in code.co_consts if isinstance(part, CodeType))
    stored = (step.argval for step in dis.get_instructions(code) if step.opname in STORING)
    return frozenset(stored).union(*inner)


def names_of_draws(
    bindings: Iterable[Binding], files: Collection[str], sources: Mapping[str, object]
) -> Iterator[StateName]:
    """Yield the names by which code in some files draws random numbers; `sources` are the objects that do, by the
    modules of Python that lend their methods."""
    variables = {file: vars(module) for module in (*sys.modules.values(),) if (file := _file(module)) in files}
    variables |= {binding.name.file: binding.place for binding in bindings if isinstance(binding.place, dict)}
    for file in files & variables.keys():
        for name, value in (*variables[file].items(),):
            for module, source in sources.items():
                package, _, inner = module.partition(".")
                lends = isinstance(value, (BuiltinMethodType, MethodType)) and value.__self__ is source
                if value is sys.modules[module] or lends:
                    yield StateName(name, file, kind=DRAWS)
                elif inner and value is sys.modules[package]:
                    yield StateName(f"{name}.{inner}", file, kind=DRAWS)


def _file(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else ""
