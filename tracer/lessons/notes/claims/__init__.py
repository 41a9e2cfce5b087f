"""Notes' claims beyond shapes and equations, each measured on a run by one function of its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from tracer.export.rows import NOTE_TITLES
from tracer.lessons.notes.claims import attention, language, structure, vision
from tracer.lessons.notes.measurement import Measurement
from tracer.lessons.notes.statements import StatementRow, Verdict, rows
from tracer.record import Trace
from tracer.spec.spec import Model

Claim = Callable[[Model, Trace], Measurement]


def _claims() -> Iterator[tuple[str, Claim]]:
    for module in (attention, vision, structure, language):
        for name, function in vars(module).items():
            annotations = getattr(function, "__annotations__", {})
            if annotations.get("return") == "Measurement" and function.__module__ == module.__name__ and name[0] != "_":
                yield name, function


CLAIMS: dict[str, Claim] = dict(_claims())
"""The measurements, by name: every public function of these files that returns a `Measurement`."""


DIFFERS: dict[str, Verdict] = {
    "order": "not",
    "undo": "sense",
    "symmetric": "sense",
    "correction": "sense",
    "embedding_space": "sense",
    "basis": "sense",
    "cls_learned": "sense",
    "bound": "sense",
    "far": "sense",
    "gradients": "sense",
    "cross_terms": "sense",
    "normal": "sense",
}
"""The claims that do not hold as they stand on the runs of the notes; all others do. `verify` measures them again."""


@cache
def statements(name: str) -> tuple[StatementRow, ...]:
    """Return the statements of the notes that make a claim."""
    return tuple(row for note in NOTE_TITLES for row in rows(note) if f"claim {name}" in row.where)
