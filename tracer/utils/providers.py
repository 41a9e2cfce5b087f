"""Functions that lie above their callers: registered by name from above, imported when they are called.

The methods of a trace, such as `trace.film()`, lead to packages above the record. `tracer/__init__.py` registers them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

_PATHS: dict[str, str] = {}


def register_providers(paths: Mapping[str, str]) -> None:
    """Register functions by name: `{"film": "tracer.figures.film:film"}`."""
    _PATHS.update(paths)


def provider(name: str) -> Callable:
    """Return the function of a name. Raise KeyError for a name that nobody registered."""
    module, _, function = _PATHS[name].partition(":")
    return getattr(import_module(module), function)
