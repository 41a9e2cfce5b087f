"""An erratum, and its evidence in a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tracer.lessons.notes.finding import Verdict
from tracer.lessons.notes.reference_runs import Provider


class Evidence(NamedTuple):
    """Run's version, in a sentence with numbers, whether it agrees with the erratum, and how it was measured."""

    sentence: str
    so: bool
    how: str = "measured"


class Slip(NamedTuple):
    """A difference between a note and the run in a sentence, the verdict on the note's words, and its measurement.

    The measurement takes the runs, and the name of the run in which the statement is looked up.
    """

    sentence: str
    verdict: Verdict
    measure: Callable[[Provider, str], Evidence]
