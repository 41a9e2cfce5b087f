"""The notes' claims beyond shapes and equations, each measured on a run by one function of its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from tracer.common.notes import TITLES
from tracer.lessons.notes.claims import attention, contrasts, heads, pictures, reach, stream, structure, words
from tracer.lessons.notes.claims.measured import Measured
from tracer.lessons.notes.found import Verdict
from tracer.lessons.notes.rows import Row, rows
from tracer.lessons.notes.runs import Provider
from tracer.models.shared.model import Model
from tracer.record import Trace

Claim = Callable[[Model, Trace], Measured]


def _claims() -> Iterator[tuple[str, Claim]]:
    for module in (attention, contrasts, heads, pictures, reach, stream, structure, words):
        for name, made in vars(module).items():
            told = getattr(made, "__annotations__", {})
            if told.get("return") == "Measured" and made.__module__ == module.__name__ and name[0] != "_":
                yield name, made


CLAIMS: dict[str, Claim] = dict(_claims())
"""The measurements, by name: every public function of these files that returns a `Measured`."""


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
def statements(name: str) -> tuple[Row, ...]:
    """Return the statements of the notes that make a claim."""
    return tuple(row for note in TITLES for row in rows(note) if f"claim {name}" in row.where)


def measure(name: str, of: str, run: Provider) -> Measured:
    """Return the measurement of one claim on one of the runs.

    Raise KeyError for an unknown claim, ValueError if it is not about the model.
    """
    return CLAIMS[name](*run(of))
