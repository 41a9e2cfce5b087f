"""Checks on other runs for small or shared machines: bounded, and valid for any run of the same lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from tracer.record import ModuleRecord, Step, Trace
from tracer.tracing.proofs import counterfactual
from tracer.utils.error_text import reason

MOST_BYTES = 512 * 2**20
"""Bytes that another run may take: its weights and the tensors of its steps, in float64."""
MOST_FLOPS = 10**10
"""Arithmetic of another run, 2 FLOP for each multiply-add of its products."""
OF_PLAIN_RUNS = "Those are runs without the changes, which leave this line as it is."
"""Note on a line of a changed run whose outcome is that of the plain model."""
ELSEWHERE = "It was not checked on other runs: in the run whose lines were, this line reads otherwise."


class Check(NamedTuple):
    """Outcome of other runs for a line: its symbol, its equation, the names of the ops that compute it, and the fields
    of `Step` that `Trace.check` sets."""

    symbol: str
    latex: str
    ops: tuple[str, ...]
    checked: int = 0
    refuted: bool = False
    replayed: str = ""
    unseen: tuple[str, ...] = ()


def too_large(trace: Trace) -> str:
    """Return in one sentence why a model is too large to be run again unasked; "" if it is not, or if a model with one
    of its blocks of each kind is not."""
    size, flops = _cost(trace, ())
    if _fits(size, flops) or _fits(*_cost(trace, _repeated_blocks(trace))):
        return ""
    return (
        f"It was not checked on other runs: each would take {size / 2**20:,.0f} MB of memory and "
        f"{flops / 1e9:,.1f} GFLOP, more than is done unasked. In Python, `trace.check()` does it."
    )


def _fits(size: int, flops: int) -> bool:
    return size <= MOST_BYTES and flops <= MOST_FLOPS


def _cost(trace: Trace, left_out: Sequence[ModuleRecord]) -> tuple[int, int]:
    """Estimate the bytes and FLOPs of a run in float64, without some calls of modules."""
    ops = {op for module in left_out for op in range(module.first, module.last)}
    cells = sum(prod(step.shape) for step in trace.steps if not (step.ops and step.ops[-1] in ops))
    params = trace.params - sum(module.params for module in left_out)
    return 8 * (params + cells), trace.flops - sum(module.flops for module in left_out)


def _repeated_blocks(trace: Trace) -> list[ModuleRecord]:
    """Return the calls of all blocks but the first of each kind: siblings of one class and as many parameters, with
    submodules, whose names differ only in a number, and that are in no other block."""
    paths = {module.path for module in trace.modules}
    parents = {path.rpartition(".")[0] for path in paths}
    first: dict[tuple, str] = {}
    repeated: list[ModuleRecord] = []
    blocks: set[str] = set()
    for module in trace.modules:
        around, _, name = module.path.rpartition(".")
        stem = name.rstrip("0123456789")
        if stem == name or module.path not in parents or _within(module.path, blocks):
            continue
        blocks.add(module.path)
        if first.setdefault((around, stem, module.kind, module.params), module.path) != module.path:
            repeated.append(module)
    return repeated


def _within(path: str, blocks: set[str]) -> bool:
    """Return whether a module is inside one of these."""
    parts = path.split(".")
    return any(".".join(parts[:n]) in blocks for n in range(1, len(parts)))


def check(trace: Trace, plain: Mapping[str, Check] | None = None) -> Trace:
    """Return a trace with its lines checked on other runs if that is affordable, else with the reason at each.

    Of a model that is too large as a whole, one block of each kind is run. `plain` are the outcomes for the lines of
    the same model without the changes of the run: a line that reads the same here, and is computed by the same ops,
    takes its outcome from there, and only the others are checked.
    """
    if not trace.steps or trace.replay is None:
        return trace
    if not (problem := too_large(trace)):
        shortened = trace.replay.shorten(not _fits(*_cost(trace, ())))
        known = {step.id: plain[step.id] for step in trace.steps if plain and _holds(plain.get(step.id), trace, step)}
        try:
            checked = replace(trace, replay=shortened).check(step.id for step in trace.steps if step.id not in known)
            steps = tuple(
                replace(_apply(known[step.id], step), replayed=OF_PLAIN_RUNS) if step.id in known else step
                for step in checked.steps
            )
            return replace(checked, steps=steps, replay=trace.replay)
        except Exception as error:  # of a stranger's model, with other numbers: the run itself stands
            problem = f"It was not checked on other runs ({reason(error)})."
    return without_checks(trace, problem)


def without_checks(trace: Trace, problem: str) -> Trace:
    """Return a trace each line of which states why it was not checked on other runs."""
    return replace(trace, steps=tuple(replace(step, replayed=problem) for step in trace.steps))


def results(trace: Trace) -> dict[str, Check]:
    """Return the outcomes of other runs for the lines of a checked trace, by the ids of its steps."""
    return {
        step.id: Check(
            step.symbol, step.latex, _ops(trace, step), step.checked, step.refuted, step.replayed, step.unseen
        )
        for step in trace.steps
    }


def apply(checks: Mapping[str, Check], trace: Trace) -> Trace:
    """Return a trace with the outcomes of other runs for its lines, which were checked for another run of the same
    model.

    A line that does not read the same there was not checked.
    """
    return replace(trace, steps=tuple(_apply(checks.get(step.id), step) for step in trace.steps))


def _ops(trace: Trace, step: Step) -> tuple[str, ...]:
    return tuple(trace.ops[index].op for index in step.ops)


def _holds(result: Check | None, trace: Trace, step: Step) -> bool:
    """Return whether a line of the plain model reads like this step of a changed run, is computed by the same ops, and
    holds on all other runs."""
    if result is None or (result.symbol, result.latex, result.ops) != (step.symbol, step.latex, _ops(trace, step)):
        return False
    return not result.refuted and result.checked == counterfactual.RUNS


def _apply(result: Check | None, step: Step) -> Step:
    if result is None or (result.symbol, result.latex) != (step.symbol, step.latex):
        return replace(step, replayed=ELSEWHERE)
    fields = {name: getattr(result, name) for name in ("checked", "refuted", "replayed", "unseen")}
    return replace(step, **fields)
