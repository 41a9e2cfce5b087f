"""What the notes claim beyond shapes and equations, each measured on a run: one function for each, by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tracer.lessons.notes.claims import attention, contrasts, heads, pictures, reach, stream, structure, words
from tracer.lessons.notes.claims.measured import Measured
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
"""What is measured, by name: every public function of these files that gives a `Measured`."""


def measure(name: str, of: str, run: Provider) -> Measured:
    """One claim on one of the runs. KeyError for an unknown one, ValueError where it is not about the model."""
    return CLAIMS[name](*run(of))
