"""Private names of PyTorch that the project needs, each with the reason. Tested with torch 2.13.

| what | why no public name serves |
|---|---|
| the walk over nested values | `torch.utils.pytree` is not public in Python. |
| dispatch modes, and the stack of them | They are documented, but only under `torch.utils._python_dispatch`. |
| the keys of autograd | Only they show composite ops, such as `linear`, to a dispatch mode. |
| schemas of ops | An `OpOverload` gives its name in public, but not its arguments. |
| decompositions | `torch.export` opens ops only down to a set of its own, and not one at a time. |
| storages | Tensors without values have no `data_ptr` to tell their storages apart by. |
| fake tensors | They are tensors without values that keep their device. |
| the hooks of a module | They are registered and removed in public, and can't be read or replaced. |
| the members of a module | A function that is a method shares its module's, which may come and go in a run. |
| the function that calls a module | Only the frames of an error know which modules were running. |
| the marks of `torch.compile` | What is compiled is refused, without loading the compiler to ask. |
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import keystr, tree_leaves, tree_leaves_with_path, tree_map_only

MODULE_CALL = "_call_impl"
"""The name of the function that calls a module's forward, `self` its module."""

__all__ = ["HigherOrderOperator", "OpOverloadPacket", "keystr", "tree_leaves", "tree_leaves_with_path", "tree_map_only"]
"""Names of PyTorch that are passed on unchanged."""

_AUTOGRAD_KEYS = (
    torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradFunctionality)
    | torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradOther)
    | torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
)
"""The keys under which PyTorch takes composite ops apart."""

disable_dispatch_modes = _disable_current_modes
"""A context in which the ops of this thread pass by its dispatch modes."""
push_dispatch_mode = torch._C._push_on_torch_dispatch_stack
"""Pass the ops of this thread to a mode. `TorchDispatchMode.__enter__` also writes process-wide flags that stay set
after concurrent traces."""


def pop_dispatch_mode() -> None:
    """Pop the last pushed mode off the stack of this thread."""
    torch._C._pop_torch_dispatch_stack(None)


class DispatchMode(TorchDispatchMode):
    """Base of dispatch modes, without the guard against being compiled: it costs as much as a small op at every op, and
    loads PyTorch's compiler, more than a second at start-up."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def exclude_autograd_keys() -> AbstractContextManager:
    """Return a guard under which composite ops are shown to the dispatch mode of this thread."""
    return torch._C._ExcludeDispatchKeyGuard(_AUTOGRAD_KEYS)


def composite_ops_are_visible() -> bool:
    """Return whether a dispatch mode of this thread meets composite ops now."""
    return torch._C._dispatch_tls_local_exclude_set().has(torch._C.DispatchKey.AutogradFunctionality)


def restore_autograd_keys() -> AbstractContextManager:
    """Return a guard under which PyTorch decomposes composite ops again, and handles derivatives and views."""
    excluded = torch._C._dispatch_tls_local_exclude_set() - _AUTOGRAD_KEYS
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


def function_schema(func) -> Any:
    """Return the schema of an op: its name, `aten::add`, and its arguments. A stand-in for an op has it in public."""
    return func._schema if isinstance(func, OpOverload) else func.schema


def split_arguments(func, arguments: dict[str, Any]) -> tuple[list, dict[str, Any]]:
    """Return an op's arguments by position, and by name: some can't be named, since `self` is a name in Python, too."""
    positional, named = [], dict(arguments)
    for argument in function_schema(func).arguments:
        if argument.kwarg_only or argument.name not in named:
            break
        positional.append(named.pop(argument.name))
    return positional, named


@lru_cache(maxsize=1024)
def default_arguments(func) -> dict[str, Any]:
    """Return the arguments that an op has by default, by their names."""
    return {a.name: a.default_value for a in function_schema(func).arguments if a.has_default_value()}


def has_composite_kernel(func) -> bool:
    """Return whether autograd takes an op apart into others."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def is_decomposable(func) -> bool:
    """Return whether an op has a composite kernel in Python or in C++, whose ops `func.decompose` runs."""
    return func._can_decompose()


@lru_cache(maxsize=4096)
def op_decomposition(func) -> Callable | None:
    """Return PyTorch's own decomposition of an op, or None if it has none."""
    from torch._decomp import decomposition_table  # importing it takes a second, and few runs ask for it

    return func.decompose if is_decomposable(func) else decomposition_table.get(func)


def eager_kernel(func: HigherOrderOperator) -> Callable | None:
    """Return the eager code of an op that takes functions, in other ops, or None if it has none."""
    return func.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)


def storage_id(storage: torch.UntypedStorage) -> int:
    """Return the address of a storage's record, which differs between storages without values, too, while they live."""
    return storage._cdata


def count_storage_owners(id: int) -> int:
    """Return how many tensors and storages share the memory of the storage with that `storage_id`."""
    return torch._C._storage_Use_Count(id)


def write_count(tensor: Tensor) -> int:
    """Return how often a tensor's memory was written into; inference tensors don't count."""
    return 0 if tensor.is_inference() else tensor._version


def share_members(module: torch.nn.Module, owner: torch.nn.Module) -> None:
    """Share with a module the parameters, buffers and submodules of another, including those added to either later."""
    module._parameters, module._buffers, module._modules = owner._parameters, owner._buffers, owner._modules


def buffers_of(module: torch.nn.Module) -> dict[str, Any]:
    """Return the buffers of a module alone, by their names: its own dictionary."""
    return module._buffers


def map_hooks(module: torch.nn.Module, function: Callable[[Callable], Callable]) -> None:
    """Replace each hook that runs before or after a module's forward by a function of it, in the same order."""
    for name in ("_forward_hooks", "_forward_pre_hooks"):
        hooks = vars(module)[name]
        vars(module)[name] = type(hooks)((key, function(hook)) for key, hook in hooks.items())


def is_compiled(function: Callable) -> bool:
    """Return whether a module or a function comes from `torch.compile`, whose compiler is not loaded for the answer."""
    marks = ("_compiled_call_impl", "_torchdynamo_orig_callable", "_orig_mod")
    return any(getattr(function, mark, None) is not None for mark in marks)


def fake_tensor_mode() -> Any:
    """Return a mode in which tensors have shapes but no values."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # loads a part of PyTorch that takes a second

    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_tensor(mode, tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor without values that has the shape of one on `meta` and reports another device."""
    from torch._subclasses.fake_tensor import FakeTensor  # as above

    return FakeTensor(mode, tensor, device)
