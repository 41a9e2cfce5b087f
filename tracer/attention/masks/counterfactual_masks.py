"""Outputs of a model under a mask, and the mask as it ran, without the proofs of a trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tracer.attention.masks.inspection import visible
from tracer.capture import record
from tracer.inputs.model_inputs import Inputs
from tracer.tracing import assemble

if TYPE_CHECKING:
    from tracer.models.shared.spec import Model


class Prediction(NamedTuple):
    """Mask of the first block, bool `[S_q, S_k]`, True where open, and the model's result."""

    cells: torch.Tensor
    result: Mapping[str, Any]


def predict_under_mask(model: Model, inputs: Inputs) -> Prediction:
    """Run the model once and read the mask that ran; no shape is solved and no equation executed, so it is quick.

    ValueError where the run has no attention, or one whose mask can't be read.
    """
    with torch.no_grad():
        recording = record(model.net, tuple(inputs), inputs.named)
        result = model.spec.result(model, inputs, recording.output)
    run = assemble(model.net, recording, model=model.name, sizes={}, derived={}, solution=None, parts=model.spec.parts)
    return Prediction(visible(run), result)
