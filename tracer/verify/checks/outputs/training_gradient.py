"""A step of training: each gradient is proven, and the slope of the loss along all of them, measured by two runs of a
copy in float64, is the displayed norm."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import numpy as np
import torch

from tracer.lessons.loss.training_step import training_step
from tracer.verify.checks.reference_run import PlainRun, array

WAY = 1e-4
"""How far the weights go to either side, as a length."""
TOLERANCE = 1e-3
"""Share of the slope by which the norm may differ: gradients are in float32."""


def problems(run: PlainRun) -> Iterator[str]:
    """Check the step of a model of ours that predicts the next token."""
    if run.trace.result.get("kind") not in ("next", "caption") or not hasattr(run.model.net, "blocks"):
        return
    tokens = run.inputs[-1]
    step = training_step(run.model.net, tuple(run.inputs), tokens, run.trace)
    for line in (step.logits, *step.lines):
        if line.verdict != "proven":
            yield f"the gradient of {', '.join(line.paths) or 'the logits'} is {line.verdict}: {line.problem}"
    net = deepcopy(run.model.net).double()
    inputs = [each.double() if each.is_floating_point() else each for each in run.inputs]
    with torch.enable_grad():
        logits = net(*inputs)
        shares = logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])
        gradients = torch.autograd.grad(-shares.mean(), list(net.parameters()))
    length = float(np.sqrt(sum((array(each) ** 2).sum() for each in gradients)))
    ends = []
    with torch.no_grad():
        for way in (WAY, -2 * WAY):
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter += way / length * gradient
            ends.append(_loss(array(net(*inputs)), tokens.numpy()))
    slope = (ends[0] - ends[1]) / (2 * WAY)
    if abs(step.squared_norm**0.5 - slope) > TOLERANCE * slope:
        yield f"the norm of the gradient is {step.squared_norm**0.5:.6g}, and the slope of the loss {slope:.6g}"


def _loss(logits: np.ndarray, tokens: np.ndarray) -> float:
    """Return the mean cross-entropy of the next token."""
    rows = logits[:, :-1] - logits[:, :-1].max(-1, keepdims=True)
    chosen = np.take_along_axis(rows, tokens[:, 1:, None], -1)[..., 0]
    return float((np.log(np.exp(rows).sum(-1)) - chosen).mean())
