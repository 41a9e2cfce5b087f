"""Modules that are imported when they are first used: a page is drawn, and `--help` answers, before torch is loaded."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """Stand-in for a module, which is imported once one of its attributes is asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


def lazy_import(name: str) -> Any:
    """Return a module that is imported when one of its attributes is first used; ImportError is raised then."""
    return LazyModule(name)
