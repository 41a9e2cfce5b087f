"""Every tensor that forward returned must be the tensor of a step, bit by bit, and no other is called the output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass

import torch

from tracer.record import Trace
from tracer.verify.checks.reference_run import PlainRun


def problems(run: PlainRun) -> Iterator[str]:
    """Compare the output of forward with the traced tensors of all steps."""
    yield from find_unaccounted(
        run.trace, [*run.inputs, *run.inputs.named.values(), *run.model.net.state_dict().values()]
    )


def find_unaccounted(trace: Trace, inputs: Iterable) -> Iterator[str]:
    """Yield a sentence on each returned tensor that no step has, `inputs` being the inputs that the run may return
    unchanged; and on each step that is named the output and is not returned."""
    leaves = dict(_leaves("", trace.output, set()))
    values = {step.id: value for step in trace.steps if (value := trace.value(step)) is not None}
    if (names := [returned.name for returned in trace.returned]) != list(leaves):
        yield f"forward returns {', '.join(map(repr, leaves))}; the trace has {', '.join(map(repr, names))}"
    for returned in trace.returned:
        tensor = leaves.get(returned.name)
        if tensor is None:
            continue
        if returned.step and returned.step not in values and any(step.id == returned.step for step in trace.steps):
            continue  # the cap on kept values was reached
        same = [values[returned.step]] if returned.step in values else list(inputs) if returned.of else []
        if not returned.of.startswith("constant ") and not any(_same(tensor, value) for value in same):
            place = f" as {returned.name!r}" if returned.name else ""
            yield f"no step has what forward returns{place}, {returned.dtype} {list(returned.shape)}"
    for step in trace.steps:
        called = step.title == "Output" or step.title.startswith("Output: ")
        if called and step.id in values and not any(_same(values[step.id], tensor) for tensor in leaves.values()):
            yield f"step {step.id!r} is called {step.title!r}, and forward does not return it"


def _same(tensor: torch.Tensor, value: object) -> bool:
    """Return whether two tensors are the same numbers of the same dtype, also where these are NaN."""
    if not isinstance(value, torch.Tensor) or (tensor.shape, tensor.dtype) != (value.shape, value.dtype):
        return False
    return torch.equal(*(array.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for array in (tensor, value)))


def _leaves(name: str, value: object, visited: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of forward's output, by their Python paths."""
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    if id(value) in visited or isinstance(value, (type, torch.nn.Module)):
        return
    visited.add(id(value))
    if isinstance(value, (list, tuple)):
        items = [(f"{name}[{i}]", item) for i, item in enumerate(value)]
    else:
        own: Mapping = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
        if is_dataclass(value) and not isinstance(value, Mapping):
            own = {field.name: getattr(value, field.name, None) for field in fields(value)}
        hidden = not (isinstance(value, Mapping) or is_dataclass(value))
        items = [
            (f"{name}.{key}".lstrip("."), item)
            for key, item in own.items()
            if not (hidden and str(key).startswith("_"))
        ]
    for place, item in items:
        yield from _leaves(place, item, visited)
