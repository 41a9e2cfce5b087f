"""What the harness of mistakes found, as lines of text or as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.mutation import Mistake
from tests.mutation.equivalent_mutants import HARMLESS
from tests.mutation.handwritten import LISTED
from tests.mutation.random_mutants import drawn, every
from tests.mutation.rules import is_inside, qualified
from tests.mutation.runner import Trial, tried
from tracer.utils.error_text import quote

BAR = 0.95
"""The least share of the mistakes that were drawn which has to be caught; of those that are listed all."""


def chosen(names: Sequence[str], seed: int) -> tuple[list[Mistake], list[Mistake]]:
    """The mistakes that are listed and those that are drawn: all, or those whose name, file or place is one of `names`.

    At a place, such as "shapes/solver.py:131", are all that can be drawn there. ValueError where there is none.
    """

    named = [rule for rule in LISTED if rule.name in names]
    if named and len(named) == len({*names}):
        return [rule.mistake() for rule in named], []

    def asked(mistake: Mistake) -> bool:
        return not names or any(name in (mistake.name, mistake.file, _place(mistake)) for name in names)

    places = [mistake for mistake in every() if _place(mistake) in names] if any(":" in name for name in names) else []
    listed = [mistake for mistake in (rule.mistake() for rule in LISTED) if asked(mistake)]
    both = listed, list(dict.fromkeys([*filter(asked, drawn(seed=seed)), *places]))
    if not any(both):
        raise ValueError(f"no mistake is called {quote(names[0])}, expected a name, a file or FILE:LINE of one")
    return both


def _place(mistake: Mistake) -> str:
    return f"{mistake.file}:{mistake.line}"


def trials(names: Sequence[str] = (), *, seed: int = 0, jobs: int = 2) -> Iterator[tuple[str, Trial]]:
    """Tries the mistakes: ("listed" or "drawn", what became of it), as they end."""
    listed, others = chosen(names, seed)
    kinds = {**dict.fromkeys(others, "drawn"), **dict.fromkeys(listed, "listed")}
    for trial in tried(kinds, jobs=jobs):
        yield kinds[trial.mistake], trial


def line(trial: Trial) -> str:
    """One mistake, and what caught it."""
    mistake = trial.mistake
    found = trial.caught or f"SURVIVED {trial.tried} models and files of tests{_reason(trial)}"
    return f"{_place(mistake)}  {mistake.name}\n    {found}"


def _reason(trial: Trial) -> str:
    mistake = trial.mistake
    if not mistake.file.endswith(".py"):
        return ""
    line = mistake.text().splitlines()[mistake.line - 1]
    scope = tuple(qualified(mistake.file, mistake.line).split("."))
    known = (
        reason
        for (within, name, part), reason in HARMLESS.items()
        if name == mistake.name and is_inside(scope, within) and part in line
    )
    reason = next(known, "")
    return f"; harmless: {reason}" if reason else ""


def summary(found: Sequence[tuple[str, Trial]]) -> tuple[list[str], bool]:
    """How many were caught of each kind, and whether that is enough."""
    said, enough = [], True
    for kind, least in (("listed", 1.0), ("drawn", BAR)):
        every = [trial for of, trial in found if of == kind]
        if every:
            caught = sum(bool(trial.caught) for trial in every)
            enough = enough and caught >= least * len(every)
            said.append(
                f"{caught} of {len(every)} mistakes that are {kind} were caught; at least {least:.0%} have to be."
            )
    return said, enough


def plain(kind: str, trial: Trial) -> dict[str, Any]:
    """A trial as JSON knows it."""
    mistake = trial.mistake
    where = {"kind": kind, "mistake": mistake.name, "file": mistake.file, "line": mistake.line}
    return {**where, "caught": trial.caught or None, "model": trial.model or None, "models": trial.tried}
