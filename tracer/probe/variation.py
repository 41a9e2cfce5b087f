"""Twins of a module with other numbers: other weights, other inputs, in float64."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tracer.probe.twin import twin
from tracer.recorder.function import Function
from tracer.recorder.nested import named
from tracer.recorder.state import State

WIDE = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64}
WIDE |= {torch.complex64: torch.complex128}
SPREAD = 0.1
"""Standard deviation of the factors by which numbers are moved, and of what zeros become."""


class Variation(NamedTuple):
    """What of a run is another: its weights, its inputs, the precision in which it computes."""

    weights: bool
    inputs: bool
    wide: bool
    seed: int


def varied(
    module: nn.Module, args: tuple, kwargs: dict[str, Any], how: Variation, shared: Collection[nn.Module] = ()
) -> tuple[nn.Module, tuple, dict[str, Any]]:
    """Return a copy of a module and of what it is given, with other numbers in them.

    Buffers keep their values, which may be statistics, masks or tables. The weights of `shared` modules are not copied.
    A function that reads tensors around it has no copy: of it the inputs vary, in their own precision.
    """
    generator = torch.Generator().manual_seed(how.seed)
    if isinstance(module, Function) and not module.owned:
        given = {id(tensor): other_values(tensor, generator, False) for _, tensor in named("", (args, kwargs))}
        return module, *twin((args, kwargs), given)
    inputs = {id(tensor): tensor for _, tensor in named("", (args, kwargs))}
    kept = {id(parameter) for part in shared for parameter in part.parameters()}
    memo: dict[int, Tensor] = {}
    for key, tensor in inputs.items():
        memo[key] = other_values(tensor, generator, how.wide) if how.inputs else _cast(tensor, how.wide)
    for parameter in module.parameters():
        if id(parameter) in memo:
            continue
        if id(parameter) in kept:
            memo[id(parameter)] = parameter
        elif type(parameter) is nn.Parameter:
            made = other_weights(parameter, generator, how.wide) if how.weights else _cast(parameter, how.wide)
            memo[id(parameter)] = nn.Parameter(made, requires_grad=parameter.requires_grad)
    for tensor in (*module.buffers(), *State(module).tensors):  # also those that are plain attributes
        if id(tensor) not in memo and type(tensor) is Tensor:
            memo[id(tensor)] = _cast(tensor, how.wide)
    return twin((module, tuple(args), dict(kwargs)), memo)


def other_weights(parameter: Tensor, generator: torch.Generator, wide: bool) -> Tensor:
    """Return a parameter whose numbers have other places and are up to about a third larger or smaller, so that their
    statistics stay; what was 0, or 1 everywhere, is another number everywhere."""
    if not parameter.is_floating_point() or not parameter.numel():
        return _cast(parameter, wide)
    values = parameter.detach().double().flatten()
    order = torch.randperm(len(values), generator=generator).to(values.device)
    factors, noise = (_normal(values, generator) for _ in range(2))
    values = values[order]
    values = torch.where(values == 0, SPREAD * noise, values * (SPREAD * factors).exp())
    return _like(parameter, values, wide)


def other_values(tensor: Tensor, generator: torch.Generator, wide: bool) -> Tensor:
    """Return an input of the same dtype, shape and range with other values.

    Whole numbers get other places in their row, so that what ends or fills a row still does; others get other places
    and are moved a little. Masks stay, of 0 and 1 or with infinities, and positions: what rises in equal steps.
    """
    if tensor.dtype == torch.bool or tensor.is_complex() or not tensor.numel():
        return _cast(tensor, wide)
    values = tensor.detach().flatten()
    if not values.is_floating_point():
        if _regular(tensor):
            return tensor.detach().clone()
        keys = torch.rand(tensor.shape, generator=generator).to(tensor.device)
        return _like(tensor, tensor.detach().gather(-1, keys.argsort(-1)), False)
    values = values.double()
    low, high = values.aminmax()
    if not (low.isfinite() and high.isfinite()) or low.abs() > 1e30 or high.abs() > 1e30 or _binary(values):
        return _cast(tensor, wide)
    order = torch.randperm(len(values), generator=generator).to(values.device)
    moved = values[order] + SPREAD * (values.std(correction=0) or values.abs().mean() or 1.0) * _normal(
        values, generator
    )
    if low < high:  # what left the range is reflected: at its end, numbers would be equal that are not
        moved = (high - (high - (low + (moved - low).abs())).abs()).clamp(low, high)
    return _like(tensor, moved, wide)


def _binary(values: Tensor) -> bool:
    """Whether numbers are 0 and 1, both: a mask."""
    return bool(((values == 0) | (values == 1)).all()) and bool(values.any()) and len(values) > 1


def _regular(tensor: Tensor) -> bool:
    """Whether whole numbers are a mask, or rise by as much from one to the next: positions, rows, flags."""
    if tensor.min() >= 0 and tensor.max() <= 1:
        return True
    steps = tensor.diff(dim=-1) if tensor.dim() else tensor
    return not tensor.dim() or bool((steps == steps.flatten()[:1]).all())


def _normal(values: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(len(values), generator=generator, dtype=torch.float64).to(values.device)


def _cast(tensor: Tensor, wide: bool) -> Tensor:
    return tensor.detach().to(WIDE.get(tensor.dtype, tensor.dtype) if wide else tensor.dtype, copy=True)


def _like(tensor: Tensor, values: Tensor, wide: bool) -> Tensor:
    """The values in the shape of a tensor, laid out in memory as it is."""
    dtype = WIDE.get(tensor.dtype, tensor.dtype) if wide else tensor.dtype
    made = torch.empty_like(tensor, dtype=dtype, requires_grad=False)
    return made.copy_(values.reshape(tensor.shape))
