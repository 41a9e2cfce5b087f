"""Shapes written into a copy of a module's source: comments, or annotations of `jaxtyping`.

Nothing is read from the code alone. The forward runs at several sizes, the shape of every value that it assigns is
recorded by its line, and each dimension is the formula over the symbols that fits all runs and predicts one more.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from tracer.diagnostics.annotations.local_shapes import LocalShapes, Values, observe
from tracer.diagnostics.annotations.source_edits import with_comments, with_jaxtyping
from tracer.shapes import UNKNOWN, Vocabulary
from tracer.shapes.solver import Solver
from tracer.utils.error_text import quote, reason
from tracer.zoo import user_factory

STYLES: dict[str, Callable[[str, dict], str]] = {"comments": with_comments, "jaxtyping": with_jaxtyping}


def annotate(reference: str, style: str = "comments") -> str:
    """Return the source of the file that `FILE.py:factory` or `package.file:factory` names, with shapes in it.

    `factory()` returns `(module, args)`, and its arguments with whole numbers for defaults are the symbols. The file
    itself is left alone. Raise ValueError in one sentence for a style or a factory that there is not, and where the
    module does not run.
    """
    if style not in STYLES:
        raise ValueError(f"{quote(style)} is not a style, expected {' or '.join(STYLES)}")
    file, function = source_of(reference)
    sizes = user_factory.sizes_of(function)
    vocabulary = Vocabulary(tuple(sizes), {}, lambda at: _build(reference, function, at))
    runs = [sizes]
    if sizes:
        with torch.no_grad():
            runs += islice(user_factory.probes_of(vocabulary, sizes, False), user_factory.PROBES)
    shapes = [_run(reference, function, file, at) for at in runs]
    names = tuple(sizes) if len(runs) > 2 else ()
    return STYLES[style](file.read_text(encoding="utf-8"), _solve_shapes(shapes, names, runs))


def source_of(reference: str) -> tuple[Path, Callable]:
    """Return the file that a reference names, and its factory."""
    function = user_factory.factory(reference)
    file = inspect.getsourcefile(function)
    if file is None:
        raise ValueError(f"the source of {quote(reference)} can't be read, expected a function in a file")
    return Path(file), function


def _build(reference: str, function: Callable, at: dict[str, int]) -> tuple:
    """Build the module of a factory at some sizes, and return it with its arguments and its keyword arguments."""
    built = function(**at)
    if not (isinstance(built, tuple) and len(built) in (2, 3) and isinstance(built[0], torch.nn.Module)):
        raise ValueError(f"{quote(reference)} returned {type(built).__name__}, expected (module, args)")
    args = built[1] if isinstance(built[1], (tuple, list)) else (built[1],)
    return built[0], tuple(args), *(built[2:] or ({},))


def _run(reference: str, function: Callable, file: Path, at: dict[str, int]) -> LocalShapes:
    """Return the shapes of what one run assigns in the lines of a file."""
    try:
        module, args, kwargs = _build(reference, function, at)
        with torch.no_grad():
            return observe(lambda: module(*args, **kwargs), file)
    except ValueError:
        raise
    except Exception as error:  # of the user's own code
        raise ValueError(f"{quote(reference)} failed: {type(error).__name__}: {reason(error)}") from error


def _solve_shapes(runs: list[LocalShapes], names: tuple[str, ...], sizes: list[dict[str, int]]) -> dict[Any, Values]:
    """Return the shapes of the first run with a formula for each dimension; `"?"` where none fits all runs."""
    solver = Solver(names, {}, sizes[:-1], sizes[-1]) if names else None

    def solve(dimension: tuple[int, ...]) -> str:
        if len(set(dimension)) == 1:
            return str(dimension[0])
        return solver.solve(dimension) if solver is not None else UNKNOWN

    solved: dict[Any, Values] = {}
    for place, values in runs[0].items():
        others = [run.get(place) for run in runs[1:]] if names else []
        ranks = [[len(value.shape) for value in values], *([len(v.shape) for v in other or ()] for other in others)]
        if any(rank != ranks[0] for rank in ranks):
            continue
        calls = [values, *(other for other in others if other is not None)]
        symbolic = [
            value._replace(shape=tuple(solve(dimension) for dimension in zip(*(v.shape for v in same), strict=True)))
            for value, *same in ((each[0], *each) for each in zip(*calls, strict=True))
        ]
        solved[place] = tuple(dict.fromkeys(symbolic))
    return solved
