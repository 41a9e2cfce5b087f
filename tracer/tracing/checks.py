"""Checks on other runs where machines are small or shared: within bounds, and valid for any run of the same lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import NamedTuple

from tracer.common.quoting import reason
from tracer.record import Step, Trace

MOST_BYTES = 512 * 2**20
"""Bytes that another run may take: its weights and the tensors of its steps, in float64."""
MOST_FLOPS = 10**10
"""Arithmetic of another run, 2 FLOP for each multiply-add of its products."""
ELSEWHERE = "It was not checked on other runs: in the run whose lines were, this line reads otherwise."


class Check(NamedTuple):
    """What other runs say of a line: its symbol and equation, and the fields of `Step` that `Trace.check` sets."""

    symbol: str
    latex: str
    checked: int = 0
    refuted: bool = False
    replayed: str = ""
    unseen: tuple[str, ...] = ()


def too_large(trace: Trace) -> str:
    """Return in one sentence why a model is too large to be run again unasked; empty where it is not."""
    size = 8 * (trace.params + sum(prod(step.shape) for step in trace.steps))
    if size <= MOST_BYTES and trace.flops <= MOST_FLOPS:
        return ""
    return (
        f"It was not checked on other runs: each would take {size / 2**20:,.0f} MB of memory and "
        f"{trace.flops / 1e9:,.1f} GFLOP, more than is done unasked. In Python, `trace.check()` does it."
    )


def check(trace: Trace) -> Trace:
    """Return a trace with its lines checked on other runs where that is affordable, else with the reason at each."""
    if not trace.steps or trace.replay is None:
        return trace
    if not (problem := too_large(trace)):
        try:
            return trace.check()
        except Exception as error:  # of a stranger's model, with other numbers: the run itself stands
            problem = f"It was not checked on other runs ({reason(error)})."
    return unchecked(trace, problem)


def unchecked(trace: Trace, problem: str) -> Trace:
    """Return a trace each line of which says why it was not checked on other runs."""
    return replace(trace, steps=tuple(replace(step, replayed=problem) for step in trace.steps))


def results(trace: Trace) -> dict[str, Check]:
    """Return what other runs say of the lines of a checked trace, by the ids of its steps."""
    return {
        step.id: Check(step.symbol, step.latex, step.checked, step.refuted, step.replayed, step.unseen)
        for step in trace.steps
    }


def apply(found: Mapping[str, Check], trace: Trace) -> Trace:
    """Return a trace with what other runs say of its lines, which were checked beside another run of the same model.

    A line that does not read the same there was not checked.
    """
    return replace(trace, steps=tuple(_applied(found.get(step.id), step) for step in trace.steps))


def _applied(result: Check | None, step: Step) -> Step:
    if result is None or (result.symbol, result.latex) != (step.symbol, step.latex):
        return replace(step, replayed=ELSEWHERE)
    fields = {name: getattr(result, name) for name in ("checked", "refuted", "replayed", "unseen")}
    return replace(step, **fields)
