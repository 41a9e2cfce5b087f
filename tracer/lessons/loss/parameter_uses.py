"""Uses of each parameter in a forward pass: the call, its operand, and its result in the graph of autograd."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

CALLS = {
    F.linear: ("input", "weight", "bias"),
    torch.addmm: ("bias", "input", "weight"),
    F.embedding: ("input", "weight"),
    F.layer_norm: ("input", "normalized_shape", "weight", "bias", "eps"),
    F.rms_norm: ("input", "normalized_shape", "weight", "eps"),
}
"""The calls that take a parameter, with their arguments in order."""
SUMS = (torch.Tensor.add, torch.Tensor.__add__, torch.add)
"""Functions that add two tensors."""
FACTORS = (torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__, torch.mul)
"""Functions that multiply two tensors cell by cell."""
PRODUCTS = ("linear", "addmm")
"""The calls that compute XW + b."""
NORM_OPERANDS = 12
"""How many operands of the last calls are kept: of those that a norm in several calls has, and a few more."""
LAYOUTS = (torch.Tensor.view, torch.Tensor.reshape, torch.Tensor.transpose, torch.transpose)
SLICE = torch.Tensor.__getitem__


class ParameterUse(NamedTuple):
    """One use of a parameter: `call` is "add", "mul" or the name of one of `CALLS`, `argument` the parameter's name
    there, and `operand` the other operand.

    `results` are what came out, and the same in other layouts, as the code went on with it; `sums` are those of a
    result with another tensor. `rows` is the number of first rows that were used, None for all. `before` are operands
    of the calls before a product, of the shape of its result.
    """

    call: str
    argument: str
    operand: torch.Tensor | None
    results: list[torch.Tensor]
    sums: list[torch.Tensor]
    bias: str = ""
    eps: float = 0.0
    rows: int | None = None
    before: tuple[torch.Tensor, ...] = ()


class ParameterUses(TorchFunctionMode):
    """Uses of the parameters of a net, by their paths, for as long as it is active in this thread.

    `unknown` has the parameters that also took part in another call.
    """

    def __init__(self, net: nn.Module):
        super().__init__()
        self.paths = {id(parameter): path for path, parameter in net.named_parameters()}
        self.of: dict[str, list[ParameterUse]] = {path: [] for path in self.paths.values()}
        self.unknown: set[str] = set()
        self._results: dict[int, list[torch.Tensor]] = {}
        self._sums: dict[int, list[torch.Tensor]] = {}
        self._slices: dict[int, tuple[str, torch.Tensor]] = {}
        self._last: deque[torch.Tensor] = deque(maxlen=NORM_OPERANDS)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.requires_grad:
            self._record(func, args, kwargs or {}, result)
            self._last.extend(value for value in args if isinstance(value, torch.Tensor))
        return result

    def _record(self, func, args: tuple, named: Mapping, result: torch.Tensor) -> None:
        if func in LAYOUTS and id(args[0]) in self._results:
            results = self._results[id(args[0])]
            results.append(result)
            self._results[id(result)] = results
            self._sums[id(result)] = self._sums[id(args[0])]
            return
        paths = {self._path(value): value for value in (*args, *named.values()) if self._path(value)}
        if not paths:
            if func in SUMS:
                for operand in args:
                    self._sums.get(id(operand), []).append(result)
            return
        if func in CALLS:
            self._record_call(func, dict(zip(CALLS[func], args, strict=False)) | dict(named), result)
        elif func is SLICE and (rows := _first_rows(args[1])) is not None and id(args[0]) in self.paths:
            self._slices[id(result)] = self.paths[id(args[0])], result
        elif func in SUMS and len(paths) == 1 and len(args) == 2:
            ((path, part),) = paths.items()
            rows = part.shape[0] if id(part) in self._slices else None
            self.of[path].append(ParameterUse("add", "", None, *self._keep(result), rows=rows))
        elif func in FACTORS and len(paths) == 1 and all(isinstance(value, torch.Tensor) for value in args):
            ((path, parameter),) = paths.items()
            (operand,) = (value for value in args if value is not parameter)
            before = tuple(tensor for tensor in self._last if tensor.shape == result.shape)
            self.of[path].append(ParameterUse("mul", "", operand, *self._keep(result), before=before))
        else:
            self.unknown |= paths.keys()

    def _record_call(self, func, arguments: Mapping, result: torch.Tensor) -> None:
        """Note the weight and the bias of a call."""
        kept = self._keep(result)
        for argument in ("weight", "bias"):
            if path := self.paths.get(id(arguments.get(argument)), ""):
                bias = self.paths.get(id(arguments.get("bias")), "")
                eps = arguments.get("eps") or 0.0
                self.of[path].append(ParameterUse(func.__name__, argument, arguments["input"], *kept, bias, eps))

    def _path(self, value) -> str:
        """Return the path of a parameter, or of that whose first rows a tensor is; "" for any other."""
        return self.paths.get(id(value)) or self._slices.get(id(value), ("", None))[0]

    def _keep(self, result: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the lists of a result's layouts and sums, which grow during the forward pass."""
        self._results[id(result)], self._sums[id(result)] = kept = [result], []
        return kept


def _first_rows(index) -> int | None:
    """Return how many first rows an index takes; None if it takes others."""
    if isinstance(index, slice) and not index.start and index.step in (None, 1) and isinstance(index.stop, int):
        return index.stop if index.stop >= 0 else None
    return None
