"""Deferred proofs, and the operands of cells: queries that a trace sends to its run while the model exists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from tracer.expr import Node, tensors
from tracer.record import Step, Trace
from tracer.textbook.steps import DerivedStep, Line
from tracer.tracing.proofs.rerun import Rerun
from tracer.tracing.proofs.step_proof import Proof, Values, apply_proof, prove, stacks, weights
from tracer.utils.internals.torch_internals import write_count


class QueriedRun(NamedTuple):
    """What queries need of a run: the module, the tensors, the steps with their equations, and the sizes."""

    module: torch.nn.Module
    values: Mapping[str, torch.Tensor]
    steps: Sequence[DerivedStep]
    sizes: dict[str, int]


class DeferredProofs:
    """Deferred queries of a run: pending proofs, and the operands of its cells.

    It holds the model, the equations and the tensors that these need, while a trace has it. `values` has the traced
    tensors, the inputs as `input NAME` and what nothing of the run made as `constant N`; nothing rewrites these.
    """

    def __init__(
        self,
        run: QueriedRun,
        rerun: Rerun | None = None,
        named: frozenset[int] = frozenset(),
        respell: Callable[[frozenset[int]], Trace] | None = None,
    ):
        self.run, self._rerun = run, rerun
        self._named, self._respell = named, respell
        self._derived_steps = {step.line.id: step for step in run.steps}
        self._states = {name: _state(tensor) for name, tensor in weights(run.module).items()}

    @property
    def derived_steps(self) -> Sequence[DerivedStep]:
        """Steps of the run with their equations."""
        return self.run.steps

    def rewrite(self, change: Callable[[Line], Node]) -> DeferredProofs:
        """Return the same run, with the equations that `change` returns for its lines."""
        steps = [step._replace(line=replace(step.line, equation=change(step.line))) for step in self.run.steps]
        return DeferredProofs(self.run._replace(steps=steps), self._rerun)

    def __call__(self, steps: Iterable[Step]) -> dict[str, Step]:
        """Return these steps with their proofs, by id."""
        steps, value, sizes, changed = list(steps), self.values(), self.run.sizes, self.rewritten()
        proofs = {}
        if self._rerun and not changed:
            lacking = self._rerun.missing_lines((self._derived_steps[step.id] for step in steps), value)
            proofs = self._rerun.prove(lacking, self.derived_steps)
        return {
            step.id: apply_proof(step, proofs[step.id])
            if step.id in proofs
            else self._prove_kept(step, value, sizes, changed)
            for step in steps
        }

    def spell(self, steps: Iterable[Step]) -> Trace | None:
        """Return the run as its code has it where the proofs of these steps refute the names of formulas, `named` by
        their ops; None where they refute none. Its own steps are still to be proven."""
        refuted = {op for step in steps if step.verdict == "disproven" for op in self._derived_steps[step.id].ops}
        return self._respell(self._named & refuted) if self._respell and self._named & refuted else None

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the run by their names."""
        return self.run.sizes

    def values(self, kind: Callable[..., Any] | None = None) -> Any:
        """Return the tensors of the run by their keys, as `Values` or another `kind`."""
        module, values, steps, sizes = self.run
        return (kind or Values)(module, values, steps, [step.line for step in steps], sizes)

    def rewritten(self) -> set[str]:
        """Return the keys of parameters and buffers that have changed since the run."""
        now = {name: _state(tensor) for name, tensor in weights(self.run.module).items()}
        changed = {name for name, state in self._states.items() if now.get(name) != state}
        changed |= {stack for name in changed for stack in stacks(name)}
        return {f"parameter {name}" for name in changed}

    def _prove_kept(self, step: Step, value: Values, sizes, changed: set[str]) -> Step:
        derived_step = self._derived_steps[step.id]
        if not changed:
            return apply_proof(step, prove(derived_step, value, sizes))
        reads = {tensor.key for tensor in tensors(derived_step.line.equation)}
        reads |= {
            tensor.key for key in reads if (equation := value.fused_equation(key)) for tensor in tensors(equation)
        }
        if rewritten := sorted(reads & changed):
            proof = Proof(None, f"not executed: {rewritten[0]!r} has changed since the run")
        else:
            proof = prove(derived_step, value, sizes)
        return apply_proof(step, proof)


def _state(tensor: torch.Tensor) -> tuple[int, int]:
    """Return a key that changes once somebody has written into a tensor, or has replaced it."""
    return tensor.data_ptr() if tensor.layout is torch.strided else id(tensor), write_count(tensor)
