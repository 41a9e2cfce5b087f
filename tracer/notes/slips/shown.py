"""What a slip is, and what a run shows of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tracer.notes.found import Verdict
from tracer.notes.runs import Provider


class Shown(NamedTuple):
    """What the run has, in a sentence with numbers, and whether that is what the slip says."""

    said: str
    so: bool


class Slip(NamedTuple):
    """How a note and the run differ in a sentence, what that makes of the note's words, and what measures it."""

    sentence: str
    verdict: Verdict
    measure: Callable[[Provider], Shown]
