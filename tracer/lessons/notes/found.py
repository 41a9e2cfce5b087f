"""What a statement of a note was found to be in a run."""

from __future__ import annotations

from typing import Literal, NamedTuple

from tracer.figures.labels import scientific, shape_numbers
from tracer.record import Step
from tracer.symbols import notation

Verdict = Literal["holds", "sense", "not", "elsewhere"]
"""What is said of a statement as it stands: that it holds, that it does if it is read as a sentence beside it says,
that it does not; or that another page runs it."""


class Found(NamedTuple):
    """One of the things that a statement was looked up as: what ran and what was measured, in markdown, whether that is
    as the statement has it, and where it is seen: a page, what its address says, and what to look for there, if the
    address does not lead to it.

    `latex` is the equation of a step. `slip` says in a sentence how the note and the run differ.
    """

    what: str
    measured: str
    verdict: Verdict = "holds"
    latex: str = ""
    slip: str = ""
    page: str = ""
    place: tuple[tuple[str, str], ...] = ()
    control: str = ""


def shaped(symbolic: tuple[str, ...] | None, shape: tuple[int, ...]) -> str:
    """A shape in symbols and in numbers, in markdown."""
    symbols = f"${notation.shape_latex(symbolic)}$ = " if symbolic and "?" not in symbolic else ""
    return f"{symbols}{shape_numbers(shape)}"


def proven(step: Step) -> str:
    """How well an equation agreed with what ran, in a few words."""
    if step.refuted:
        return f"disproven: {step.replayed}"
    if step.error is None:
        return step.verdict
    return "exactly what ran" if step.error == 0 else f"largest difference {scientific(step.error)}"
