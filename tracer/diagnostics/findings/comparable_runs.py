"""The run that rules read to compare runs: no dropout and batch statistics, and known axes of samples and tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn

from tracer.capture.modes import Function
from tracer.diagnostics.findings.input_axes import find_axes
from tracer.diagnostics.findings.run_view import Rule, RunView
from tracer.ops import base
from tracer.record import Finding, Op, Trace
from tracer.shapes.variation import parameters, shadow_copy
from tracer.tracing import PROVE_LATER, trace
from tracer.utils.errors import reason
from tracer.utils.torch_state import seeded_draws

Symbols = dict[str, list[tuple[str, int]]]


class ComparableRun(NamedTuple):
    """A run whose repetitions can be compared, the op of the run itself for each of its ops, and its module, which
    a trace does not keep."""

    view: RunView
    ops: tuple[int | None, ...] | None = None
    module: nn.Module | None = None

    def findings(self, rule: Rule, view: RunView) -> Iterator[Finding]:
        """Yield the findings of a rule, at the ops and the steps of the run itself, which is `view`."""
        for finding in rule.findings(self.view):
            if self.ops is None:
                yield finding
                continue
            ops = tuple(dict.fromkeys(op for each in finding.ops if (op := self.ops[each]) is not None))
            known = any(step.id == finding.step for step in view.trace.steps)
            step = finding.step if known or not ops else view.step(ops[-1])
            yield replace(finding, ops=ops, step=step)


def comparable(view: RunView) -> ComparableRun:
    """Return the run that rules compare with others: the run itself where nothing has to be named or switched off, or
    where that can't be done."""
    if not view.repeatable or view.replay is None:
        return ComparableRun(view)
    own = _own_axes(view)
    axes = None if own else find_axes(view)
    symbols, note = own or (axes.symbols if axes else {}), axes.note if axes else ""
    norms = any("batch_norm" in op.op for op in view.trace.ops)
    quiet = (view.draws or norms) and view.trains and not isinstance(view.replay.module, Function)
    if not quiet and axes is None:
        return ComparableRun(view)
    module = view.replay.module
    if quiet:
        module = shadow_copy(module, dict(parameters(module))).eval()
    again = _trace_again(view, module, symbols)
    if again is None:
        return ComparableRun(view)
    ops = None
    if [op.op for op in again.ops] != [op.op for op in view.trace.ops]:
        ops = tuple(_same_ops(again.ops, view.trace.ops))
    else:  # its steps are those on screen
        pairs = zip(view.trace.ops, again.ops, strict=True)
        own_ops = tuple(replace(op, inputs=other.inputs, outputs=other.outputs) for op, other in pairs)
        again = replace(view.trace, ops=own_ops, symbols=again.symbols, replay=again.replay)
    return ComparableRun(RunView(again, note), ops, module)


def _own_axes(view: RunView) -> Symbols:
    """Return the axes of inputs that the run has symbols for."""
    names = {symbol.name for symbol in view.trace.symbols}
    axes: Symbols = {}
    for name, record in view.input_records.items():
        for axis, text in enumerate(record.symbolic or ()):
            if text in names:
                axes.setdefault(text, []).append((name, axis))
    return axes


def _trace_again(view: RunView, module: nn.Module, symbols: Symbols) -> Trace | None:
    """Return a run with these symbols, or with the first of them where the model does not run at other sizes of all;
    None where it can't be run."""
    assert view.replay is not None
    replay = view.replay
    try:
        with torch.set_grad_enabled(replay.grad), seeded_draws(0):
            again = trace(module, *replay.args, symbols=symbols, prove=PROVE_LATER, **replay.kwargs)
    except Exception as error:  # of a stranger's model, at other sizes or in another mode
        view.problems.append(f"It could not be run for a comparison ({reason(error)}).")
        return None
    if len(symbols) > 1 and not any(tensor.symbolic for op in again.ops for tensor in op.inputs):
        return _trace_again(view, module, dict([*symbols.items()][:1]))
    return again


def _same_ops(ops: tuple[Op, ...], others: tuple[Op, ...]) -> Iterator[int | None]:
    """Yield for each op the number of the op among others that is the same one of its line and module, or the first of
    that line; None for none."""
    places: dict[tuple, list[int]] = {}
    for op in others:
        for place in (_place(op), (*_place(op), base(op.op))):
            places.setdefault(place, []).append(op.index)
    counts: dict[tuple, int] = {}
    for op in ops:
        place = (*_place(op), base(op.op))
        count = counts[place] = counts.get(place, -1) + 1
        alike, line = places.get(place, []), places.get(_place(op), [None])
        yield alike[count] if count < len(alike) else line[0]


def _place(op: Op) -> tuple:
    return (op.source.file, op.source.line, op.module) if op.source else ("", 0, op.module)
