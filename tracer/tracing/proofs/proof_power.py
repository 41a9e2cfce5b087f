"""Power of a proof: the operands of a line that can be knocked out without the comparison noticing.

A residual whose branch is scaled by 1e-6 looks the same without it, and a gain of ones the same in another order. Such
operands are looked for in the traced run first, and what is not seen there in runs with other weights and inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from typing import Any

import torch

from tracer.expr import Node, tensors
from tracer.expr.error_bounds import fractional
from tracer.record import Step
from tracer.textbook.steps import DerivedStep
from tracer.tracing.proofs.deferred_proofs import DeferredProofs
from tracer.tracing.proofs.step_proof import Values, compare, execute_exactly
from tracer.utils.progress import tell
from tracer.utils.tensor_diff import margins


def zero(x: torch.Tensor) -> torch.Tensor:
    """Return zeros: the operand omitted from a sum."""
    return torch.zeros_like(x)


def roll(x: torch.Tensor) -> torch.Tensor:
    """Permute the operand: by one position along its last axis of more than one; a single number grows by half."""
    axis = next((axis for axis in reversed(range(x.dim())) if x.shape[axis] > 1), None)
    return x * 1.5 if axis is None else x.roll(1, axis)


def replace_by_ones(x: torch.Tensor) -> torch.Tensor:
    """Return ones: the operand omitted from a product."""
    return torch.ones_like(x)


PERTURBATIONS = zero, roll, replace_by_ones
"""What is done to an operand; a comparison that sees it notices each of these."""


class ChangedValues:
    """Values of a run, with one operand changed."""

    def __init__(self, value: Any, key: str, change: Callable[[torch.Tensor], torch.Tensor]):
        self._value, self._key, self._change = value, key, change

    def tensor(self, key: str) -> torch.Tensor:
        """Return the tensor of that key, changed if it is the operand."""
        tensor = self._value.tensor(key)
        return self._change(tensor) if key == self._key else tensor


class ProbeValues:
    """Tensors of another run by the keys of equations, as `Values` are of the traced one.

    `line` is a line that was rounded to a lower `precision` on the way: its tensor has that dtype.
    """

    def __init__(self, tensor: Callable[[str], torch.Tensor | None], places: dict[str, str | None], fused, sizes):
        self._tensor, self._places, self._fused, self._sizes = tensor, places, fused, sizes
        self._line = self._precision = ""

    def in_precision(self, line: str, precision: str) -> ProbeValues:
        """Return the same tensors for a line that was computed in a lower precision, such as `float32`."""
        values = copy(self)
        values._line, values._precision = line, precision
        return values

    def __call__(self, key: str) -> torch.Tensor | None:
        if key in self._fused:
            known = all(self(tensor.key) is not None for tensor in tensors(self._fused[key]))
            return execute_exactly(self._fused[key], self, self._sizes) if known else None
        place = self._places.get(key, key)
        value = None if place is None else self._tensor(place)
        if value is not None and key == self._line and value.dtype == torch.float64:
            return value.to(getattr(torch, self._precision))
        return value

    def tensor(self, key: str) -> torch.Tensor:
        """Return the tensor of that key. Raise LookupError if there is none."""
        tensor = self(key)
        if tensor is None:
            raise LookupError(key)
        return tensor

    def fused_equation(self, key: str) -> Node | None:
        """Return the equation of a tensor that a fused op never held, or None for any other."""
        return self._fused.get(key)


def unseen(
    step: DerivedStep, value: Values | ProbeValues, sizes: dict[str, int], keys: Iterable[str] | None = None
) -> dict[str, bool]:
    """Return the keys of operands, of all or of these, that the comparison of a step with a run does not see: each can
    be zeroed, rolled by one, or replaced by ones, and no cell exceeds its tolerance.

    With each is whether that is only so for changes that leave it as it is, such as the order of equal numbers. All
    of them are returned where the run does not have the tensors, or the line does not hold there.
    """
    tell()
    equation = step.line.equation
    chosen = tuple(dict.fromkeys(tensor.key for tensor in tensors(equation)) if keys is None else keys)
    try:
        traced = value.tensor(step.line.tensor.key)
        proof, allowed = compare(step, value, sizes)
        if proof.margin is None or not proof.margin <= 1:
            return dict.fromkeys(chosen, False)
        operands = {key: value.tensor(key) for key in chosen}
        hidden = {
            key: _hidden_changes(equation, value, sizes, key, traced, allowed)
            for key, operand in operands.items()
            if fractional(operand) and operand.numel()
        }
        return {
            key: len(changes) < len(PERTURBATIONS)
            and all(torch.equal(change(operands[key]), operands[key]) for change in changes)
            for key, changes in hidden.items()
            if changes
        }
    except (LookupError, RuntimeError, TypeError, ValueError):
        return dict.fromkeys(chosen, False)


def unseen_in_run(later: DeferredProofs, steps: Iterable[Step]) -> dict[str, dict[str, bool]]:
    """Return the operands of each proven step, as `unseen` does, that its proof does not see in the traced run."""
    derived_steps, value = {step.line.id: step for step in later.derived_steps}, later.values()
    with torch.no_grad():
        return {
            step.id: unseen(derived_steps[step.id], value, later.sizes) for step in steps if step.verdict == "proven"
        }


def _hidden_changes(
    equation: Node, value, sizes: dict[str, int], key: str, traced: torch.Tensor, allowed
) -> list[Callable[[torch.Tensor], torch.Tensor]]:
    """Return the ways to knock an operand out that make no cell wrong."""
    hidden: list[Callable[[torch.Tensor], torch.Tensor]] = []
    for change in PERTURBATIONS if traced.numel() else ():
        try:
            output = execute_exactly(equation, ChangedValues(value, key, change), sizes)
            output = output.double() if output.dtype == torch.bool else output
            if output.shape == traced.shape and margins(output, traced, allowed).max() <= 1:
                hidden.append(change)
        except (RuntimeError, IndexError, TypeError, ValueError):  # the operand is not one that can be exchanged
            continue
    return hidden
