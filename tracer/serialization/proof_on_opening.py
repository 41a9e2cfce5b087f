"""Proofs of a saved run: the reader evaluates its lines on the tensors that the file has.

No proof that stands in a file is believed. What can't be verified from it is called recorded.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from typing import Any

import numpy as np
import torch

from tracer.record import Step, Trace, dtype_name, tolerance
from tracer.serialization.validation import disputed_shapes
from tracer.symbols import notation
from tracer.utils.child_processes import ONE_THREAD, ROOT, environment, module_command

SECONDS = 30.0
"""Seconds after which the process that proves is ended."""
SENT = "id", "symbol", "latex", "shape", "recomputed", "dtype"
"""Fields of a step that the process is given as they are."""
NOT_CHECKED = "Recorded in the file, not checked here"


def unverified(trace: Trace) -> Trace:
    """Return the trace of a file without any of the proofs that it claims: all are pending. The dtype for the rounding
    tolerance is that of the stored tensor."""
    claimed: dict[str, Any] = dict.fromkeys(("error", "margin", "wrong"))
    claimed |= {"checked": 0, "refuted": False, "replayed": "", "unseen": (), "recorded": False}
    steps = []
    for step in trace.steps:
        value = trace.value(step)
        dtype = step.dtype if value is None else dtype_name(value.dtype)
        claimed |= {"pending": not step.recomputed, "dtype": dtype}
        steps.append(replace(step, **claimed))
    trace = replace(trace, steps=tuple(steps))
    return replace(trace, reread=FileProver(trace))


@dataclass(frozen=True)
class FileProver:
    """Prover of an opened trace's lines, from its own tensors."""

    trace: Trace

    def __call__(self, steps: Sequence[Step]) -> dict[str, Step]:
        """Return these steps with their proofs, by id."""
        late = {"reason": "checking it took too long"}
        disputed = {id: {"reason": reason} for id, reason in self._disputed.items()}
        return {
            step.id: _apply_outcome(step, disputed.get(step.id) or self._outcomes.get(step.id, late)) for step in steps
        }

    @cached_property
    def _disputed(self) -> dict[str, str]:
        return disputed_shapes(self.trace)

    @cached_property
    def _outcomes(self) -> dict[str, dict]:
        request = BytesIO()
        arrays = self._arrays()
        sizes = {notation.latex(size.name): size.value for size in self.trace.symbols}
        lines = [
            {
                **{field: getattr(step, field) for field in SENT},
                "tolerance": tolerance(step.dtype),
                "names": [(name.symbol, name.of, name.transposed) for name in step.names],
            }
            for step in self.trace.steps
        ]
        layout = [(key, array.dtype.str, array.shape, array.nbytes) for key, array in arrays.items()]
        request.write(json.dumps({"steps": lines, "sizes": sizes, "arrays": layout}).encode() + b"\n")
        for array in arrays.values():
            request.write(array.tobytes())
        try:
            done = subprocess.run(
                module_command("tracer.latex_reader.proof_worker"),
                input=request.getvalue(),
                capture_output=True,
                timeout=SECONDS,
                check=False,
                cwd=ROOT,
                env=environment(**ONE_THREAD),
            )
            output = done.stdout
        except subprocess.TimeoutExpired as late:
            output = late.stdout or b""
        except OSError:  # no process can be started: nothing is verified
            output = b""
        outcomes = map(json.loads, output.splitlines())
        return {outcome["id"]: outcome for outcome in outcomes if "id" in outcome}

    def _arrays(self) -> dict[str, np.ndarray]:
        """Return the tensors that lines name, by their keys."""
        wanted = {name.of for step in self.trace.steps for name in step.names}
        arrays = {key: self.trace.values[key] for key in wanted if key in self.trace.values}
        values = ((step, self.trace.value(step)) for step in self.trace.steps)
        arrays |= {f"step {step.id}": value for step, value in values if value is not None}
        return {key: _array(tensor) for key, tensor in arrays.items()}


def _array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().resolve_conj()
    if tensor.is_complex():
        return tensor.to(torch.complex128).numpy()
    return (tensor.float() if tensor.is_floating_point() and tensor.itemsize < 4 else tensor).numpy()


def _apply_outcome(step: Step, outcome: dict) -> Step:
    """Return a step with the outcome of its proof on the tensors of its file."""
    if "error" not in outcome or step.of_input:
        note = f"{NOT_CHECKED}: {'it holds for one input alone' if step.of_input else outcome.get('reason', '')}."
        return replace(step, pending=False, recorded=True, replayed=note)
    wrong = None if outcome["wrong"] is None else tuple(outcome["wrong"])
    return replace(step, pending=False, error=outcome["error"], margin=outcome["margin"], wrong=wrong)
