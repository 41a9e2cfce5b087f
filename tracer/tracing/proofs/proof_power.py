"""The power of a proof: the operands of a line that can be knocked out without the comparison noticing.

A residual whose branch is scaled by 1e-6 looks the same without it, and a gain of ones the same in another order. Such
operands are looked for in the traced run first, and what is not seen there in runs with other weights and inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from tracer.expr import Node, tensors
from tracer.expr.error_bounds import fractional
from tracer.record import Step
from tracer.textbook.steps import Found
from tracer.tracing.proofs.deferred_proofs import Later
from tracer.tracing.proofs.step_proof import Values, compare, execute_exactly
from tracer.utils.progress import tell
from tracer.utils.tensor_diff import margins


def zero(x: torch.Tensor) -> torch.Tensor:
    """Return zeros: the operand left out of a sum."""
    return torch.zeros_like(x)


def roll(x: torch.Tensor) -> torch.Tensor:
    """Permute the operand: by one position along its last axis of more than one; a single number is half more."""
    axis = next((axis for axis in reversed(range(x.dim())) if x.shape[axis] > 1), None)
    return x * 1.5 if axis is None else x.roll(1, axis)


def replace_by_ones(x: torch.Tensor) -> torch.Tensor:
    """Return ones: the operand left out of a product."""
    return torch.ones_like(x)


KNOCKED = zero, roll, replace_by_ones
"""What is done to an operand; a comparison that sees it notices each of these."""


class Other:
    """The values of a run, with one operand changed."""

    def __init__(self, value: Any, key: str, change: Callable[[torch.Tensor], torch.Tensor]):
        self._value, self._key, self._change = value, key, change

    def tensor(self, key: str) -> torch.Tensor:
        """Return the tensor of that key, changed if it is the operand."""
        found = self._value.tensor(key)
        return self._change(found) if key == self._key else found


class Elsewhere:
    """The tensors of another run by the keys of equations, as `Values` has those of the traced one."""

    def __init__(self, tensor: Callable[[str], torch.Tensor | None], places: dict[str, str | None], fused, sizes):
        self._tensor, self._places, self._fused, self._sizes = tensor, places, fused, sizes

    def __call__(self, key: str) -> torch.Tensor | None:
        if key in self._fused:
            known = all(self(tensor.key) is not None for tensor in tensors(self._fused[key]))
            return execute_exactly(self._fused[key], self, self._sizes) if known else None
        place = self._places.get(key, key)
        return None if place is None else self._tensor(place)

    def tensor(self, key: str) -> torch.Tensor:
        """Return the tensor of that key. Raise LookupError if there is none."""
        found = self(key)
        if found is None:
            raise LookupError(key)
        return found

    def inside(self, key: str) -> Node | None:
        """Return the equation of a tensor that a fused op never held, or None for any other."""
        return self._fused.get(key)


def unseen(
    step: Found, value: Values | Elsewhere, sizes: dict[str, int], keys: Iterable[str] | None = None
) -> tuple[str, ...]:
    """Return the keys of operands, of all or of these, that the comparison of a step with a run does not see: each can
    be zeroed, rolled by one, or be ones, and no cell is off by more than it is allowed.

    All of them where the run does not have the tensors, or the line does not hold there.
    """
    tell()
    equation = step.line.equation
    chosen = tuple(dict.fromkeys(tensor.key for tensor in tensors(equation)) if keys is None else keys)
    try:
        traced = value.tensor(step.line.tensor.key)
        proof, allowed = compare(step, value, sizes)
        if proof.margin is None or not proof.margin <= 1:
            return chosen
        operands = {key: value.tensor(key) for key in chosen}
        return tuple(
            key
            for key, operand in operands.items()
            if fractional(operand) and operand.numel() and not _is_seen(equation, value, sizes, key, traced, allowed)
        )
    except (LookupError, RuntimeError, TypeError, ValueError):
        return chosen


def unseen_in_run(later: Later, steps: Iterable[Step]) -> dict[str, tuple[str, ...]]:
    """Return the operands of each proven step, by their keys, that its proof does not see in the traced run."""
    found, value = {step.line.id: step for step in later.derived_steps}, later.values()
    with torch.no_grad():
        return {step.id: unseen(found[step.id], value, later.sizes) for step in steps if step.verdict == "proven"}


def _is_seen(equation: Node, value, sizes: dict[str, int], key: str, traced: torch.Tensor, allowed) -> bool:
    """Return whether each way to knock an operand out makes a cell wrong."""
    if not traced.numel():
        return True
    for change in KNOCKED:
        try:
            made = execute_exactly(equation, Other(value, key, change), sizes)
            made = made.double() if made.dtype == torch.bool else made
            if made.shape == traced.shape and margins(made, traced, allowed).max() <= 1:
                return False
        except (RuntimeError, IndexError, TypeError, ValueError):  # the operand is not one that can be exchanged
            continue
    return True
