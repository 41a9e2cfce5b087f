"""A trace as text: one format per file `to_*.py`, found by itself.

Such a file is named after its format, says which `SUFFIXES` its files have, and has one function
`render(trace, level) -> str`. Levels: `"steps"` (the lines of the textbook) and `"ops"` (what PyTorch ran).
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas

    from tracer.record import Trace

LEVELS = ("steps", "ops", "primitives")
FORMATS = tuple(module.name.removeprefix("to_") for module in iter_modules(__path__) if module.name.startswith("to_"))


def render(trace: Trace, level: str = "steps", format: str = "table") -> str:
    """The trace in one of `FORMATS`, as text that ends with a newline. ValueError for an unknown level or format."""
    check_level(level)
    if format not in FORMATS:
        raise ValueError(f"{format!r} is not a format, expected one of {', '.join(FORMATS)}")
    return _format(format).render(trace, level).rstrip("\n") + "\n"


def table(trace: Trace, level: str = "ops") -> pandas.DataFrame:
    """The trace as a data frame, one row per step or op; a missing layer or error is a missing value."""
    import pandas

    from tracer.views import rows

    check_level(level)
    frame = pandas.DataFrame(rows.rows(trace, level), columns=rows.columns(level))
    return frame.astype({"layer": "Int64"}) if level == "steps" else frame


def html(trace: Trace) -> str:
    """The steps as one piece of HTML, for notebooks and files: no scripts, nothing loaded from elsewhere."""
    return render(trace, "steps", "html")


def format_of(path: str) -> str | None:
    """The format that a file's suffix asks for, or None."""
    return next((name for name in FORMATS if path.lower().endswith(_format(name).SUFFIXES)), None)


def suffixes() -> str:
    """The suffixes that say a format, for a message."""
    return ", ".join(suffix for name in FORMATS for suffix in _format(name).SUFFIXES)


def _format(name: str):
    return import_module(f"{__name__}.to_{name}")


def check_level(level: str) -> None:
    """ValueError for a level that can't be shown."""
    if level not in LEVELS:
        raise ValueError(f"{level!r} is not a level, expected one of {', '.join(LEVELS)}")
    if level == "primitives":
        raise ValueError("level 'primitives' can't be shown yet, expected 'steps' or 'ops'")
