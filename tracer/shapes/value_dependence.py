"""Dependence of an unnamed run on the values of its input: the run is repeated on other values."""

from __future__ import annotations

import torch

from tracer.capture import Recording
from tracer.capture.python_scalars import scalars_of
from tracer.shapes import OF_DATA, UNCOMPARED_NOTE, PartialSolution, Solution, Vocabulary, reads_values
from tracer.shapes.input_axes import copies_at_same_sizes
from tracer.utils.error_text import reason


def solve_value_dependence(module: torch.nn.Module, recording: Recording) -> tuple[Solution | None, str]:
    """Return the numbers, sizes and external tensors that differ in a run on other values, and a note.

    The first is None if nothing differs. The note says why there was no such run, or is empty.
    """
    if recording.calls is None or any(tensor.is_meta for tensor in (*recording.inputs.values(), *module.parameters())):
        return None, ""
    note = ""
    try:
        for vocabulary in copies_at_same_sizes(module, recording):
            try:
                return _compare(recording, vocabulary), ""
            except Exception as error:  # the model's own: without values, or on others
                note = reason(error)
    except Exception as error:  # of what can't be copied
        note = reason(error)
    return None, UNCOMPARED_NOTE.format(note)


def _compare(recording: Recording, vocabulary: Vocabulary) -> Solution | None:
    """Return the differences of another run; a model that runs on tensors without values reads none."""
    if vocabulary.mode is not None:
        vocabulary.probe({}, primitives=False)
        return None
    run = recording.ops
    partial_solution = PartialSolution(run, (), list(scalars_of(recording.calls.entries)) if recording.calls else [])
    entries, places = list(partial_solution.entries.values()), list(range(len(run)))
    traced = Recording(ops=run, numbers=places, scalars=entries, constants=recording.constants)
    notes = [""] * len(run)
    for elsewhere in vocabulary.probe_other_values({}, reads_values(run)):
        for i in partial_solution.compare(traced, elsewhere):
            notes[i] = OF_DATA
    if not (any(notes) or partial_solution.scalars or partial_solution.value_dependent):
        return None
    return Solution(
        (),
        (),
        tuple(notes),
        scalars=partial_solution.scalars,
        value_dependent=frozenset(partial_solution.value_dependent),
    )
