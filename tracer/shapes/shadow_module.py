"""Copies of the caller's module that run at other sizes and share its parameters, and nets without values."""

from __future__ import annotations

import copy
from collections.abc import Callable
from logging import LogRecord, getLogger
from numbers import Number
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tracer.utils.internals.torch_internals import DispatchMode, fake_tensor_mode


def shadow_copy(value: Any, shared: dict[int, torch.Tensor]) -> Any:
    """Return a deep copy in which each tensor is replaced by the entry of `shared` for its id, or copied.

    Changes in a forward (caches, counters, attributes, buffers) stay in the copy.
    """
    with _Detaching():
        return copy.deepcopy(value, dict(shared))


SCALING_METHODS = ("mul", "rmul", "truediv", "div", "pow", "rpow", "neg", "add", "sub")
"""Methods that keep a tensor's shape if all other arguments are plain numbers."""

COPYABLE_LAYOUTS = torch.strided, torch.sparse_coo
"""Layouts that `copy.deepcopy` supports."""


class _Detaching(TorchFunctionMode):
    """A mode that copies tensors for which PyTorch's `deepcopy` fails: results of computations, and compressed ones."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__deepcopy__ and not (args[0].is_leaf and args[0].layout in COPYABLE_LAYOUTS):
            tensor, memo = args
            memo[id(tensor)] = copied = tensor.detach().clone()
            return copied
        return func(*args, **(kwargs or {}))


def parameters(module: torch.nn.Module) -> dict[int, torch.Tensor]:
    """Return the parameters of a module by their ids, which its copies share."""
    return {id(parameter): parameter for parameter in module.parameters()}


def without_values(module: torch.nn.Module) -> tuple[dict[int, torch.Tensor], Any]:
    """Return stand-ins without values for the parameters and buffers of a module, and the mode that they run in.

    The mode has `from_tensor`. Ops then cost next to nothing, and are those of the device that the tensors report.
    """
    mode = valueless_mode()
    tensors = [*module.parameters(), *module.buffers()]
    return {id(tensor): mode.from_tensor(tensor) for tensor in tensors}, mode


def valueless_mode() -> Any:
    """Return a mode in which tensors have shapes but no values. It raises, without logging, if a size does not fit."""
    mode = fake_tensor_mode()
    getLogger(type(mode).__module__).addFilter(_is_for_reader)
    return mode


def _is_for_reader(message: LogRecord) -> bool:
    """Return whether a log message is for the user; refusals of a size are not, since others follow."""
    return not message.getMessage().startswith("failed while attempting to run meta")


class OnMeta(DispatchMode):
    """A mode for nets on `meta`, where a batch norm that learns nothing returns statistics that it leaves empty
    elsewhere."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.native_batch_norm.default and not args[5]:
            return result[0], result[1].new_empty(0), result[2].new_empty(0)
        return result


class TooLarge(ValueError):
    """An error for a model beyond the limits of blocks or parameters, with one sentence."""


def on_meta(make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """Return the result of `make()` on `meta`, without memory.

    Also a `make` that reads numbers of the sequences from which it counts its sizes works. Raise `TooLarge` in one
    sentence for more parameters than can be counted.
    """
    try:
        with torch.device("meta"), _SkipInitialisation():
            return make()
    except (RuntimeError, TypeError) as error:
        if "overflow" in str(error).lower():
            raise TooLarge("a model of these sizes has more parameters than can be counted") from None
        if isinstance(error, TypeError) or "meta" not in str(error):
            raise
    with torch.device("meta"), _SkipInitialisation(), _FillSequences():
        return make().to("meta")


class _FillSequences(TorchFunctionMode):
    """A mode that creates sequences of numbers with values if no device is chosen."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.arange, torch.linspace, torch.logspace, torch.tensor, torch.as_tensor):
            kwargs = {"device": "cpu", **(kwargs or {})}
        return func(*args, **(kwargs or {}))


class _SkipInitialisation(TorchFunctionMode):
    """A mode that skips initialisation of tensors without memory.

    On `meta`, random initialisation would load PyTorch's compiler, which takes seconds and memory.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, func.__name__
        arguments = [*args, *kwargs.values()]
        if name == "randn":
            return torch.empty(*args, **kwargs)
        if arguments and isinstance(arguments[0], torch.Tensor) and arguments[0].is_meta:
            scaled = name.strip("_") in SCALING_METHODS and all(
                isinstance(argument, Number) for argument in arguments[1:]
            )
            if scaled or (name.endswith("_") and not name.endswith("__")):
                return arguments[0]
        return func(*args, **kwargs)
