"""Calls that run other ops at a batch of one: PyTorch's `linear` is an `addmm` there, where what it takes lies apart in
memory, and elsewhere a `bmm`. What goes into such a call, and comes out of it, has its size at any batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracer.capture import Recording, Seen
from tracer.capture.composite_calls import Call
from tracer.shapes.scalar_solver import Owners

Shapes = tuple[tuple[str, ...], ...]


def respell(
    run: Sequence[Seen],
    calls: Iterable[Call],
    probes: Sequence[tuple[Recording, Sequence[int | None]]],
    held: Sequence[str],
    inputs: list[Shapes],
    outputs: list[Shapes],
) -> None:
    """Gives the tensors at both ends of such calls the shapes that the ops around them made and took, in place.

    `probes` are runs at other sizes, each with its ops that are those of this run; a call is respelled only where each
    of them made it, too.
    """
    owners = [Owners(other.scalars, other.numbers) for other, _ in probes]
    for call in calls:
        inside = range(call.first, call.last)
        if not call.inner or not any(held[op] for op in inside):
            continue
        if not all(_there(run, call, *probe, of) for probe, of in zip(probes, owners, strict=True)):
            continue
        for op in filter(held.__getitem__, inside):
            inputs[op] = tuple(
                _made(run, tensor, held, inside, outputs) or solved
                for tensor, solved in zip(run[op].inputs, inputs[op], strict=True)
            )
            outputs[op] = tuple(
                _taken(run, op, shape, held, inside, inputs) or solved
                for (shape, *_), solved in zip(run[op].outputs, outputs[op], strict=True)
            )


def _there(run, call: Call, other: Recording, match: Sequence[int | None], owners: Owners) -> bool:
    """Whether another run made the same call: one of that name by the same line, between ops that are the same."""
    before = next((j for j in reversed(match[: call.first]) if j is not None), -1)
    after = next((j for j in match[call.last :] if j is not None), len(other.ops))
    line = run[call.first].module, run[call.first].line
    return any(
        (other.ops[op].module, other.ops[op].line) == line and owners.at(call.name, other.numbers[op])
        for op in range(before + 1, after)
    )


def _made(run, tensor: tuple, held, inside: range, outputs: list[Shapes]) -> tuple[str, ...] | None:
    """The solved shape of a tensor by the op outside that made it."""
    shape, _, maker = tensor
    if not isinstance(maker, int) or maker in inside or held[maker]:
        return None
    made = [one for one, *_ in run[maker].outputs]
    return outputs[maker][made.index(shape)] if made.count(shape) == 1 else None


def _taken(run, op: int, shape: tuple, held, inside: range, inputs: list[Shapes]) -> tuple[str, ...] | None:
    """The solved shape of what an op made by one outside that takes it."""
    for taker in range(inside.stop, len(run)):
        for place, (size, _, maker) in enumerate(run[taker].inputs):
            if maker == op and size == shape and not held[taker]:
                return inputs[taker][place]
    return None
