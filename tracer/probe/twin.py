"""What is run at other sizes in place of the caller's module: a copy, which shares its parameters."""

from __future__ import annotations

import copy
from logging import LogRecord, getLogger
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

WIDER = 1.5
"""How much further other values of an input reach."""
FEW = 2
"""Different whole numbers that are flags, such as those of a mask, and no ids."""


def twin(value, shared: dict[int, torch.Tensor]):
    """A deep copy in which each tensor stands by what `shared` has for its id, and is copied where it has none.

    What a forward changes in a copy of a module (caches, counters, attributes, buffers) stays in the copy.
    """
    with _Detaching():
        return copy.deepcopy(value, dict(shared))


class _Detaching(TorchFunctionMode):
    """Lets tensors be copied that came of a computation: PyTorch copies no others than those one made oneself."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__deepcopy__ and not args[0].is_leaf:
            tensor, memo = args
            memo[id(tensor)] = made = tensor.detach().clone()
            return made
        return func(*args, **(kwargs or {}))


def parameters(module: torch.nn.Module) -> dict[int, torch.Tensor]:
    """The parameters of a module by their ids, which its twins share."""
    return {id(parameter): parameter for parameter in module.parameters()}


def without_values(module: torch.nn.Module) -> tuple[dict[int, torch.Tensor], Any]:
    """Stand-ins for the parameters and buffers of a module that have shapes and no values, and the mode in which they
    are run (it has `from_tensor`): ops then cost next to nothing, and are those of the device that tensors say they are
    on."""
    mode = valueless_mode()
    tensors = [*module.parameters(), *module.buffers()]
    return {id(tensor): mode.from_tensor(tensor) for tensor in tensors}, mode


def valueless_mode():
    """A mode in which tensors have shapes and no values; where a size does not fit, it raises and logs nothing."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # loads a part of PyTorch that takes a second

    getLogger(FakeTensorMode.__module__).addFilter(_at_other_sizes)
    return FakeTensorMode(allow_non_fake_inputs=True)


def _at_other_sizes(said: LogRecord) -> bool:
    """Whether a message of PyTorch's is for the reader: that an op refused a size is not, since others are tried."""
    return not said.getMessage().startswith("failed while attempting to run meta")


def revalued(value, moved: bool = False):
    """Nested inputs with other values in their tensors: floats of their signs in a wider range, more of them small, so
    that counts and extremes change; whole numbers drawn among those that there are, but for the largest. With `moved`
    these and truth stay the same, in another order: some models count them."""
    draw = torch.Generator().manual_seed(1)
    known: dict[int, torch.Tensor] = {}  # one tensor given twice stays one: a model may ask

    def once(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in known:
            known[id(tensor)] = other(tensor)
        return known[id(tensor)]

    def other(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.numel() or tensor.is_meta or tensor.is_nested or tensor.layout != torch.strided:
            return tensor
        one = tensor.detach()
        if one.is_complex():
            return one.roll(1, -1) if one.dim() else one
        if one.is_floating_point():
            low, high = float(one.min()), float(one.max())
            low, high = (WIDER * low if low < 0 else low), (WIDER * high if high > 0 else high)
            share = 0.05 + 0.9 * torch.rand(one.shape, generator=draw, dtype=torch.float64) ** 2
            return torch.empty_like(one).copy_(low + share * ((high - low) or 1.0))
        numbers = one.reshape(-1)
        if moved:
            places = torch.randperm(one.numel(), generator=draw)
        else:
            if numbers.unique().numel() > FEW:
                numbers = numbers[numbers < numbers.max()]
            places = torch.randint(numbers.numel(), (one.numel(),), generator=draw)
        return torch.empty_like(one).copy_(numbers[places.to(one.device)].reshape(one.shape))

    return tree_map_only(torch.Tensor, once, value)
