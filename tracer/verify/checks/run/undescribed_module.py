"""Trace of the same net as an unknown module, with only the batch axes named."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import tracer
from tracer.verify.checks.reference_run import PlainRun, tensors

MAX_PARAMETERS = 100_000
"""Parameters of a net that is tried: what is checked does not depend on its size."""

BATCH = 3


def problems(run: PlainRun) -> Iterator[str]:
    """Compare the shapes and the output of such a trace with those of the plain run."""
    if ":" in run.model.name or not getattr(run.model, "sizes", None):
        return
    if sum(parameter.numel() for parameter in run.model.net.parameters()) > MAX_PARAMETERS:
        return
    inputs = run.model.inputs(**{**run.inputs.sizes, "B": BATCH})
    axes = [(name, x) for name, x in _name_inputs(run.model.net, inputs) if len(x) == BATCH]
    with torch.no_grad():
        trace = tracer.trace(run.model.net, *inputs, symbols={"B": next((name, 0) for name, _ in axes)}, **inputs.named)
        output = run.model.net(*inputs, **inputs.named)
    if not all(torch.equal(a, b) for a, b in zip(tensors(trace.output), tensors(output), strict=True)):
        yield "traced as a module, the net gives another output"
    if trace.params != run.trace.params or len(trace.attentions) != len(run.trace.attentions):
        yield f"traced as a module, the net has {trace.params:,} parameters, {len(trace.attentions)} attentions"
    last = trace.ops[-1].outputs[0]
    if len(axes) == 1 and (last.symbolic is None or last.symbolic[0] != "B"):
        yield f"traced as a module, the net returns {last.symbolic}, expected a batch of B"
    for op in trace.ops:
        for tensor in (*op.inputs, *op.outputs):
            for size, number in zip(tensor.symbolic or (), tensor.shape, strict=bool(tensor.symbolic)):
                if (size.isdigit() and int(size) != number) or (size == "B" and number != BATCH):
                    yield f"traced as a module, op {op.index} has a size of {number} that is said to be {size}"
                    return


def _name_inputs(net: torch.nn.Module, inputs) -> list[tuple[str, torch.Tensor]]:
    names = net.forward.__code__.co_varnames[1 : 1 + len(inputs)]
    return list(zip(names, inputs, strict=True))
