"""Findings of the harness of mutants, as lines of text or as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.mutation import Mutant
from tests.mutation.equivalent_mutants import HARMLESS
from tests.mutation.handwritten import HANDWRITTEN_RULES
from tests.mutation.random_mutants import all_mutants, draw_mutants
from tests.mutation.rules import is_inside, qualified_name
from tests.mutation.runner import Trial, try_mutants
from tracer.utils.errors import quote

MIN_SHARE = 0.95
"""The least share of the mutants that were drawn which has to be caught; of those that are listed all."""


def select_mutants(names: Sequence[str], seed: int) -> tuple[list[Mutant], list[Mutant]]:
    """Return the handwritten and the random mutants: all, or those whose name, file or position is one of `names`.

    At a place, such as "shapes/solver.py:131", are all that can be drawn there. ValueError where there is none.
    """

    named = [rule for rule in HANDWRITTEN_RULES if rule.name in names]
    if named and len(named) == len({*names}):
        return [rule.mutant() for rule in named], []

    def is_named(mutant: Mutant) -> bool:
        return not names or any(name in (mutant.name, mutant.file, _place(mutant)) for name in names)

    places = (
        [mutant for mutant in all_mutants() if _place(mutant) in names] if any(":" in name for name in names) else []
    )
    listed = [mutant for mutant in (rule.mutant() for rule in HANDWRITTEN_RULES) if is_named(mutant)]
    both = listed, list(dict.fromkeys([*filter(is_named, draw_mutants(seed=seed)), *places]))
    if not any(both):
        raise ValueError(f"no mutant is called {quote(names[0])}, expected a name, a file or FILE:LINE of one")
    return both


def _place(mutant: Mutant) -> str:
    return f"{mutant.file}:{mutant.line}"


def run_trials(names: Sequence[str] = (), *, seed: int = 0, jobs: int = 2) -> Iterator[tuple[str, Trial]]:
    """Try the mutants and yield ("listed" or "drawn", the outcome), as they end."""
    listed, others = select_mutants(names, seed)
    kinds = {**dict.fromkeys(others, "drawn"), **dict.fromkeys(listed, "listed")}
    for trial in try_mutants(kinds, jobs=jobs):
        yield kinds[trial.mutant], trial


def format_trial(trial: Trial) -> str:
    """Format one mutant, and the check that caught it."""
    mutant = trial.mutant
    found = trial.caught or f"SURVIVED {trial.tried} models and files of tests{_reason(trial)}"
    return f"{_place(mutant)}  {mutant.name}\n    {found}"


def _reason(trial: Trial) -> str:
    mutant = trial.mutant
    if not mutant.file.endswith(".py"):
        return ""
    line = mutant.text().splitlines()[mutant.line - 1]
    scope = tuple(qualified_name(mutant.file, mutant.line).split("."))
    known = (
        reason
        for (within, name, part), reason in HARMLESS.items()
        if name == mutant.name and is_inside(scope, within) and part in line
    )
    reason = next(known, "")
    return f"; harmless: {reason}" if reason else ""


def summarize(found: Sequence[tuple[str, Trial]]) -> tuple[list[str], bool]:
    """Summarize how many of each kind were caught, and whether that is enough."""
    said, enough = [], True
    for kind, least in (("listed", 1.0), ("drawn", MIN_SHARE)):
        every = [trial for of, trial in found if of == kind]
        if every:
            caught = sum(bool(trial.caught) for trial in every)
            enough = enough and caught >= least * len(every)
            said.append(
                f"{caught} of {len(every)} mutants that are {kind} were caught; at least {least:.0%} have to be."
            )
    return said, enough


def trial_as_json(kind: str, trial: Trial) -> dict[str, Any]:
    """Return a trial as JSON types."""
    mutant = trial.mutant
    where = {"kind": kind, "mutant": mutant.name, "file": mutant.file, "line": mutant.line}
    return {**where, "caught": trial.caught or None, "model": trial.model or None, "models": trial.tried}
