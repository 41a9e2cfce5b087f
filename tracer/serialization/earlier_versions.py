"""What files of earlier versions of the format do not state, derived from what they do."""

from __future__ import annotations

import re
from dataclasses import replace

from tracer.latex_reader.evaluator import names
from tracer.latex_reader.parser import signs
from tracer.record import (
    ATTENTION_WEIGHTS,
    LOGITS,
    RESIDUAL_STREAM,
    SCORES,
    SELECTED_TOKENS,
    SEQUENCE,
    Step,
    Trace,
)

DATAFLOW_VERSION = 2
"""The first version whose steps state what they read, and their roles."""
MAX_SIGNS = 50_000_000
"""Signs of equations that are compared with names; a run of 1,000 steps has a tenth."""
ENVIRONMENT = re.compile(r"\\(?:begin|end)\{\w*\}")
ROLE_OF_SYMBOL = (
    (r"\mathbf{X}'", RESIDUAL_STREAM),
    (r"\mathbf{S}", SCORES),
    (r"\check{\mathbf{S}}", SCORES),
    (r"\mathbf{A}", ATTENTION_WEIGHTS),
    (r"\check{\mathbf{A}}", ATTENTION_WEIGHTS),
    (r"\mathbf{Z}", LOGITS),
)
"""The roles that a symbol tells, by its start."""


def with_dataflow(trace: Trace) -> Trace:
    """Return a trace of version 1 with what its steps read, by the names on the right of their equations, and with the
    roles that figures look for, by their symbols and shapes."""
    table = {signs(symbol): keys for symbol, keys in names(trace.steps).items() if signs(symbol)}
    lengths = sorted(set(map(len, table)), reverse=True)
    places = {f"step {step.id}": place for place, step in enumerate(trace.steps)}
    steps, left = [], MAX_SIGNS
    for place, step in enumerate(trace.steps):
        right = signs(ENVIRONMENT.sub(" ", step.latex.partition("=")[2]))
        reads: dict[str, None] = {}
        at, left = 0, left - len(right) * sum(lengths)
        while left > 0 and at < len(right):
            name = next((right[at : at + length] for length in lengths if right[at : at + length] in table), ())
            keys = [key.removesuffix(".T") for key in table.get(name, ()) if places.get(key, 0) <= place]
            reads |= {key.removeprefix("step "): None for key in keys}
            at += len(name) or 1
        before = trace.steps[place - 1] if place else None
        steps.append(replace(step, reads=tuple(reads), role=_role(step, before)))
    return replace(trace, steps=tuple(steps))


def _role(step: Step, before: Step | None) -> str:
    """Return the role of a step by its symbol, or by its shape and that of the step before it."""
    if step.layer is None and before is not None and step.stage in ("embedding", "patches"):
        (*_, count, width), (*_, count_before, width_before) = (0, 0, *step.shape), (0, 0, *before.shape)
        if width == width_before and len(step.shape) == len(before.shape) == 3:
            if step.stage == "embedding" and count > count_before:
                return SEQUENCE
            if step.stage == "patches" and count < count_before:
                return SELECTED_TOKENS
    return next((role for start, role in ROLE_OF_SYMBOL if step.symbol.startswith(start)), "")
