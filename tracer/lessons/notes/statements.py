"""Statements of the five notes in order, each with its reproduction.

They are in `texts`, a file for each note. `== TITLE` begins a section under the note's own name, and `[RUN]` says in
which run (`tracer.lessons.notes.measurement.RUNS`) the rows below it are looked up. A row is
`what the note says | where | shape`, the note's symbols as mathematics. `where` lists, separated by semicolons:

- `step ID`: that step of the run, of the shape given, whose equation was executed
- `param PATH`, `input NAME`, `size NAME`: a parameter, an input, a size of the run, of the shape or value given
- `ran OP PLACE`: an op of PyTorch's that ran in that module or belongs to that step, from and to the shapes given
- `open NAME`: a model of that name, which goes on from here
- `spell WAYS`: ways of cutting a text to pieces with ids, which give it back whole
- `page NAME PLACE`: a page of the app that runs it, and where on it: `kind=video way=frames`
- `prim OP NAME`: one of the primitives of op `OP`, from and to the shapes given
- `names NAMES`: functions that run the ops that ran
- `count NAME`: a number of parameters or ops, counted in `block.py`
- `claim NAME`: a claim, measured on the run (`tracer.lessons.notes.claims`)
- `slip NAME`: the note and the run differ (`tracer.lessons.notes.errata`)

- `in RUN WHERE`: one of these in another run than that of the row
- `head STEP`: queries, keys or values, each head alone, from its own columns of the matrix, which have the shape given

`{query,key}` stands for both, `@` for the path of torchvision's first block. Shapes are in the run's symbols, axes of
size 1 left out; `N+1` is a formula, and `>` stands between the first tensor that an op takes and what it gives. Several
shapes, separated by semicolons, are of the places in `where` one by one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple

from tracer import models
from tracer.export.rows import NOTE_TITLES
from tracer.record import Step
from tracer.symbols import notation
from tracer.utils.errors import quote
from tracer.utils.text import scientific, shape_numbers

# Result of looking up a statement of a note in a run.

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
        return f"refuted: {step.replayed}"
    if step.error is None:
        return step.verdict
    return "exactly as in the run" if step.error == 0 else f"largest difference {scientific(step.error)}"


# Rows of the notes' files.

BLOCK = "encoder.layers.encoder_layer_0."
"""The path of the first block of torchvision's Vision Transformers, up to its dot."""


class StatementRow(NamedTuple):
    """A statement of a note: its number from 1 on, its section, its run, and its `where`."""

    note: str
    number: int
    section: str
    run: str
    text: str
    where: tuple[str, ...]
    shape: str

    def at(self, place: str) -> StatementRow:
        """Return the row with the shape of one of its places alone."""
        shapes = self.shape.split(";")
        return (
            self
            if len(shapes) == 1 or place not in self.where
            else self._replace(shape=shapes[self.where.index(place)].strip())
        )


@cache
def rows(note: str) -> tuple[StatementRow, ...]:
    """Return the statements of one note, such as "001".

    Raise ValueError for an unknown note.
    """
    if note not in NOTE_TITLES:
        raise ValueError(f"there is no note {quote(note)}, expected one of {', '.join(NOTE_TITLES)}")
    parsed: list[StatementRow] = []
    section = run = ""
    for line in filter(None, (files(__package__) / "texts" / f"{note}.txt").read_text(encoding="utf-8").splitlines()):
        if line.startswith("== "):
            section = line.removeprefix("== ")
        elif line.startswith("[") and line.endswith("]"):
            run = line.strip("[]")
        else:
            text, where, shape = (cell.strip() for cell in line.rsplit("|", 2))
            where, shape = (cell.replace("@", BLOCK) for cell in (where, shape))
            several = [_expand(place.strip()) for place in where.split(";")]
            if ";" in shape:
                shapes = zip(several, shape.split(";"), strict=True)
                shape = ";".join(own.strip() for names, own in shapes for _ in names)
            places = tuple(name for names in several for name in names)
            parsed.append(StatementRow(note, len(parsed) + 1, section, run, text, places, shape))
    return tuple(parsed)


def sections(note: str) -> tuple[str, ...]:
    """Return the names of a note's sections, in order."""
    return tuple(dict.fromkeys(row.section for row in rows(note)))


def _expand(place: str) -> list[str]:
    """Return `step query` and `step key` for `step {query,key}`."""
    before, brace, rest = place.partition("{")
    names, _, after = rest.partition("}")
    return [f"{before}{name}{after}" for name in names.split(",")] if brace else [place]


# Number in a note of each step of a run.

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
    counts = Counter(
        row.note for note in NOTE_TITLES for row in rows(note) if model_of(row.run) == model and _steps(row)
    )
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
    """Return the model of a run of `tracer.lessons.notes.statements`: `nanogpt-single` is of `nanogpt`."""
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
