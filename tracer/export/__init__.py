"""A trace as text: one format per file `to_*.py`, discovered by its name.

Such a file is named after its format, lists the `SUFFIXES` of its files, and has one function `render(trace, level) ->
str`; one that people read also takes the letters of its steps. Levels, from the outside in: `"modules"` (as the forward
hooks saw them), `"steps"` (the lines of the textbook), `"calls"` (the composite ops that PyTorch was asked for),
`"ops"` (the ops that it ran) and `"primitives"` (the decompositions of those ops); `"costs"` adds them up by the parts
of a block.
"""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from tracer.utils.errors import quote, require
from tracer.utils.lazy_import import lazy_import

if TYPE_CHECKING:
    import pandas

    from tracer.export import letters as texts
    from tracer.export import rows
    from tracer.record import Trace
else:  # imported when first used
    rows, texts = lazy_import("tracer.export.rows"), lazy_import("tracer.export.letters")

OURS = "ours"
"""Letters of this project, in which all formats write where none are chosen."""
LEVELS = ("modules", "steps", "calls", "ops", "primitives", "costs")
FORMATS = tuple(module.name.removeprefix("to_") for module in iter_modules(__path__) if module.name.startswith("to_"))


def render(trace: Trace, level: str = "steps", format: str = "table", letters: str = OURS) -> str:
    """Return the trace in one of `FORMATS`, as text that ends with a newline; its steps in the letters of a text.

    Raise ValueError for an unknown level or format, for a level that the trace lacks, and for letters of a text that
    has none, or where the names are read by programs.
    """
    check_level(level, trace)
    check_letters(letters, level, format)
    if format not in FORMATS:
        raise ValueError(f"{quote(format)} is not a format, expected one of {', '.join(FORMATS)}")
    more = () if letters == OURS else (texts.letters_of(trace, letters),)
    return _format(format).render(trace, level, *more).rstrip("\n") + "\n"


def table(trace: Trace, level: str = "ops") -> pandas.DataFrame:
    """Return the trace as a data frame with one row for each item of the level.

    A missing layer or error is a missing value. Raise ModuleNotFoundError with the package to install if pandas is
    missing.
    """
    check_level(level, trace)
    pandas = require("pandas", "trace.table()")  # takes long, and not every view needs it
    frame = pandas.DataFrame(rows.rows(trace, level), columns=rows.COLUMNS[level])
    return frame.astype({"layer": "Int64"}) if level == "steps" else frame


def html(trace: Trace) -> str:
    """Return the steps as one piece of HTML, for notebooks and files: no scripts, nothing loaded from elsewhere."""
    return render(trace, "steps", "html")


def format_of(path: str) -> str | None:
    """Return the format of a file's suffix, or None."""
    return next((name for name in FORMATS if path.lower().endswith(_format(name).SUFFIXES)), None)


def suffixes() -> str:
    """Return the suffixes that have a format, for a message."""
    return ", ".join(suffix for name in FORMATS for suffix in _format(name).SUFFIXES)


def _format(name: str):
    return import_module(f"{__name__}.to_{name}")


def check_letters(letters: str, level: str, format: str) -> None:
    """Raise ValueError for letters of a text that has none, and for a view that has ours alone."""
    if letters == OURS:
        return
    texts.check_text(letters)
    printed = [name for name in FORMATS if "letters" in signature(_format(name).render).parameters]
    if level != "steps" or format not in printed:
        raise ValueError(
            f"letters {quote(letters)} with level {quote(level)} and format {quote(format)}: letters of a text are for "
            f"steps that people read, expected level 'steps' and format {' or '.join(map(quote, printed))}"
        )


def check_level(level: str, trace: Trace | None = None) -> None:
    """Raise ValueError for an unknown level, or one that the trace does not have."""
    if level not in LEVELS:
        raise ValueError(f"{quote(level)} is not a level, expected one of {', '.join(LEVELS)}")
    if level == "primitives" and trace is not None and trace.ops and not trace.decompositions:
        raise ValueError(
            f"this trace of {quote(trace.model)} was made without primitives: `python -m tracer trace NAME --level "
            "primitives --out FILE`, or primitives=True in Python, makes one that has them"
        )
    if level in ("modules", "calls") and trace is not None and trace.ops and not getattr(trace, level):
        raise ValueError(
            f"this trace of {quote(trace.model)} was made without {level}: run the model again for one that has them"
        )
