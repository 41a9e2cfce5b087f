"""The influence proof: change one token of the input, run again, and list the positions whose outputs moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tracer.recorder import record
from tracer.steps import match
from tracer.tracing import KEEP

if TYPE_CHECKING:
    from tracer.model import Inputs, Model


def influence(model: Model, inputs: Inputs, token: int) -> tuple[int, ...]:
    """The positions whose residual stream after the last block differs once `token` of the input is another one.

    A word becomes the next entry of the vocabulary, a patch gets other pixels; nothing is known of the mask. Compared
    bit by bit. ValueError for a token outside of the sequence, or one that is learned and not part of the input (CLS).
    """
    before, after = _stream(model, inputs), _stream(model, changed(model, inputs, token))
    return tuple((before != after).flatten(2).any(dim=2).any(dim=0).nonzero().flatten().tolist())


def changed(model: Model, inputs: Inputs, token: int) -> tuple[torch.Tensor, ...]:
    """The tensors of `inputs` with one token changed, for every input of the batch."""
    segment = next((s for s in inputs.segments if s.start <= token < s.stop), None)
    if segment is None:
        last = max((s.stop for s in inputs.segments), default=0) - 1
        raise ValueError(f"token {token} is outside of the sequence: 0 to {last} was expected")
    place = token - segment.start
    tensors = list(inputs)
    if segment.name == "text":
        index = next(i for i, tensor in enumerate(tensors) if not tensor.is_floating_point())
        tensors[index] = tensors[index].clone()
        tensors[index][:, place] = (tensors[index][:, place] + 1) % model.sizes["V"]
    elif segment.name == "image":
        index = next(i for i, tensor in enumerate(tensors) if tensor.dim() == 4)
        side, columns = model.sizes["P"], model.sizes["W"] // model.sizes["P"]
        top, left = place // columns * side, place % columns * side
        tensors[index] = tensors[index].clone()
        tensors[index][:, :, top : top + side, left : left + side] += 1.0
    else:
        raise ValueError(f"token {token} ({segment.name}) is learned and not part of the input: choose another")
    return tuple(tensors)


def _stream(model: Model, inputs) -> torch.Tensor:
    """The residual stream after the last block, `[B, S, D]`."""
    with torch.no_grad():
        recording = record(model.net, tuple(inputs), cap=KEEP, attention=False)
    last = [found for found in match(model.lines, recording.ops) if found.line.layer is not None][-1]
    stream = recording.kept.get(f"{last.op}.0")
    if stream is None:
        raise ValueError(f"{model.name!r} at these sizes is too large for the influence proof: choose smaller ones")
    return stream
