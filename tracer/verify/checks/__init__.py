"""Checks of a trace's contents besides its steps, by code that shares nothing with the library's.

Every file below this folder that has `problems(run)` is one check, found by itself: it yields a sentence for each thing
that is wrong. Of the product it uses only what is to be checked; all else is NumPy, Pillow and plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages


def names() -> tuple[str, ...]:
    """Return the names of the checks, in alphabetical order."""
    modules = (module.name.removeprefix(f"{__name__}.") for module in walk_packages(__path__, f"{__name__}."))
    return tuple(name for name in sorted(modules) if hasattr(import_module(f"{__name__}.{name}"), "problems"))


def problems(model, inputs, trace) -> Iterator[str]:
    """Yield the errors that the checks find in `trace`, the run of a model on `inputs`."""
    from tracer.verify.checks.reference_run import plain  # loads torch

    run = plain(model, inputs, trace)
    for name in names():
        for problem in import_module(f"{__name__}.{name}").problems(run):
            yield f"{name.rpartition('.')[2]}: {problem}"
