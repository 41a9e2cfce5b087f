"""A check of the printed lines of a trace on runs at sizes that no probe had."""

import re
from collections.abc import Iterable

import torch

from tracer.capture import record
from tracer.graph import value_shapes
from tracer.record import Step, Trace
from tracer.shapes.variation import UNREACHED_NOTE
from tracer.textbook.conditions import DECIDED_NOTE, RANGE_NOTE, STATE_NOTE, TAKEN_NOTE, within_limits
from tracer.tracing.counterfactual import THIS_RUN_NOTE, Run, _read, predict
from tracer.tracing.proofs import weight, weights

CONDITIONAL = (
    *(note.partition(" `")[0] for note in (TAKEN_NOTE, DECIDED_NOTE, STATE_NOTE)),
    UNREACHED_NOTE[-30:],
    RANGE_NOTE,
    value_shapes.DATA_END_NOTE[:40],
)
"""How notes begin on lines that hold for some values only, or at sizes that were reached."""
SHORTEST, LONGEST = (
    re.compile(re.escape(note).replace(r"\{\}", r"(\d+)")) for note in (value_shapes.MINIMUM_NOTE, value_shapes.REACH)
)


def _claims(step: Step, sizes: dict[str, int]) -> bool:
    """Return whether a line claims to hold at these sizes, whatever the values."""
    conditional = any(note in step.note for note in (THIS_RUN_NOTE, *CONDITIONAL))
    return step.verdict == "verified" and not conditional and within_limits(step.note, sizes)


def _is_in_range(note: str, length: int) -> bool:
    """Return whether a line claims to hold where an axis has this length."""
    return all(int(n) <= length for n in SHORTEST.findall(note)) and all(
        int(n) >= length for n in LONGEST.findall(note)
    )


def broken_laws(trace: Trace, inputs: Iterable[tuple[torch.Tensor, dict[str, int]]]) -> dict[str, str]:
    """Return the lines, by their LaTeX, that are verified without a note on sizes and have other values than the
    function at other sizes, each with the problem; `inputs` holds its arguments and its sizes."""
    replay, broken = trace.replay, {}
    lines = {step.id: _read(step, replay._names(trace.steps)) for step in trace.steps}
    for x, sizes in inputs:
        if not all(_is_in_range(step.note, sizes["T"]) for step in trace.steps):
            continue
        run = record(replay.module, (x,), cap=2**26, attention=False, calls=True)
        places, _ = replay._align(run, sizes, False)
        precision = dict.fromkeys(places, "float32")

        def tensor(key: str, run=run) -> torch.Tensor | None:
            if key.startswith("parameter "):
                return weight(weights(replay.module), key.removeprefix("parameter "))
            name = key.removeprefix("input ")
            return run.inputs.get(name) if name != key else run.store.get(key)

        returned = {one.step: ref.key for one, ref in zip(trace.returned, run.calls.outputs, strict=True) if one.step}
        for at, checked in (places, places.keys()), (places | returned, returned):
            other = Run(f"sizes {sizes}", sizes, tensor, at, precision, False)
            for step, (_, outcome) in zip(trace.steps, predict(trace.steps, lines, other), strict=True):
                if _claims(step, sizes) and step.id in checked and (outcome.wrong or outcome.reason):
                    broken[step.latex] = outcome.wrong or outcome.reason
    return broken
