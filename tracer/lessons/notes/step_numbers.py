"""Number in a note of each step of a run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from tracer import models
from tracer.lessons.notes.statements import StatementRow, rows
from tracer.utils.note_titles import TITLES

LIBRARY = {"torchvision": "torchvision:vit_b_16"}
"""Models that are none of ours, by the name of their run."""
SECTION = re.compile(r"(?:Step )?((?:I+\.)?\d+(?:\.\d+)*[a-z]?)\b")
LINE = re.compile(r"(\d+[a-z]?)(?:\\\.|:) ")
LISTS = ("Summary", "Complete shape trace")
"""Sections whose lines have numbers of their own."""


class StepNumbers(NamedTuple):
    """Number of a model's note, and the number in it of each step of a run, in whichever block."""

    note: str
    steps: Mapping[str, str]

    def of(self, step: str) -> str:
        """Return the note's number of a step, such as "6b"; "" for a step without one."""
        return self.steps.get(_anywhere(step), "")


@cache
def number_steps(model: str) -> StepNumbers | None:
    """Number the steps of a model by the note that numbers most of them; None for a model of no note."""
    counts = Counter(row.note for note in TITLES for row in rows(note) if model_of(row.run) == model and _steps(row))
    if not counts:
        return None
    note, _ = counts.most_common(1)[0]
    numbers: dict[str, str] = {}
    for row in sorted(rows(note), key=lambda row: model_of(row.run) != model):
        number = _number(row)
        own = model_of(row.run) == model or number.isalnum()  # each part of a note in parts is of a model of its own
        for step in _steps(row) if number and own else ():
            numbers.setdefault(_anywhere(step), number)
    return StepNumbers(note, numbers) if numbers else None


def model_of(run: str) -> str:
    """Return the model of a run of `tracer.lessons.notes.reference_runs`: `nanogpt-single` is of `nanogpt`."""
    known = {name: name for name in models.names()} | LIBRARY
    return known[max((name for name in known if f"{run}-".startswith(f"{name}-")), key=len)]


def _steps(row: StatementRow) -> list[str]:
    """Return the steps of a statement: `step ID`, and `ran OP ID`; none for a figure, which shows several."""
    if row.text.startswith("figure"):
        return []
    return [place.split()[-1] for place in row.where if place.startswith(("step ", "ran "))]


def _number(row: StatementRow) -> str:
    """Return the number of a statement's section, else of its line in a list."""
    match = SECTION.match(row.section) or (LINE.match(row.text) if row.section in LISTS else None)
    return match[1] if match else ""


def _anywhere(step: str) -> str:
    return re.sub(r"(block|layer_)\d+", r"\1", step)
