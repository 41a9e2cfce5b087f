"""Copies of a module with other numbers: other weights, other inputs, in float64."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tracer.capture.callable_module import Function
from tracer.capture.tensors.module_state import StateSnapshot
from tracer.capture.tensors.pytree import named_tensors
from tracer.shapes.shadow_module import shadow_copy
from tracer.utils.tensor_diff import INFINITY_THRESHOLD

WIDE_DTYPES = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64}
WIDE_DTYPES |= {torch.complex64: torch.complex128}
FREE_DRAWS = 3
"""Number of draws of other inputs that keep only shapes and dtypes."""
RANGE_GROWTH = 1.5
"""Factor by which the range of inputs grows from one draw to the next."""
MAX_FLAG_VALUES = 2
"""Largest number of different integers that are flags, such as those of a mask, and no ids."""
FACTOR_STD = 0.1
"""Standard deviation of the random factors of weights, and of the numbers that replace zeros."""


class Variation(NamedTuple):
    """Differences from the run: its weights, its inputs, the precision of its computation."""

    weights: bool
    inputs: bool
    wide: bool
    seed: int


def vary(
    module: nn.Module, args: tuple, kwargs: dict[str, Any], how: Variation, shared: Collection[nn.Module] = ()
) -> tuple[nn.Module, tuple, dict[str, Any]]:
    """Return a copy of a module and of its inputs, with other numbers in them.

    Buffers keep their values: they can be statistics, masks or tables. The weights of `shared` modules are not copied.
    A function that reads tensors around it cannot be copied: only its inputs vary, in their own precision.
    """
    generator = torch.Generator().manual_seed(how.seed)
    if isinstance(module, Function) and not module.owned:
        replaced = {id(tensor): other_values(tensor, generator) for _, tensor in named_tensors("", (args, kwargs))}
        return module, *shadow_copy((args, kwargs), replaced)
    inputs = {id(tensor): tensor for _, tensor in named_tensors("", (args, kwargs))}
    own = {id(parameter) for part in shared for parameter in part.parameters()}
    memo: dict[int, Tensor] = {}
    for key, tensor in inputs.items():
        memo[key] = other_values(tensor, generator, how.wide) if how.inputs else _cast(tensor, how.wide)
    for parameter in module.parameters():
        if id(parameter) in memo:
            continue
        if id(parameter) in own:
            memo[id(parameter)] = parameter
        elif type(parameter) is nn.Parameter:
            varied = other_weights(parameter, generator, how.wide) if how.weights else _cast(parameter, how.wide)
            memo[id(parameter)] = nn.Parameter(varied, requires_grad=parameter.requires_grad)
    for tensor in (*module.buffers(), *StateSnapshot(module).tensors):  # also those that are plain attributes
        if id(tensor) not in memo and type(tensor) is Tensor:
            memo[id(tensor)] = _cast(tensor, how.wide)
    return shadow_copy((module, tuple(args), dict(kwargs)), memo)


def other_weights(parameter: Tensor, generator: torch.Generator, wide: bool) -> Tensor:
    """Return a parameter with its numbers permuted and scaled by up to about a third, so that their statistics stay.

    Zeros become small random numbers; a constant parameter becomes random.
    """
    if not parameter.is_floating_point() or not parameter.numel():
        return _cast(parameter, wide)
    order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
    values = parameter.detach().flatten()[order]
    del order  # an embedding is large, and each of these as large as it is
    weights = _normal(values, generator).mul_(FACTOR_STD).exp_().mul_(values)
    if (zero := values == 0).any():
        weights[zero] = FACTOR_STD * _normal(weights[zero], generator)
    return _like(parameter, weights, wide)


def other_inputs(inputs: Any, draw: int) -> Any:
    """Return nested inputs with other values in their tensors.

    The first `FREE_DRAWS` draws keep only shapes and dtypes. Later ones keep masks and positions, and the integers of
    each row. Raise ValueError if no value changed.
    """
    generator = torch.Generator().manual_seed(draw)
    free = draw if draw <= FREE_DRAWS else 0
    known = {id(tensor): tensor for _, tensor in named_tensors("", inputs) if tensor.numel()}
    changed = {key: other_values(tensor, generator, free=free) for key, tensor in known.items()}
    if known and not any(map(_has_changed, known.values(), changed.values())):
        raise ValueError("its inputs have no other values")
    return shadow_copy(inputs, changed)


def _has_changed(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors have different numbers; False if these can't be read."""
    return not (a.is_meta or a.is_nested or a.layout != torch.strided) and not torch.equal(a, b)


def other_values(tensor: Tensor, generator: torch.Generator, wide: bool = False, free: int = 0) -> Tensor:
    """Return an input of the same dtype and shape with other values in its range, more of them small.

    Integers are permuted in their row, so that end and padding tokens stay in it. Masks stay, of 0 and 1 or with
    infinities, and so do positions: integers that rise in equal steps. With `free` floats reach further, and all others
    are drawn from the existing ones except the largest, so that counts and extremes change, too.
    """
    if not tensor.numel() or tensor.is_meta or tensor.is_nested or tensor.layout != torch.strided:
        return tensor.detach()
    if tensor.is_complex():
        return torch.view_as_complex(other_values(torch.view_as_real(_cast(tensor, wide)), generator, wide, free))
    if not tensor.is_floating_point() or _is_float_mask(tensor):
        if free:
            return _like(tensor, _redraw(tensor.detach().flatten(), generator), wide)
        if tensor.is_floating_point() or _is_regular(tensor):
            return _cast(tensor, wide)
        keys = torch.rand(tensor.shape, generator=generator).to(tensor.device)
        return _like(tensor, tensor.detach().gather(-1, keys.argsort(-1)), wide)
    low, high = (float(end) * (RANGE_GROWTH**free if end * sign > 0 else 1) for end, sign in _ends(tensor))
    share = 0.05 + 0.9 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device) ** 2
    return _like(tensor, low + share * ((high - low) or 1.0), wide)


def _ends(tensor: Tensor) -> tuple[tuple[Tensor, int], tuple[Tensor, int]]:
    """Return the least and the largest number, each with the sign of its direction."""
    low, high = tensor.detach().double().aminmax()
    return (low, -1), (high, 1)


def _redraw(numbers: Tensor, generator: torch.Generator) -> Tensor:
    """Return numbers drawn from the existing ones, except the largest of more than `MAX_FLAG_VALUES`; flags from 0 and
    1.

    A single different number becomes one less.
    """
    known = numbers.unique()
    if ((known == 0) | (known == 1)).all():
        known = torch.tensor([0, 1]).to(known)
    elif len(known) > MAX_FLAG_VALUES:
        known = known[:-1]
    elif len(known) == 1:
        known = known - 1
    tokens = known[torch.randint(len(known), (len(numbers),), generator=generator).to(numbers.device)]
    return tokens if not torch.equal(tokens, numbers) else torch.where(tokens == known[0], known[-1], known[0])


def _is_float_mask(tensor: Tensor) -> bool:
    """Return whether floats are a mask: with infinities or their stand-ins, or of 0 and 1."""
    (low, _), (high, _) = _ends(tensor)
    return not (max(-low, high) <= INFINITY_THRESHOLD) or _is_binary(tensor.detach())


def _is_binary(values: Tensor) -> bool:
    """Return whether numbers are a mask of both 0 and 1."""
    return bool(((values == 0) | (values == 1)).all()) and bool(values.any()) and len(values) > 1


def _is_regular(tensor: Tensor) -> bool:
    """Return whether integers are a mask, or rise in equal steps: positions, rows, flags."""
    if tensor.min() >= 0 and tensor.max() <= 1:
        return True
    steps = tensor.diff(dim=-1) if tensor.dim() else tensor
    return not tensor.dim() or bool((steps == steps.flatten()[:1]).all())


def _normal(values: Tensor, generator: torch.Generator) -> Tensor:
    dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
    return torch.randn(len(values), generator=generator, dtype=dtype).to(values.device)


def _cast(tensor: Tensor, wide: bool) -> Tensor:
    return tensor.detach().to(WIDE_DTYPES.get(tensor.dtype, tensor.dtype) if wide else tensor.dtype, copy=True)


def _like(tensor: Tensor, values: Tensor, wide: bool) -> Tensor:
    """Return the values in the shape and memory layout of a tensor."""
    dtype = WIDE_DTYPES.get(tensor.dtype, tensor.dtype) if wide else tensor.dtype
    tensor_like = torch.empty_like(tensor, dtype=dtype, requires_grad=False)
    return tensor_like.copy_(values.reshape(tensor.shape))
