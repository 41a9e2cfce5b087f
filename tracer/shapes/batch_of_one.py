"""Calls that run other ops at a batch of one, such as `linear`: `addmm` there, on non-contiguous input, else `bmm`.

Operands and results of such a call have their sizes at any batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracer.capture import OpEvent, Recording
from tracer.capture.composite_calls import Call
from tracer.shapes.scalar_solver import CallIndex

Shapes = tuple[tuple[str, ...], ...]


def respell(
    run: Sequence[OpEvent],
    calls: Iterable[Call],
    probes: Sequence[tuple[Recording, Sequence[int | None]]],
    notes: Sequence[str],
    inputs: list[Shapes],
    outputs: list[Shapes],
) -> None:
    """Replace the shapes of operands and results of such calls by those of the ops around them, in place.

    `probes` are runs at other sizes, each with the indices of its ops that match this run's. A call is respelled only
    if every probe ran it, too.
    """
    owners = [CallIndex(recording.scalars, recording.numbers) for recording, _ in probes]
    for call in calls:
        inside = range(call.first, call.last)
        if not call.inner or not any(notes[op] for op in inside):
            continue
        if not all(is_in_probe(run, call, *probe, of) for probe, of in zip(probes, owners, strict=True)):
            continue
        for op in filter(notes.__getitem__, inside):
            inputs[op] = tuple(
                _shape_from_producer(run, tensor, notes, inside, outputs) or solved
                for tensor, solved in zip(run[op].inputs, inputs[op], strict=True)
            )
            outputs[op] = tuple(
                _shape_from_user(run, op, shape, notes, inside, inputs) or solved
                for (shape, *_), solved in zip(run[op].outputs, outputs[op], strict=True)
            )


def is_in_probe(run, call: Call, probe: Recording, match: Sequence[int | None], owners: CallIndex) -> bool:
    """Return whether another run made the same call: of the same name and line, between matching ops."""
    before = next((j for j in reversed(match[: call.first]) if j is not None), -1)
    after = next((j for j in match[call.last :] if j is not None), len(probe.ops))
    line = run[call.first].module, run[call.first].line
    return any(
        (probe.ops[op].module, probe.ops[op].line) == line and owners.at(call.name, probe.numbers[op])
        for op in range(before + 1, after)
    )


def _shape_from_producer(run, tensor: tuple, notes, inside: range, outputs: list[Shapes]) -> tuple[str, ...] | None:
    """Return the solved shape of a tensor from its producer outside the call; None if there is none."""
    shape, _, maker = tensor
    if not isinstance(maker, int) or maker in inside or notes[maker]:
        return None
    shapes = [numeric for numeric, *_ in run[maker].outputs]
    return outputs[maker][shapes.index(shape)] if shapes.count(shape) == 1 else None


def _shape_from_user(run, op: int, shape: tuple, notes, inside: range, inputs: list[Shapes]) -> tuple[str, ...] | None:
    """Return the solved shape of an op's result from a user outside the call; None if there is none."""
    for taker in range(inside.stop, len(run)):
        for place, (size, _, maker) in enumerate(run[taker].inputs):
            if maker == op and size == shape and not notes[taker]:
                return inputs[taker][place]
    return None
