"""A plain function as a module, so that it can be traced like one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator

from torch import Tensor, nn

from tracer.utils.error_text import quote
from tracer.utils.internals.torch_internals import is_compiled, share_members


class Function(nn.Module):
    """A module that calls a function. The modules and parameters that the function reads are its own, by the names it
    reads them by; those of a method are those of its module."""

    def __init__(self, function: Callable):
        super().__init__()
        self.forward = function
        owner = getattr(function, "__self__", None)
        self.owned = isinstance(owner, nn.Module)
        if self.owned:
            share_members(self, owner)
            return
        for name, value in _read(function):
            if isinstance(value, nn.Module):
                self.add_module(name, value)
            elif isinstance(value, nn.Parameter):
                self.register_parameter(name, value)
            elif isinstance(value, Tensor):
                self.register_buffer(name, value)


COMPILED_PROBLEM = (
    "{} was compiled by torch.compile, whose kernels hide the ops of PyTorch: trace what was compiled, before it is"
)


def as_module(function) -> nn.Module:
    """Return the module itself, or a function as one. Raise ValueError in one sentence for an object that can't be
    called, or is compiled."""
    if isinstance(function, nn.Module):
        for name, module in function.named_modules():
            if is_compiled(module):
                raise ValueError(COMPILED_PROBLEM.format(quote(name) if name else "the module"))
        return function
    if is_compiled(function):
        raise ValueError(COMPILED_PROBLEM.format("the function"))
    if not callable(function):
        raise ValueError(f"{quote(function)} can't be run, expected a module or a function")
    return Function(function)


def name_of(module: nn.Module) -> str:
    """Return the name of a module: its class, or the function that it calls."""
    if isinstance(module, Function):
        return getattr(module.forward, "__name__", type(module.forward).__name__).strip("<>")
    return type(module).__name__


def _read(function: Callable) -> Iterator[tuple[str, object]]:
    """Yield the values that a function reads from around it, by name."""
    if isinstance(function, functools.partial):
        yield from _read(function.func)
        bound = dict(enumerate(function.args)) | function.keywords
        yield from ((f"given_{name}", value) for name, value in bound.items())
    elif inspect.isfunction(function):
        around = inspect.getclosurevars(function)
        yield from {**around.globals, **around.nonlocals}.items()
    else:
        yield from getattr(function, "__dict__", {}).items()
