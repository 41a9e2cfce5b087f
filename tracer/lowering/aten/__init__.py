"""Registry of lowerings by op: a row of `formulas.py`, or a function that the other modules register.

Names are those of ATen without overload and without the underscore of in-place ops: `add` is `aten::add_.Tensor` too.
There are composite ops (`linear`) and the ops that they decompose to (`addmm`). An op without a lowering is a `Kernel`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from tracer.expr import Node
from tracer.expr.function_call import Kernel
from tracer.lowering.aten.formulas import FORMULAS
from tracer.lowering.call_arguments import BoundCall, hold
from tracer.lowering.patterns import fill, lower
from tracer.ops import base
from tracer.utils.lazy_import import import_folder

Lowering = Callable[[BoundCall], Node | None]
"""Returns the node of a call; None if the call has no formula with these arguments."""

_LOWERINGS: dict[str, Lowering] = {}
_EVERY_OUTPUT: set[str] = set()


def register_lowering(*names: str, every_output: bool = False) -> Callable[[Lowering], Lowering]:
    """Register the lowering of ops of these names, of the first output of an op or of `every_output`. Raise ValueError
    for an op that has one."""

    def register(lowering: Lowering) -> Lowering:
        for name in names:
            if name in _LOWERINGS:
                raise ValueError(f"the op {name!r} has two lowerings")
            _LOWERINGS[name] = lowering
        _EVERY_OUTPUT.update(names if every_output else ())
        return lowering

    return register


def has_lowering(name: str) -> bool:
    """Return whether an op has a lowering; it can still be a kernel with some arguments."""
    return base(name) in _LOWERINGS


def names() -> tuple[str, ...]:
    """Return all ops that have a lowering."""
    return tuple(sorted(_LOWERINGS))


def node(call: BoundCall) -> Node:
    """Return the node of a call; a `Kernel` if it has no formula."""
    name = call.op.name
    lowering = _LOWERINGS.get(name) if not call.position or name in _EVERY_OUTPUT else None
    lowered = lowering(call) if lowering else None
    if lowered is not None:
        return hold(call, lowered)
    single = "ambiguous" in call.op.traits and call.dtype(call.first) == torch.float32
    return Kernel.of(call.func, call.kernel(), call.position, call.result, single, call.dtypes)


def kernels(equation: Node) -> tuple[Kernel, ...]:
    """Return the nodes of an equation that run PyTorch's own op."""
    inner = tuple(kernel for operand in equation.operands for kernel in kernels(operand))
    return (equation, *inner) if isinstance(equation, Kernel) else inner


import_folder(__name__)
for _names, _row in FORMULAS.items():
    _lowering = partial(lower, *_row) if isinstance(_row, tuple) else partial(fill, _row)
    register_lowering(*_names.split())(_lowering)
