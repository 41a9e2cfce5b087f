"""Imports on first use: modules, the files of a folder, and the methods of a trace that stand above it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

# Modules that are imported when they are first used: a page is drawn, and `--help` answers, before torch is loaded.


class LazyModule(ModuleType):
    """Stand-in for a module, which is imported once one of its attributes is asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


def lazy_import(name: str) -> Any:
    """Return a module that is imported when one of its attributes is first used; ImportError is raised then."""
    return LazyModule(name)


def import_folder(package: str) -> dict[str, ModuleType]:
    """Import the files of a package and return them by name: a file that is added is found by itself."""
    files = iter_modules(import_module(package).__path__)
    return {file.name: import_module(f"{package}.{file.name}") for file in files}


# Functions that lie above their callers: registered by name from above, imported when they are called.
#
# The methods of a trace, such as `trace.film()`, lead to packages above the record. `tracer/__init__.py` registers
# them.

_PATHS: dict[str, str] = {}


def register_providers(paths: Mapping[str, str]) -> None:
    """Register functions by name: `{"film": "tracer.figures.film:film"}`."""
    _PATHS.update(paths)


def provider(name: str) -> Callable:
    """Return the function of a name. Raise KeyError for a name that nobody registered."""
    module, _, function = _PATHS[name].partition(":")
    return getattr(import_module(module), function)
