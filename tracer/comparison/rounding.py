"""Rounding of one line in two runs: the difference of each cell, as a share of what rounding explains.

The values of a line differ by what its operands differ by, which its equation says, and by the rounding of its own
terms in each run, which `tracer.expr.error_bounds` bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tracer.expr import tensors
from tracer.expr.error_bounds import HALVES, count
from tracer.record.steps import Step, dtype_name, tolerance
from tracer.record.trace import Trace
from tracer.textbook.derivation import DerivedStep
from tracer.tracing.proofs import KeyedTensors, compute_bounds, execute_exactly
from tracer.utils.torch_state import INFINITY_THRESHOLD, Difference


class RunEquations:
    """Equations of a run while its model exists, and the tensors that they read."""

    def __init__(self, trace: Trace):
        self.values: Any = trace.later.values() if trace.later else None
        self.steps: Mapping[str, DerivedStep] = (
            {step.line.id: step for step in trace.later.derived_steps} if trace.later else {}
        )
        self.sizes = trace.later.sizes if trace.later else {}

    def bounds(self, step: Step, traced: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the value of the equation of a step, and the rounding bound of each cell in a dtype; None without an
        equation that gives the traced tensor."""
        derived = self.steps.get(step.id)
        if derived is None:
            return None
        equation = derived.line.equation
        coarse = dtype in HALVES and len(derived.ops) >= count(equation) + 2
        value, bound = compute_bounds(equation, self.values, self.sizes, dtype, coarse, True)
        bound = torch.zeros_like(value) if bound is None else bound.nan_to_num(torch.inf)
        shares = Difference(value, traced.to(value.dtype)).shares(bound)
        return (value, bound) if not shares.numel() or shares.max() <= 1 else None


class _Counterparts(KeyedTensors):
    """Tensors of one run by the keys of the other run's equations."""

    def __init__(self, values: Any, partner: Mapping[str, str]):
        self._values, self._partner, self._fused = values, partner, {}

    def __call__(self, key: str) -> torch.Tensor | None:
        return self._values(self._partner.get(key, key))


def rounding_shares(
    pair: tuple[Step, Step],
    runs: tuple[RunEquations, RunEquations],
    partner: Mapping[str, str],
    alike: Callable[[torch.Tensor, torch.Tensor], bool],
    a: torch.Tensor,
    b: torch.Tensor,
) -> torch.Tensor | None:
    """Return |b - a| of each cell as a share of what rounding explains; None where the equations can't say.

    `partner` has the line of the second run by that of the first, and `alike` says whether two operands are equal up
    to rounding: only then the difference of the operands is a part of what is explained.
    """
    dtype = max((a.dtype, b.dtype), key=lambda dtype: tolerance(dtype_name(dtype)))
    if not (dtype.is_floating_point or dtype.is_complex):
        return None
    try:
        own = [run.bounds(*line, dtype) for run, line in zip(runs, zip(pair, (a, b), strict=True), strict=True)]
        first, second = own
        if first is None or second is None:
            return None
        (value, bound), (_, other_bound) = first, second
        equation = runs[0].steps[pair[0].id].line.equation
        theirs = _Counterparts(runs[1].values, partner)
        keys = dict.fromkeys(tensor.key for tensor in tensors(equation))
        operands = [(runs[0].values.tensor(key), theirs.tensor(key)) for key in keys]
        target = a.to(value.dtype)
        if all(alike(*operand) for operand in operands):
            moved = execute_exactly(equation, theirs, runs[1].sizes) - value
            target = target + moved.reshape(a.shape).nan_to_num(0.0, 0.0, 0.0)
        allowed = bound.reshape(a.shape) + other_bound.reshape(b.shape)
    except (LookupError, RuntimeError, TypeError, ValueError):  # other operands, or of other shapes
        return None
    shares = Difference(b.to(target.dtype), target).shares(allowed)
    if not target.is_complex():
        shares = shares.masked_fill((a < -INFINITY_THRESHOLD) & (b < -INFINITY_THRESHOLD), 0)
    return shares
