"""What a model says, as plain data: the `result` of a trace."""

from __future__ import annotations

import torch


def class_probabilities(model, inputs, logits: torch.Tensor) -> dict:
    """The classes and their probabilities, `softmax(Z)` of logits `[B, K]`, for the first input of the batch."""
    names = (model.card or {}).get("classes", ())
    if len(names) != logits.shape[-1]:
        names = [f"class {i}" for i in range(logits.shape[-1])]
    return {"kind": "classes", "classes": list(names), "probabilities": logits[0].softmax(-1).tolist()}
