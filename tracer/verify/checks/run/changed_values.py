"""Changes of values, compared with plain PyTorch: forward hooks, and weights of a copy that are edited by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from tracer.capture.tensors.pytree import output_tensors
from tracer.record import Step
from tracer.verify.checks.reference_run import Run

NEAR = 1e-5
"""Largest difference of an output, as a share of its largest number."""


def problems(run: Run) -> Iterator[str]:
    """Yield a sentence for each change whose output is not that of the same change by hand."""
    if (module_output := _module_output(run)) is not None:
        id, path, value = module_output
        for change, by_hand in _kinds(value).items():
            change = value.clone() + 1 if change == "replace" else change
            yield from _compare(run, {id: change}, _hooked(run, path, by_hand))
    if (pair := _heads(run)) is not None:
        id, heads, parameter = pair
        for head in {0, heads - 1}:
            yield from _compare(run, {id: f"drop_heads({head})"}, _edited(run, parameter, heads, head))


def _kinds(value: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return one change of each kind that any line allows, and what it does, written out by hand."""
    axes = (2, 3) if value.dim() == 4 else (max(value.dim() - 2, 0),)
    order = np.random.default_rng(1).permutation(value.shape[axes[-1]])
    noise = torch.from_numpy(np.random.default_rng(3).standard_normal(tuple(value.shape))).to(value.dtype)
    return {
        "zero": lambda x: x - x,
        "scale(-0.5)": lambda x: -x / 2,
        "mean": lambda x: x.sum(axes, keepdim=True) / np.prod([x.shape[axis] for axis in axes]) + (x - x),
        "noise(0.1,3)": lambda x: x + noise / 10,
        "shuffle(1)": lambda x: x.transpose(0, axes[-1])[order].transpose(0, axes[-1]),
        "replace": lambda x: value + 1,
    }


def _module_output(run: Run) -> tuple[str, str, Tensor] | None:
    """Return a line in the middle of the run that is what a module returned: its id, the module's path, its value."""
    outputs: dict[str, Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda module, args, output, path=path: outputs.setdefault(path, output))
        for path, module in run.model.net.named_modules()
        if path
    ]
    try:
        _forward(run, run.model.net)
    finally:
        for hook in hooks:
            hook.remove()
    lines = [step for step in run.trace.steps if step.id.endswith(("mlp.output", "attention.output")) and step.shape]
    for step in lines[len(lines) // 2 :]:
        value = run.trace.value(step)
        for path, output in outputs.items():
            if value is not None and isinstance(output, Tensor) and torch.equal(output, value):
                return step.id, path, value
    return None


def _heads(run: Run) -> tuple[str, int, str] | None:
    """Return the attention weights of a block with an output projection: the line's id, the heads, the parameter."""
    steps = {step.id: step for step in run.trace.steps}
    for id, step in steps.items():
        projection = steps.get(id.removesuffix("weights") + "output") if id.endswith("attention.weights") else None
        if projection is None or len(step.shape) != 4 or (parameter := _matrix(run, projection)) is None:
            continue
        heads, width = step.shape[1], run.model.net.get_parameter(parameter).shape
        if heads > 1 and width[0] % heads == width[1] % heads == 0 and width[0] == width[1]:
            return id, heads, parameter
    return None


def _matrix(run: Run, step: Step) -> str | None:
    """Return the path of the only matrix in a line."""
    known = dict(run.model.net.named_parameters())
    paths = [name.of.removeprefix("parameter ") for name in step.names if name.of.startswith("parameter ")]
    matrices = [path for path in paths if path in known and known[path].dim() == 2]
    return matrices[0] if len(matrices) == 1 else None


def _hooked(run: Run, path: str, by_hand: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Return the outputs of a run in which a forward hook changes what a module returns."""
    net = copy.deepcopy(run.model.net)
    net.get_submodule(path).register_forward_hook(lambda module, args, output: by_hand(output))
    return _forward(run, net)


def _edited(run: Run, parameter: str, heads: int, head: int) -> list[Tensor]:
    """Return the outputs of a run in which the rows of a head are 0 in the output projection, `[h·d_k, D]`."""
    net = copy.deepcopy(run.model.net)
    matrix = net.get_parameter(parameter)
    owner = net.get_submodule(parameter.rpartition(".")[0])
    rows = matrix if type(owner).__name__ == "Conv1D" else matrix.T  # transformers' own keeps the transpose
    width = rows.shape[0] // heads
    with torch.no_grad():
        rows[head * width : (head + 1) * width] = 0
    return _forward(run, net)


def _forward(run: Run, net) -> list[Tensor]:
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [tensor for _, tensor in output_tensors(net(*run.inputs, **run.inputs.named))]


def _compare(run: Run, change: dict, expected: list[Tensor]) -> Iterator[str]:
    outputs = _forward(run, run.model.with_changes(change, run.inputs).net)
    for output, wanted in zip(outputs, expected, strict=True):
        if not wanted.is_floating_point():
            continue
        finite = wanted[torch.isfinite(wanted)]
        allowed = NEAR * float(finite.abs().max()) if finite.numel() else 0.0
        if not torch.allclose(output, wanted, rtol=0, atol=allowed, equal_nan=True):
            line, kind = next(iter(change.items()))
            kind = "replace" if isinstance(kind, Tensor) else kind
            error = float((output - wanted).abs().max())
            yield f"{kind} of {line!r} gives another output than plain PyTorch, by {error}"
