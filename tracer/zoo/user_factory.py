"""A user's own module by name, `package.file:factory` or `FILE.py:factory`: its whole-number arguments are the symbols.

The factory returns `(module, args)` or `(module, args, kwargs)`. Its arguments that have whole numbers for defaults,
such as `def small(B=1, T=5, D=8)`, are sizes: called with others it builds the same module at other sizes, and that is
how every dimension is solved.
"""

from __future__ import annotations

import importlib
import inspect
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

import torch

from tracer.capture import Recording
from tracer.capture.interventions import Intervention
from tracer.changes import Change
from tracer.diagnostics.failures import run_text
from tracer.record import Trace
from tracer.shapes import Vocabulary
from tracer.tracing import FailedRun, assemble, lay_book, note_origin, of_caller, record_or_explain, solve_first
from tracer.tracing.changed_runs import LineSite, changing_build, interventions_of, line_sites
from tracer.utils.error_text import quote

PROBES = 4
TRIES = 400
FACTORS = (2, 3, 4, 5, 6, 7, 9, 10, 11, 13)
TRACER = str(Path(__file__).resolve().parents[1])
SHIFTS = tuple(range(1, 30))


class OwnCodeError(ValueError):
    """An error of the user's own code, which is its `__cause__`; `tracer.explain` explains it."""


def factory(reference: str) -> Callable:
    """Import the function `package.file:name`, from the working directory, or that of `FILE.py:name`. Raise ValueError
    if that fails."""
    path, colon, name = reference.rpartition(":")
    if not (colon and path and name.isidentifier()):
        raise ValueError(f"{quote(reference)} names no function, expected package.file:function or FILE.py:function")
    if path.endswith(".py"):
        path = _add_to_search_path(Path(path))
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        raise ValueError(f"{quote(path)} can't be imported: {type(error).__name__}: {error}") from error
    except Exception as error:  # the user's own code runs here, and may fail in any way
        raise OwnCodeError(f"{quote(path)} can't be imported: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{quote(path)} has no function {quote(name)}, expected one that returns (module, args)")
    return function


def _add_to_search_path(file: Path) -> str:
    """Make a file importable; return its name as a module."""
    if not file.is_file():
        raise ValueError(f"there is no file {quote(str(file))}, expected package.file:function or FILE.py:function")
    if (folder := str(file.resolve().parent)) not in sys.path:
        sys.path.insert(0, folder)
    loaded = sys.modules.get(file.stem)
    if loaded is not None and Path(loaded.__file__ or "").resolve() != file.resolve():
        del sys.modules[file.stem]  # a file of the same name in another folder
    return file.stem


def sizes_of(function: Callable) -> dict[str, int]:
    """Return the sizes that a factory takes and their defaults, in order."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
    return {name: value for name, value in defaults.items() if type(value) is int and value > 0}


def trace(
    reference: str, *, primitives: bool = False, change: Mapping[str, Change] | None = None, **size: int
) -> Trace:
    """Run the module of a factory once, at its default sizes or the ones passed, without gradients.

    `change` replaces the values of lines, as in `tracer.trace`. ValueError in one sentence for a size that the factory
    does not take; `OwnCodeError` where the user's code fails.
    """
    return trace_function(factory(reference), reference, primitives=primitives, change=change, **size)


def trace_function(
    function: Callable,
    reference: str,
    *,
    primitives: bool = False,
    change: Mapping[str, Change] | None = None,
    **size: int,
) -> Trace:
    """Run the module of a factory, called `reference`, as `trace` does."""
    sizes = sizes_of(function)
    for name in size:
        if name not in sizes:
            known = (
                f"its sizes are {', '.join(sizes)}" if sizes else "it has no argument with a whole number for default"
            )
            raise ValueError(f"{quote(reference)} takes no size {quote(name)}; {known}")
    sizes |= size

    def unpack(returned: Any) -> tuple:
        if not (isinstance(returned, tuple) and len(returned) in (2, 3) and isinstance(returned[0], torch.nn.Module)):
            raise ValueError(f"{quote(reference)} returned {type(returned).__name__}, expected (module, args)")
        args = returned[1] if isinstance(returned[1], (tuple, list)) else (returned[1],)
        return returned[0], tuple(args), *returned[2:]

    def build(at: dict[str, int]):
        return unpack(function(**at))

    def rebuild(at: dict[str, int], text: str) -> tuple:
        edited = run_text(text, file, function.__module__)
        return unpack(getattr(edited, function.__name__)(**at))

    def lines_of(interventions: tuple[Intervention, ...]) -> dict[str, LineSite]:
        module, args, *named = changing_build(build, interventions)(sizes)
        recording = record_or_explain(module, args, named[0] if named else {}, None, False, calls=True)
        return line_sites(recording, lay_book(recording, sizes, {}, None, ())[0].steps)

    file = function.__code__.co_filename if inspect.isfunction(function) else ""
    origin: dict[str, Any] = {"sizes": sizes, "build": build, "file": file, "rebuild": rebuild if file else None}
    try:
        with torch.no_grad():
            if change:
                build = changing_build(build, interventions_of(change, lines_of))
            module, args, *named = build(sizes)
            size = named[0] if named else {}
            recording = record_or_explain(module, args, size, None, True, primitives, calls=True)
    except Exception as error:
        if isinstance(error, ValueError) and is_refusal(error):
            raise
        if "failed_run" not in vars(error):  # the factory failed: there is no module yet
            vars(error)["failed_run"] = FailedRun(torch.nn.Module(), Recording())
        note_origin(error, **origin)
        raise OwnCodeError(f"{quote(reference)} failed: {type(error).__name__}: {_first(error)}") from error
    vocabulary = Vocabulary(tuple(sizes), {}, build)
    with torch.no_grad():
        probes = list(islice(probes_of(vocabulary, sizes, bool(primitives)), PROBES)) if sizes else []
        solution, notes = solve_first(recording, sizes, [(vocabulary, probes)] if sizes else (), module)
    facts: dict[str, Any] = {"sizes": sizes, "derived": {}, "solution": solution, "notes": notes}
    facts["changes"] = tuple(f"{line}={line_change}" for line, line_change in (change or {}).items())
    return of_caller(assemble(module, recording, model=reference, **facts))


def probes_of(vocabulary: Vocabulary, sizes: dict[str, int], primitives: bool) -> Iterator[dict[str, int]]:
    """Return other sizes at which the module runs, all distinct: near the run's, or multiples, since some may have to
    divide others."""
    draw, probes = random.Random(0), [sizes]
    for attempt in range(TRIES):
        change = (
            (lambda size: size * draw.choice(FACTORS)) if attempt % 2 else (lambda size: size + draw.choice(SHIFTS))
        )
        changed = {name: change(size) for name, size in sizes.items()}
        if len({*changed.values(), *sizes.values()}) < len(changed) + len({*sizes.values()}):
            continue
        if any(changed[name] == before[name] for before in probes for name in sizes):  # the last one is to be predicted
            continue
        if prod(changed.values()) > 10_000 * prod(sizes.values()):
            continue
        try:
            vocabulary.probe(changed, primitives=primitives)
        except Exception:  # sizes that don't fit together: others will
            continue
        probes.append(changed)
        yield changed


def is_refusal(error: ValueError) -> bool:
    """Return whether an error is one of the tracer's sentences rather than one of the user's code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (
        trace is not None and trace.tb_frame.f_code.co_filename.startswith(TRACER) and "failed_run" not in vars(error)
    )


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
