"""Logit lens, compared with a plain run in which a hook puts the stream of an earlier block behind the last one."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tracer.tracing.logit_lens import LogitLens
from tracer.verify.checks.reference_run import PlainRun
from tracer.verify.checks.run.changed_values import module_outputs, run_with_hook

SCORE_TOLERANCE = 1e-4
"""Largest difference of scores, as a share of the largest."""


def problems(run: PlainRun) -> Iterator[str]:
    """Yield a sentence for each depth whose scores are not those of the model's own norm and head there."""
    try:
        lens = LogitLens(run.trace)
    except ValueError:  # it has no one stream, or no head
        return
    last = run.trace.value(run.trace.step(lens.depths[-1].id))
    outputs = module_outputs(run)
    same = (path for path, output in outputs.items() if isinstance(output, Tensor) and last is not None)
    path = next((path for path in same if torch.equal(outputs[path], last)), None)
    for depth in {0, len(lens.depths) // 2} if path is not None else ():
        stream = run.trace.value(run.trace.step(lens.depths[depth].id))
        if stream is None:
            continue
        scores = lens.scores(depth)
        alike = [one for one in run_with_hook(run, path, lambda args, output: stream) if one.shape == scores.shape]  # noqa: B023
        wanted = next((one for one in alike if one.is_floating_point()), None)
        if wanted is None:
            continue
        error = float((scores - wanted).abs().max())
        if not error <= SCORE_TOLERANCE * float(wanted.abs().max()):
            yield f"the lens after {lens.depths[depth].id!r} differs from the model's own head there, by {error}"
