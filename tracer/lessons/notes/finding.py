"""Result of looking up a statement of a note in a run."""

from __future__ import annotations

from typing import Literal, NamedTuple

from tracer.export.math_labels import scientific, shape_numbers
from tracer.record import Step
from tracer.symbols import notation

Verdict = Literal["holds", "sense", "not", "elsewhere"]
"""What is said of a statement as it stands: that it holds, that it does if it is read as a sentence beside it says,
that it does not; or that another page runs it."""


class Finding(NamedTuple):
    """One result of a statement.

    It has the op that ran and the measurement, in markdown, whether that agrees with the statement, and its location: a
    page, its query parameters, and the element to look for there, if the address does not lead to it. `latex` is the
    equation of a step. `slip` is a sentence on the difference between the note and the run.
    """

    what: str
    measured: str
    verdict: Verdict = "holds"
    latex: str = ""
    slip: str = ""
    page: str = ""
    place: tuple[tuple[str, str], ...] = ()
    control: str = ""


def shape_markdown(symbolic: tuple[str, ...] | None, shape: tuple[int, ...]) -> str:
    """Return a shape in symbols and in numbers, in markdown."""
    symbols = f"${notation.shape_latex(symbolic)}$ = " if symbolic and "?" not in symbolic else ""
    return f"{symbols}{shape_numbers(shape)}"


def agreement(step: Step) -> str:
    """Return the agreement of an equation with the run, in a few words."""
    if step.refuted:
        return f"disproven: {step.replayed}"
    if step.error is None:
        return step.verdict
    return "exactly as in the run" if step.error == 0 else f"largest difference {scientific(step.error)}"
