"""Runs in files of earlier versions of the format: what they do not state, derived from what they do, and words that
have changed."""

from __future__ import annotations

import re
from dataclasses import replace

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

FORMER_PHRASES = (
    ("Not executed at this size; proven on", "Not executed at this size; verified on"),
    ("shapes at this size; equations proven on", "shapes at this size; equations verified on"),
    ("shapes at this size; no equation is proven", "shapes at this size; no equation is verified"),
    ("from the equation, and proven with what follows", "from the equation, and verified with what follows"),
    ("kernel is run again: a weaker proof", "kernel is run again: a weaker check"),
)
"""Words of notes in older files, which called a verified equation proven, and those of today."""
MAX_SIGNS, SIGN_COST = 100_000_000, 32
"""Signs of equations that are compared with names, and what each adds besides; a run of 1,000 steps has a sixth."""
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


def from_version_1(trace: Trace) -> Trace:
    """Return the trace of a file of version 1, in which steps state neither what they read nor their roles."""
    steps = (replace(step, note=_renew(step.note)) for step in _with_dataflow(trace))
    return replace(trace, steps=tuple(steps), notes=tuple(map(_renew, trace.notes)))


def _renew(note: str) -> str:
    for former, today in FORMER_PHRASES:
        note = note.replace(former, today)
    return note


def _with_dataflow(trace: Trace) -> list[Step]:
    """Return the steps of a trace with what its steps read, by the names on the right of their equations, and with the
    roles that figures look for, by their symbols and shapes."""
    table: dict[tuple[str, ...], str] = {}
    lengths: set[int] = set()
    steps, left, before = [], MAX_SIGNS, None
    for step in trace.steps:
        own, named = signs(step.symbol), {signs(name.symbol): name.of for name in step.names}
        table |= {own: table.get(own, step.id), **named}
        lengths |= {len(own), *map(len, named)} - {0}
        longest_first = sorted(lengths, reverse=True)
        right = signs(ENVIRONMENT.sub(" ", step.latex.partition("=")[2])) if left > 0 else ()
        reads: dict[str, None] = {}
        at, left = 0, left - len(right) * (SIGN_COST + sum(lengths))
        while left > 0 and at < len(right):
            name = next((right[at : at + length] for length in longest_first if right[at : at + length] in table), ())
            reads |= {table[name]: None} if name else {}
            at += len(name) or 1
        table[own] = step.id
        steps.append(replace(step, reads=tuple(reads), role=_role(step, before)))
        before = step
    return steps


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
