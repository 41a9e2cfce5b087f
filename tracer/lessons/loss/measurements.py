"""Loss of a text, and one step of training on it, by a model of ours: what a lesson has measured, in any process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tracer.lessons.loss.gradient_flow import GradientNorms, highway
from tracer.lessons.loss.next_token_loss import Loss, loss
from tracer.lessons.loss.training_step import TrainingStep, training_step

if TYPE_CHECKING:
    import torch

    from tracer.inputs.model_inputs import Inputs
    from tracer.models.shared.spec import Model
    from tracer.record import Trace


class TextLoss(NamedTuple):
    """Loss of a text, its tokens, and the gradient that flows back; or a sentence on why there is none."""

    loss: Loss | str
    highway: GradientNorms | str


def measure_loss(model: Model, inputs: Inputs, logits: torch.Tensor, blocks: Sequence[str]) -> TextLoss:
    """Return the loss of the first text of a batch by its logits `[1, T, V]`, and the gradient through blocks, by their
    paths."""
    first = tuple(tensor[:1] for tensor in inputs)
    try:
        text_loss = loss(logits, first[-1])
    except ValueError as error:
        return TextLoss(str(error), str(error))
    try:
        return TextLoss(text_loss, highway(model.net, first, first[-1], blocks))
    except ValueError as error:
        return TextLoss(text_loss, str(error))


def measure_step(model: Model, inputs: Inputs, trace: Trace | None) -> TrainingStep:
    """Return one step of training on inputs; `trace` has the lines of a run of them, or is None where none is known.
    ValueError, in a sentence, where no step can be taken."""
    trace = model.trace_inputs(inputs, prove=False) if trace is None else trace
    return training_step(model.net, tuple(inputs), inputs[-1], trace)
