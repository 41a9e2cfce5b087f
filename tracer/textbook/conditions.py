"""Conditions of lines: branches that the code took by values, comparisons with sizes that no run reached."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import torch

from tracer.capture import Recording
from tracer.capture.outer_values import DRAWS
from tracer.capture.program_slices import Choice, forward_slice, mode_tests, reads_of, slices
from tracer.graph.value_shapes import DATA_END_NOTE, REACH
from tracer.ops import ops_with
from tracer.record import dtype_name
from tracer.shapes import Solution, value_of

TAKEN_NOTE = "It is computed so where `{}` is {}: by other values, the code takes another branch."
DECIDED_NOTE = "It is computed so by the values in `{}`: by others, the code may take another branch."
STATE_NOTE = "It is so in a first call: `{}` is read here, and forward changes it."
DRAWN_NOTE = "It is computed with the numbers that `{}` drew in this run: another call draws others."
MODE_NOTE = "It is computed so by `{}` of this run: in another mode or dtype, the code may take another branch."
NUMBER_NOTE = "A number in it follows from the values in `{}`: for others, it may be another one."
RANGE_NOTE = "It is so up to 65,504, the largest number of float16: what goes beyond it on the way becomes infinite."
COUNT_NOTE = "It counts up to {}: beyond, {} rounds whole numbers."
GROWING = frozenset(
    "add sub mul div pow sum cumsum prod square exp expm1 mm bmm addmm baddbmm matmul linear dot mv einsum".split()
)
"""Ops whose results can be larger than their operands."""
UNREAD_CONDITION = "a condition on values"
"""In place of a condition whose source can't be read."""

SHAPE_ONLY = ops_with("shape-only")

REACHED = re.compile(re.escape(REACH).replace(r"\{\}", r"(\d+)"))


class Conditions(NamedTuple):
    """Notes by the ops of a run that depend on conditions: on `values`, and on `sizes`; `numbers` are those of ops that
    take a number which follows from values. `returned` are those of what is returned."""

    values: tuple[tuple[int, str], ...] = ()
    sizes: tuple[tuple[int, str], ...] = ()
    returned: tuple[str, ...] = ()
    numbers: tuple[tuple[int, str], ...] = ()

    def notes(self, ops: Collection[int], sizes: bool, numbers: bool) -> list[str]:
        """Return the notes of some ops, each once; with `sizes` also those on sizes, with `numbers` those on numbers of
        which nothing else is said."""
        known = (*self.values, *(self.sizes if sizes else ()), *(self.numbers if numbers else ()))
        return [*dict.fromkeys(note for op, note in known if op in ops)]


def conditions_of(recording: Recording, solution: Solution | None) -> Conditions:
    """Return the conditions of a run's ops, as notes."""
    ran = [op.frame for op in recording.ops]
    expressions = frozenset(ran)
    values: dict[tuple[int, str], None] = {}
    returned: dict[str, None] = {}
    for number, choice in enumerate(recording.choices):
        same = (later.op for later in recording.choices[number + 1 :] if later.frames == choice.frames)
        part = forward_slice(choice.frames, expressions, recording.sites, choice=True)
        ops = _dependent(recording, choice, next(same, len(ran)), part.ops(ran, choice.op))
        values |= dict.fromkeys((op, taken_note(choice)) for op in ops)
        returned |= {taken_note(choice): None} if part.returned else {}
    reads = reads_of(recording.state, [own for own in expressions if own is not None])
    for name, frame in sorted(set(reads)):
        note = (DRAWN_NOTE if name.kind == DRAWS else STATE_NOTE).format(name.name)
        for part in slices(frame, expressions, recording.sites):
            values |= dict.fromkeys((op, note) for op in sorted(part.ops(ran)))
            returned |= {note: None} if part.returned else {}
    for text, frame in mode_tests([own for own in expressions if own is not None]):
        part = forward_slice((frame,), expressions, recording.sites, choice=True)
        values |= dict.fromkeys((op, MODE_NOTE.format(text)) for op in sorted(part.ops(ran)))
    values |= dict.fromkeys((op, RANGE_NOTE) for op in _overflowing(recording))
    values |= dict.fromkeys(_counting(recording, solution) if solution is not None and solution.has_sizes else ())
    values |= dict.fromkeys(solution.called if solution is not None else ())
    numbers: dict[tuple[int, str], None] = {}
    for read in recording.value_reads.values():
        if _follows_from_values(recording, read.maker):
            decided, taken = read.users(expressions, recording.sites)
            note, decided_ops = DECIDED_NOTE.format(read.text), decided.ops(ran, read.op)
            values |= dict.fromkeys((op, note) for op in sorted(decided_ops))
            returned |= {note: None} if decided.returned else {}
            rest = sorted(taken.ops(ran, read.op) - decided_ops)
            numbers |= dict.fromkeys((op, NUMBER_NOTE.format(read.text)) for op in rest)
    sizes = dict.fromkeys(_limits(recording, solution)) if solution is not None and solution.has_sizes else ()
    return Conditions(tuple(values), tuple(sizes), tuple(returned), tuple(numbers))


def _follows_from_values(recording: Recording, maker: int | str) -> bool:
    """Return whether a tensor is computed from the values of an input, or of a parameter, by its producer."""
    visited, waiting = set[int | str](), [maker]
    while waiting:
        maker = waiting.pop()
        if maker in visited:
            continue
        visited.add(maker)
        if isinstance(maker, str):
            if maker in recording.parameters or maker.removeprefix("input ") in recording.inputs:
                return True
        elif recording.ops[maker].name not in SHAPE_ONLY:
            waiting += [source for *_, source in recording.ops[maker].inputs]
    return False


def _overflowing(recording: Recording) -> Iterator[int]:
    """Yield the ops that compute in float16, of a model in a wider precision."""
    tensors = [tensor for op in recording.ops for tensor in op.inputs]
    if any(dtype == torch.float16 and isinstance(maker, str) for _, dtype, maker in tensors):
        return
    for op, event in enumerate(recording.ops):
        if event.outputs and event.outputs[0][1] == torch.float16 and event.name.rstrip("_") in GROWING:
            yield op


def _counting(recording: Recording, solution: Solution) -> Iterator[tuple[int, str]]:
    """Yield the ops that count up to a size in a dtype which has not all whole numbers, with their notes."""
    for op, event in enumerate(recording.ops):
        dtype = event.outputs[0][1] if event.name == "arange" and event.outputs else None
        if dtype in (torch.float16, torch.bfloat16) and not solution.outputs[op][0][0].isdecimal():
            yield op, COUNT_NOTE.format(int(2 / torch.finfo(dtype).eps), dtype_name(dtype))


def _limits(recording: Recording, solution: Solution) -> Iterator[tuple[int, str]]:
    """Yield the notes on sizes by the ops of a run."""
    ran = [op.frame for op in recording.ops]
    for note, part in solution.limits:
        yield from ((op, note) for op in sorted(part.ops(ran)))


TAKEN = re.compile(re.escape(TAKEN_NOTE).replace(r"\{\}", ".+?"))
COUNTED = re.compile(re.escape(COUNT_NOTE).replace(r"\{\}", r"(\d+)", 1).replace(r"\{\}", r"\w+"))
DATA_END = re.compile(re.escape(DATA_END_NOTE).replace(r"\{\}", r"\d+"))
LIMIT = re.compile(r"It is so for (.+?), the largest that was tried")
"""Sizes up to which a line is so, in its note."""


def within_limits(note: str, sizes: dict[str, int]) -> bool:
    """Return whether sizes are up to those at which a line with this note was tried."""
    if any(int(reach) < max(sizes.values()) for reach in (*REACHED.findall(note), *COUNTED.findall(note))):
        return False
    limits = (limit.rsplit(" up to ", 1) for tried in LIMIT.findall(note) for limit in tried.split(" and "))
    return all(value_of(formula, sizes) <= int(largest.replace(",", "")) for formula, largest in limits)


def takes_fewer(note: str) -> bool:
    """Return whether a line with this note may take all of an axis in one run, and not in another."""
    return DATA_END.search(note) is not None


def takes_other_branch(note: str, choices: Iterable[Choice]) -> bool:
    """Return whether a run with these choices took another branch than a line with this note says."""
    taken = {taken_note(choice) for choice in choices}
    return any(sentence not in taken for sentence in TAKEN.findall(note))


def depends_on_values(note: str) -> bool:
    """Return whether a line with this note may be another one for other values, in ways that were not read."""
    return any(beginning in note for beginning in (DECIDED_NOTE.partition("`")[0], NUMBER_NOTE.partition("`")[0]))


def taken_note(choice: Choice) -> str:
    """Return the note of what depends on a choice."""
    text = choice.text or UNREAD_CONDITION
    return DECIDED_NOTE.format(text) if choice.outcome is None else TAKEN_NOTE.format(text, choice.outcome)


def _dependent(recording: Recording, choice: Choice, end: int, ops: Collection[int]) -> Iterator[int]:
    """Yield the ops up to `end` that depend on a choice; where its source can't be read, those of the same call of a
    module behind it."""
    behind = range(choice.op + 1, end)
    if not choice.text:
        modules = recording.calls.modules if recording.calls else ()
        last = min((module.last for module in modules if module.first <= choice.op < module.last), default=end)
        yield from behind[: max(last - choice.op - 1, 0)]
    yield from (op for op in behind if op in ops)
