"""Evaluation of a note on its runs: for each statement the op that ran, the measurement, and a verdict."""

from __future__ import annotations

from typing import NamedTuple

from tracer.lessons.notes.finding import Finding, Verdict
from tracer.lessons.notes.lookup import look
from tracer.lessons.notes.reference_runs import STANDARD, Provider
from tracer.lessons.notes.statements import StatementRow, rows
from tracer.utils.progress import tell

VERDICT_ORDER: tuple[Verdict, ...] = ("not", "sense", "holds", "elsewhere")


class StatementResult(NamedTuple):
    """A statement, and all of its results."""

    row: StatementRow
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """Worst verdict of the results."""
        return min((finding.verdict for finding in self.findings), key=VERDICT_ORDER.index)

    @property
    def slips(self) -> tuple[str, ...]:
        """Differences between the note and the run, a sentence each."""
        return tuple(finding.slip for finding in self.findings if finding.slip and finding.verdict != "holds")


def read(note: str, run: Provider) -> tuple[StatementResult, ...]:
    """Return all statements of a note, looked up in the runs that `run` returns."""
    results, all_rows = [], rows(note)
    for at, row in enumerate(all_rows):
        tell(at, len(all_rows), "statement")
        results.append(result(row, run))
    return tuple(results)


def result(row: StatementRow, run: Provider) -> StatementResult:
    """Return the results of one statement."""
    return StatementResult(row, tuple(look(row, place, run) for place in row.where))


def runs_of(note: str) -> tuple[str, ...]:
    """Return the runs that a note's rows name, in order."""
    named = dict.fromkeys(row.run for row in rows(note))
    return tuple("torchvision" if name == STANDARD else name for name in named)
