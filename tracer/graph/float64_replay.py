"""Replay of a run's calls in float64 on other numbers."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from tracer.capture.composite_calls import Call, Ref, refs
from tracer.ops import base, takes_shape
from tracer.utils.internals.torch_internals import function_schema

DIVIDES = frozenset("div true_divide exp log sqrt rsqrt reciprocal sin cos".split())
"""Ops whose results are fractions even for integer operands."""


class CannotReplay(ValueError):
    """Raised for a call that cannot be replayed."""


def replay(calls: Iterable[Call], inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Run calls on the values `inputs` and return all values by their keys."""
    values = dict(inputs)
    with torch.no_grad():
        for call in calls:
            results = _run_overwrite(call, values) if call.name == "overwrite" else _run_call(call, values)
            values.update(zip((ref.key for ref in call.outputs), results, strict=False))
    return values


def _run_call(call: Call, values: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Run one call and return its results."""
    if call.func is None or torch.Tag.nondeterministic_seeded in call.func.tags:
        raise CannotReplay(f"{call.name} is not run again")
    if takes_shape(call.name):
        values = {ref.key: torch.zeros(ref.shape, dtype=torch.float64) for ref in refs(call.arguments)} | values
    schema, arguments = (
        function_schema(call.func),
        {name: _replay_argument(value, values) for name, value in call.arguments.items()},
    )
    if base(call.name) in DIVIDES:  # whole numbers become ones of the usual dtype otherwise
        arguments = {
            n: argument_value.double() if _is_integer(argument_value) else argument_value
            for n, argument_value in arguments.items()
        }
    if schema.is_mutable:
        arguments = {
            n: argument_value.clone() if isinstance(argument_value, torch.Tensor) else argument_value
            for n, argument_value in arguments.items()
        }
    positional = []
    for argument in schema.arguments:  # some may not be named: `self` is a name in Python too
        if argument.kwarg_only or argument.name not in arguments:
            break
        positional.append(arguments.pop(argument.name))
    result = call.func(*positional, **arguments)
    return tuple(map(_to_float64, result if isinstance(result, (tuple, list)) else (result,)))


def _is_integer(value) -> bool:
    """Return whether a value is an integer tensor."""
    return isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())


def _to_float64(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor with floating-point values cast to float64."""
    return value.double() if value.is_floating_point() else value


def _replay_argument(value, values: dict[str, torch.Tensor]):
    """Return an argument for the replay: tensors by their keys, float64 for every floating-point dtype."""
    if isinstance(value, Ref):
        if value.key not in values:
            raise CannotReplay(f"{value.key} is not there")
        return values[value.key]
    if isinstance(value, tuple):
        return [_replay_argument(item, values) for item in value]
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    if isinstance(value, torch.dtype) and value.is_complex:
        return torch.complex128
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _run_overwrite(call: Call, values: dict[str, torch.Tensor]) -> tuple[torch.Tensor]:
    """Return a tensor after a write into a part of its memory."""
    old, new, into, part = (call.arguments[name] for name in ("old", "new", "into", "part"))
    last = max(
        layout.offset + sum((size - 1) * step for size, step in zip(layout.shape, layout.stride, strict=True))
        for layout in (into, part)
    )
    value = _replay_argument(old, values)
    memory = torch.zeros(last + 1, dtype=value.dtype)
    memory.as_strided(into.shape, into.stride, into.offset).copy_(value)
    memory.as_strided(part.shape, part.stride, part.offset).copy_(_replay_argument(new, values))
    return (memory.as_strided(into.shape, into.stride, into.offset).clone(),)
