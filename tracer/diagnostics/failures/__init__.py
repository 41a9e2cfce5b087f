"""Explanation of why a forward fails: the call that raised, what does not fit in it, and the repairs with which it runs
to its end."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice

import torch

from tracer.diagnostics.failures import (  # noqa: F401 # which have moves
    repair_calls,
    repair_constructors,
    repair_lines,
    repair_masks,
)
from tracer.diagnostics.failures.clashes import clash_of
from tracer.diagnostics.failures.explanation import Explanation, Fix, Operand
from tracer.diagnostics.failures.failure_site import FailureSite, line_of, locate_failure, modules_of, root_call
from tracer.diagnostics.failures.python_errors import sentence_of
from tracer.diagnostics.failures.repair_tables import cut_what_is_written
from tracer.diagnostics.failures.state_dicts import transpose_what_is_transposed
from tracer.diagnostics.failures.trials import (
    MAX_TRIALS,
    Candidate,
    Clash,
    Scene,
    Shapes,
    Trials,
    repairs,
    run_text,
    solve_shapes,
)
from tracer.record import Trace
from tracer.tracing import FailedRun, assemble, name_of, of_caller, trace
from tracer.utils.errors import quote, reason
from tracer.utils.files import Edit, apply_edits, line_edits

__all__ = ["Edit", "Explanation", "Fix", "Operand", "explain", "run_text"]

LAST = 3
"""Lines before the failure that are shown."""
FIRSTS = 12
"""Most repairs that lead past a failure and are the first of two."""
MAX_FIRSTS = 48
"""Most repairs that are tried as the first of two."""
ELSEWHERE_COST = 0.3
"""What the second of two repairs costs besides that does not lead back from the first, as another transpose does."""
MESSAGES = 3
"""Other sizes at which the error is shown."""
ROLES = ("the first operand", "the second operand", "the third operand")


def explain(error: BaseException) -> Explanation:
    """Explain why a forward failed: what does not fit, in numbers and symbols, where, and which repairs run to the end.

    `error` is what `tracer.trace` raised, or what a plain call of a module raised: the module is then run once more, to
    record it. The failing code is run at other sizes, so that shapes are solved in symbols, and each repair is tried on
    a copy, at two sizes. The module, its classes and its parameters stay as they are.

    Raises:
        ValueError: The error did not come from a forward or from the constructor of a module.

    Examples:
        >>> import torch, tracer
        >>> layer = torch.nn.Sequential(torch.nn.Linear(8, 24), torch.nn.Linear(32, 8))
        >>> try:
        ...     layer(torch.randn(2, 8))
        ... except RuntimeError as error:
        ...     why = tracer.explain(error)
        >>> why.module, why.operands[0].symbols()
        ('1', '[B, ▸24◂]')
    """
    if not isinstance(error, BaseException):
        raise ValueError(f"{quote(error)} can't be explained, expected the error that a forward raised")
    with warnings.catch_warnings():  # the same ones at each trial
        warnings.simplefilter("ignore")
        return _explain(error)


def _explain(error: BaseException) -> Explanation:
    original, run = _failed_run(error)
    site, line = locate_failure(original), line_of(original)
    if (
        site is None and run is not None and (caller := locate_failure(error)) is not None
    ):  # only modules of PyTorch ran
        site = replace(caller, modules=modules_of(original), own=0)
    if site is None and run is None:
        raise ValueError(f"{quote(error)} did not come from a forward, so there is nothing to explain")
    if run is None or site is None:
        return _of_python(original, site, run)
    shapes = solve_shapes(run, line)
    scene = Scene(run, original, site, shapes)
    clash = clash_of(scene)
    trials = Trials(run, site, shapes, line)
    candidates = list(repairs(scene, *([clash] if clash else _guesses(scene))))
    fixes = trials.choose(candidates)
    if clash is None:
        sentence = sentence_of(original, site)
        clash = Clash(sentence.kind, sentence.message, {}, tuple(scene.tensors[: len(ROLES)]))
    elif not fixes:
        trials.limit += MAX_TRIALS
        fixes = trials.choose(list(_pairs(scene, trials, candidates)))
    run_so_far = _trace(run, shapes)
    return Explanation(
        clash.kind,
        clash.message[:1].upper() + clash.message[1:] if not clash.message.startswith("`") else clash.message,
        f"{type(original).__name__}: {reason(original)}",
        scene.path,
        site.source,
        site.span,
        run_so_far.steps[-LAST:],
        tuple(
            scene.operand(tensor, ROLES[min(n, len(ROLES) - 1)], clash.axes.get(id(tensor), ()))
            for n, tensor in enumerate(dict.fromkeys(clash.tensors))
        ),
        tuple(fixes),
        trials.attempts,
        shapes.messages[:MESSAGES],
        tuple(filter(None, [shapes.note])),
        run_so_far,
    )


def _failed_run(error: BaseException) -> tuple[BaseException, FailedRun | None]:
    """Return the error of the user's code and the run that it ended, by tracing the module once more if nobody did."""
    holder: BaseException | None = error
    while holder is not None:
        if "failed_run" in vars(holder):
            return holder, vars(holder)["failed_run"]
        holder = holder.__cause__
    if (call := root_call(error)) is None:
        return error, None
    module, args, kwargs = call
    try:
        with torch.no_grad():
            trace(module, *args, **kwargs)
    except Exception as again:
        if "failed_run" in vars(again):
            return again, vars(again)["failed_run"]
    return error, None


def _of_python(error: BaseException, site: FailureSite | None, run: FailedRun | None) -> Explanation:
    """Return the explanation of an error before the forward began, or outside of the user's code."""
    text = f"{type(error).__name__}: {reason(error)}"
    if site is None:
        message = f"The forward was refused before its first line: {reason(error)}."
        return Explanation("call", message, text)
    sentence = sentence_of(error, site)
    fixes: tuple[Fix, ...] = ()
    for repair in (transpose_what_is_transposed, cut_what_is_written):
        with suppress(Exception):  # code of an unforeseen form: the sentence stands
            fixes += tuple(repair(error, site))
    return Explanation(sentence.kind, sentence.message, text, "", site.source, site.span, fixes=fixes)


def _guesses(scene: Scene) -> Iterator[Clash]:
    """Yield what may be wrong with a call that no rule covers: another order of axes, another dtype, another layer."""
    yield Clash("refusal", "", {})
    if scene.tensors:
        yield from (Clash(kind, "", {}, tuple(scene.tensors)) for kind in ("product", "broadcast", "dtype"))


def _pairs(scene: Scene, trials: Trials, candidates: list[Candidate]) -> Iterator[Candidate]:
    """Yield repairs at two positions: the first leads past the failure, the second repairs the next one."""
    site = scene.site
    plain = [first for first in candidates if first.replace is None and not first.sizes and first.edits]
    plain = [first for first in plain if all(edit.file == site.file for edit in first.edits)]
    tried = sorted(plain, key=lambda first: first.cost)[:MAX_FIRSTS]
    failures = ((first, failure) for first in tried if (failure := trials.failure(first)) is not None)
    for first, (error, run) in islice(failures, FIRSTS):
        text = apply_edits(site.lines, first.edits)
        there = locate_failure(error)
        if there is None or len(text.splitlines()) != len(site.lines):
            continue
        edited = tuple(text.splitlines(keepends=True))
        after = Scene(run, error, replace(there, text=edited), Shapes(trials.shapes.sizes))
        with suppress(Exception):  # a rule on code of another form: the other repairs stand
            clash = clash_of(after)
            for second in repairs(after, clash, edits=("call", "operand")) if clash else ():
                edits = line_edits(site.file, site.lines, apply_edits(list(edited), second.edits))
                back = any(edit.text in new.text for edit in first.edits for new in second.edits)
                cost = first.cost + second.cost + ELSEWHERE_COST * (not back)
                yield Candidate(f"{first.message}, and {second.message}", cost, edits)


def _trace(run: FailedRun, shapes: Shapes) -> Trace:
    """Return the run so far with its shapes in symbols."""
    sizes = shapes.sizes if shapes.solution is not None else {}
    facts = {"model": name_of(run.module), "sizes": sizes, "derived": {}, "solution": shapes.solution}
    return of_caller(assemble(run.module, run.recording, **facts))  # type: ignore[arg-type] # the facts by name
