"""Influence proof: change one token of the input, run again, and list the positions whose outputs changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from tracer.capture import Recording, record
from tracer.changes.of_inputs import Hide, MaskWords
from tracer.expr import tensors
from tracer.inputs.model_inputs import Inputs
from tracer.tracing.op_records import part_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracer.models.shared.spec import Model
    from tracer.record import Segment, Trace
    from tracer.textbook.steps import DerivedStep

KEPT_BYTES = 2**30
"""Bytes that a run may keep here, until the two streams that are compared are taken from it."""


class ChangedPositions(NamedTuple):
    """Positions of a tower's sequence that changed: in the input of its first block, and in the output of its last."""

    entering: tuple[int, ...]
    leaving: tuple[int, ...]


class Streams(NamedTuple):
    """Residual stream at the input of a tower's first block, and at the output of its last: `[B, S, D]` each."""

    entering: torch.Tensor
    leaving: torch.Tensor


class TowerEnds(NamedTuple):
    """Keys of the values of a run where the residual stream enters a tower's first block and leaves its last."""

    entering: str
    leaving: str


def influence(
    model: Model, inputs: Inputs, token: int, *, part: str | None = None, trace: Trace | None = None
) -> ChangedPositions:
    """Return the positions whose residual stream differs once `token` of the input is replaced, before and after the
    blocks of tower `part`, the first if it is None.

    A word becomes the next entry of the vocabulary, a patch becomes grey; nothing is known of the mask. Compared
    bit by bit. What enters is the token itself, or nothing where the tower does not see it, or more where another
    tower has mixed it before. `trace` is the model's run of `inputs`, where there is one already. ValueError for a
    token outside the sequence, or one that is learned and not part of the input (CLS).
    """
    part = next(iter(model.spec.parts)) if part is None else part
    changed_inputs = change_token(model, inputs, token, part=part)
    steps = trace.later.derived_steps if trace and trace.later else None
    before = trace and traced_streams(model, trace, part=part)
    before, after = before or streams(model, inputs, part=part), streams(model, changed_inputs, part=part, steps=steps)
    return _differing(before, after)


def change_and_compare(
    model: Model, inputs: Inputs, token: int, part: str, ends: TowerEnds, before: Streams
) -> ChangedPositions:
    """Return the same as `influence` by what is known of the run of `inputs`: the ends of the tower, and its streams
    there."""
    recording = _record(model, change_token(model, inputs, token, part=part), calls=False)
    return _differing(before, _streams_at(model, ends, recording.store.get))


def change_token(model: Model, inputs: Inputs, token: int, *, part: str = "") -> Inputs:
    """Return `inputs` with one token of a tower's sequence changed, for every input of the batch."""
    own = [segment for segment in inputs.segments if segment.part in ("", part)]
    segment = next((s for s in own if s.start <= token < s.stop), None)
    if segment is None:
        last = max((s.stop for s in own), default=0) - 1
        raise ValueError(f"token {token} is outside the sequence, expected 0 to {last}")
    place = token - segment.start
    if segment.name == "text":
        return model.change_inputs(inputs, [MaskWords([place], (_token_id(inputs, place) + 1) % model.sizes["V"])])
    if segment.name in ("image", "visible"):
        sizes = model.vocabulary.complete({**inputs.sizes, **model.sizes})
        H, W, P = (sizes.get(size, 1) for size in "HWP")
        if segment.name == "image" and segment.stop - segment.start != (H // P) * (W // P):
            raise ValueError(f"the tokens of {model.name!r} are not patches of the photo, so none can be changed alone")
        return model.change_inputs(inputs, [Hide([_patch(inputs, segment, place)], "grey")])
    raise ValueError(f"token {token} ({segment.name}) is learned and not part of the input: choose another")


def _token_id(inputs: Inputs, place: int) -> int:
    """Return the number of a token of the text, of the first input of the batch."""
    numbers = next((tensor for tensor in (*inputs, *inputs.named.values()) if not tensor.is_floating_point()), None)
    if numbers is None:
        raise ValueError("the input has no token numbers, so this token can't be changed")
    return int(numbers[0, place])


def _patch(inputs: Inputs, segment: Segment, place: int) -> int:
    """Return the index of a patch in the photo; visible ones are listed in the segment, or by an input of their own."""
    if segment.name == "image":
        return place
    if segment.places:
        return segment.places[place]
    listed = next((tensor for tensor in inputs if not tensor.is_floating_point()), None)
    if listed is None:
        raise ValueError("which patches are visible is drawn inside the model, so none can be changed alone")
    return int(listed[0, place])


def _differing(before: Streams, after: Streams) -> ChangedPositions:
    changed = ((first != second).any(dim=2).any(dim=0) for first, second in zip(before, after, strict=True))
    return ChangedPositions(*(tuple(positions.nonzero().flatten().tolist()) for positions in changed))


def streams(
    model: Model, inputs: Inputs, *, part: str | None = None, steps: Sequence[DerivedStep] | None = None
) -> Streams:
    """Return the residual stream at both ends of a tower, the first if `part` is None.

    `steps` are the model's steps on inputs of these sizes, where they are known. ValueError for a model whose steps
    don't say where its blocks begin and end, or one that is too large.
    """
    recording = _record(model, inputs, calls=steps is None)
    steps = model.derived_steps(recording, inputs.sizes) if steps is None else steps
    return _streams_at(model, tower_ends(model, steps, part), recording.store.get)


def _record(model: Model, inputs: Inputs, calls: bool) -> Recording:
    with torch.no_grad():
        return record(model.net, tuple(inputs), inputs.named, cap=KEPT_BYTES, attention=False, calls=calls)


def traced_streams(model: Model, trace: Trace, *, part: str | None = None) -> Streams | None:
    """Return the same from an existing run of the model; None if it did not keep them."""
    if trace.later is None:
        return None
    return _find_streams(model, tower_ends(model, trace.later.derived_steps, part), trace.values.get)


def tower_ends(model: Model, steps: Sequence[DerivedStep], part: str | None = None) -> TowerEnds:
    """Return the ends of a tower, the first if `part` is None, in a run of these steps. ValueError for a model whose
    steps don't say where its blocks begin and end."""
    part = next(iter(model.spec.parts)) if part is None else part
    places = {step.line.id: step.value for step in steps if step.line.place}
    inside = [
        (line, line.place.module) for line in (step.line for step in steps) if line.layer is not None and line.place
    ]
    blocks = [line for line, module in inside if part_of(module, (part,)) == part]
    if not blocks:
        raise ValueError(f"no step of {model.name!r} says where its blocks begin and end, so this proof has no place")
    first = next((tensor.key for tensor in tensors(blocks[0].equation) if tensor.key in places), None)
    if first is None:
        raise ValueError(f"the blocks of {model.name!r} make no sequence of the one they read, so this has no place")
    return TowerEnds(places[first], places[blocks[-1].id])


def _find_streams(model: Model, ends: TowerEnds, value: Callable) -> Streams | None:
    """Return the streams at the ends of a tower; None where they were not kept."""
    entering, leaving = map(value, ends)
    if entering is None or leaving is None:
        return None
    if [entering.dim(), leaving.dim()] != [3, 3] or entering.shape[1] != leaving.shape[1]:
        raise ValueError(f"the blocks of {model.name!r} make no sequence of the one they read, so this has no place")
    return Streams(entering, leaving)


def _streams_at(model: Model, ends: TowerEnds, value: Callable) -> Streams:
    if (found := _find_streams(model, ends, value)) is None:
        raise ValueError(f"{model.name!r} at these sizes is too large for the influence proof: choose smaller ones")
    return found
