"""Checks of a trace's contents besides its steps, by code that shares nothing with the library's.

Every function of this folder with `@check` is one, found by itself: it yields a sentence for each thing that is wrong.
Of the product it uses only what is to be checked; all else is NumPy, Pillow and plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tracer.utils.lazy_import import import_folder
from tracer.verify.checks.reference_run import plain

_CHECKS: dict[str, Callable] = {}


def check(function: Callable) -> Callable:
    """Register a function as a check of a `PlainRun`, by its name without `check_`."""
    _CHECKS[function.__name__.removeprefix("check_")] = function
    return function


def checks() -> dict[str, Callable]:
    """Return the checks by name, in alphabetical order."""
    import_folder(__name__)
    return dict(sorted(_CHECKS.items()))


def problems(model, inputs, trace) -> Iterator[str]:
    """Yield the errors that the checks find in `trace`, the run of a model on `inputs`."""
    run = plain(model, inputs, trace)
    for name, function in checks().items():
        for problem in function(run):
            yield f"{name}: {problem}"
