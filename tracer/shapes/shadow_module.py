"""What is run at other sizes in place of the caller's module: a copy, which shares its parameters."""

from __future__ import annotations

import copy
from logging import LogRecord, getLogger
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def twin(value, shared: dict[int, torch.Tensor]):
    """A deep copy in which each tensor stands by what `shared` has for its id, and is copied where it has none.

    What a forward changes in a copy of a module (caches, counters, attributes, buffers) stays in the copy.
    """
    with _Detaching():
        return copy.deepcopy(value, dict(shared))


DEEP = torch.strided, torch.sparse_coo
"""Layouts that `copy.deepcopy` knows."""


class _Detaching(TorchFunctionMode):
    """Lets tensors be copied that PyTorch copies no more: those that came of a computation, and compressed ones."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__deepcopy__ and not (args[0].is_leaf and args[0].layout in DEEP):
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
