"""What a model says under a mask, and how much that mask lets through, without the proofs of a trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch

from tracer.masks.reading import visible
from tracer.recorder import record
from tracer.tracing import assemble

if TYPE_CHECKING:
    from tracer.model import Inputs, Model


class Said(NamedTuple):
    """The share of (query, key) cells that are open in the first block, 0 to 1, and what the model says."""

    share: float
    result: Mapping[str, object]


def said(model: Model, inputs: Inputs) -> Said:
    """Runs the model once and reads the mask that ran; no shape is solved and no equation executed, so it is quick.

    ValueError where the run has no attention, or one whose mask can't be read.
    """
    with torch.no_grad():
        recording = record(model.net, tuple(inputs), inputs.named)
        result = model.spec.result(model, inputs, recording.output)
    run = assemble(model.net, recording, model=model.name, sizes={}, derived={}, solution=None, parts=model.spec.parts)
    return Said(float(visible(run).float().mean()), result)
