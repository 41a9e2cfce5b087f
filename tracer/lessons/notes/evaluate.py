"""Evaluation of a note on its runs: for each statement the op that ran, the measurement, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tracer.lessons.notes.finding import Finding, Verdict
from tracer.lessons.notes.lookup import look
from tracer.lessons.notes.reference_runs import Provider
from tracer.lessons.notes.statements import StatementRow
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


def results(wanted: Sequence[StatementRow], run: Provider) -> tuple[StatementResult, ...]:
    """Return the results of statements, looked up in the runs that `run` returns."""
    looked_up = []
    for at, row in enumerate(wanted):
        tell(at, len(wanted), "statement")
        looked_up.append(result(row, run))
    return tuple(looked_up)


def result(row: StatementRow, run: Provider) -> StatementResult:
    """Return the results of one statement."""
    return StatementResult(row, tuple(look(row, place, run) for place in row.where))
