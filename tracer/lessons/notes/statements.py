"""Statements of the five notes in order, each with its reproduction.

They are in `texts`, a file for each note. `== TITLE` begins a section under the note's own name, and `[RUN]` says in
which run (`tracer.lessons.notes.reference_runs.RUNS`) the rows below it are looked up. A row is
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

`{query,key}` stands for both, `@` for the path of torchvision's first block. Shapes are in the run's symbols, axes of
size 1 left out; `N+1` is a formula, and `>` stands between the first tensor that an op takes and what it gives.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import NamedTuple

from tracer.utils.error_text import quote
from tracer.utils.note_titles import TITLES

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


@cache
def rows(note: str) -> tuple[StatementRow, ...]:
    """Return the statements of one note, such as "001".

    Raise ValueError for an unknown note.
    """
    if note not in TITLES:
        raise ValueError(f"there is no note {quote(note)}, expected one of {', '.join(TITLES)}")
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
            places = tuple(place_name for place in where.split(";") for place_name in _expand(place.strip()))
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
