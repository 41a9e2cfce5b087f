"""What a slip is, and what a run shows of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tracer.lessons.notes.found import Verdict
from tracer.lessons.notes.runs import Provider


class Shown(NamedTuple):
    """What the run has, in a sentence with numbers, whether that is what the slip says, and how that was found."""

    said: str
    so: bool
    how: str = "measured"


class Slip(NamedTuple):
    """How a note and the run differ in a sentence, what that makes of the note's words, and what measures it: of the
    runs, and of the name of the one that the statement is looked up in."""

    sentence: str
    verdict: Verdict
    measure: Callable[[Provider, str], Shown]
