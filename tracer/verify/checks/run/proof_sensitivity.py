"""Power of a proof: an equation is compared with a tensor that is slightly wrong, in one cell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from math import isnan

import numpy as np
import sympy
import torch

from tracer.expr import ShapeError, Tensor, infer
from tracer.ops import is_layout
from tracer.record import verdict
from tracer.symbols.notation import parse, symbol
from tracer.tracing.proofs.step_proof import same_size
from tracer.utils.tensor_diff import first_beyond, margins, relative_difference
from tracer.verify.checks.reference_run import PlainRun, array
from tracer.verify.checks.run.flops_and_params import at, elsewhere

DTYPE_THRESHOLDS = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1, "int64": 1e-9}
"""Shares of the largest value that are an error in each dtype, whatever was computed."""

INFINITY_THRESHOLD = 1e30
"""Numbers beyond stand for infinities, as in some masks."""

SHORTFALL = sympy.Rational(1000, 1001)
"""A factor that is too little by a thousandth."""

MAX_PARAMETERS = 100_000
"""Parameters of a net that is run for two inputs too."""


def problems(run: PlainRun) -> Iterator[str]:
    """Try the verdicts, and the difference of some steps' tensors from slightly wrong ones."""
    if [verdict(margin) for margin in (1.001, 1.0, float("nan"))] != ["disproven", "proven", "disproven"]:
        yield f"1.001 times the error that is allowed in a cell is called {verdict(1.001)}"
    if verdict(None) == "proven":
        yield "what was not executed is called proven"
    values = [(step, value) for step in run.trace.steps if (value := run.trace.value(step)) is not None]
    for step, value in values[:: max(1, len(values) // 12)]:
        if (
            value.is_floating_point()
            and value.numel()
            and value.isfinite().all()
            and 0 < value.abs().max() < INFINITY_THRESHOLD
        ):
            yield from _wrong(step, value.double())
        if step.verdict == "proven" and not (
            step.error is not None and 0 <= step.error <= DTYPE_THRESHOLDS.get(step.dtype, 0.0)
        ):
            yield f"step {step.id!r} is called proven with an error of {step.error}"
    for step in run.trace.steps:
        if step.recomputed and (step.error is not None or not step.note):
            yield f"step {step.id!r} is recomputed, with an error of {step.error} and the note {step.note!r}"
    yield from _check_coverage(run)
    yield from _check_refusals()
    if getattr(run.model.spec, "whole", False) and run.trace.steps:
        yield from _check_doubled(run)
        yield from _one_size(run)
        if sum(parameter.numel() for parameter in run.model.net.parameters()) <= MAX_PARAMETERS:
            yield from _several(run)


def _check_refusals() -> Iterator[str]:
    """Check that shapes that don't fit are refused, and those that do are not."""
    B, T, D, V = map(symbol, "BTDV")
    x, square = Tensor("x", (B, T, D), "x"), Tensor("y", (D, D), "y")
    for wrong in (x @ Tensor("y", (V, D), "y"), x + Tensor("y", (V,), "y")):
        with suppress(ShapeError):
            yield f"{wrong} is said to have the shape {infer(wrong)}"
    if infer(x @ square + Tensor("b", (D,), "b")) != (B, T, D):
        yield f"x y + b is said to have the shape {infer(x @ square)}"


def _check_coverage(run: PlainRun) -> Iterator[str]:
    """Check that the share of the ops that belong to a step falls with each that does not."""
    without = tuple(replace(op, step=None) if op.index % 3 == 0 else op for op in run.trace.ops)
    computing = [op for op in without if not is_layout(op.op)]
    expected = len([op for op in computing if op.step is not None]) / max(1, len(computing))
    coverage = replace(run.trace, ops=without).coverage
    if not abs(coverage - expected) < 1e-9:
        yield f"steps cover {coverage} of ops of which they have {expected:.3f}"


def _check_doubled(run: PlainRun) -> Iterator[str]:
    """Check that equations of twice the run's value, or a thousandth more, are disproven, except those of nothing but 0
    and infinities."""
    waiting = replace(run.model).trace(prove="later", keep=2**30, **run.inputs.sizes)
    if waiting.later is None:
        yield "a run whose proofs are for later has none to come"
        return
    changes = {
        "twice": lambda line: line.equation + line.equation,
        "1.001 times": lambda line: line.equation / SHORTFALL,
    }
    for times, change in changes.items():
        changed = replace(waiting, later=waiting.later.rewrite(change))
        for step in changed.prove().steps:
            if not step.recomputed and changed.step(step.id).verdict != "pending":
                yield f"step {step.id!r} is called {changed.step(step.id).verdict} before its proof"
            value = run.trace.value(step.id) if step.value else None
            if value is not None and (value != 2 * value).any() and step.verdict != "disproven":
                yield f"{times} the equation of step {step.id!r} is called {step.verdict}"


def _several(run: PlainRun) -> Iterator[str]:
    """Check that the equations of a run of two inputs are proven too."""
    for step in replace(run.model).trace(**{**run.inputs.sizes, "B": 2}).steps:
        if step.verdict not in ("proven", "recomputed"):
            yield f"step {step.id!r} is {step.verdict} for two inputs, off by {step.error}"


def _one_size(run: PlainRun) -> Iterator[str]:
    """Check that two sizes are equal in a shape's proof only if they have one value, also at other sizes."""
    spec, here = run.model.spec, {symbol.name: symbol.value for symbol in run.trace.symbols}
    names, there = [name for name in spec.names if at(name, here) == at(name, here)], elsewhere(run)
    same = same_size(tuple(spec.derived.items()))
    pairs = [*pairwise(names), *spec.derived.items()]
    for a, b in pairs:
        expected = at(a, here) == at(b, here) and at(a, there) == at(b, there)
        if same(parse(a), parse(b)) != expected:
            yield f"{a} and {b} {'do not count' if expected else 'count'} as one size"


def _wrong(step, value: torch.Tensor) -> Iterator[str]:
    """Check that one wrong cell, neither the first nor the largest, off by a thousandth of the largest value, is
    noticed."""
    cell = tuple((7 * size) // 11 for size in value.shape)
    wrong, largest = value.clone(), abs(array(value)).max()
    wrong[cell] -= 1e-3 * largest
    expected = 1e-3 * largest / np.abs(array(value)).max()
    error = relative_difference(wrong, value)
    if not abs(error - expected) <= 1e-6:
        yield f"step {step.id!r}, wrong by {expected:.1e} in one cell, differs by {error:.1e}"
    allowed = torch.tensor(1e-4 * largest, dtype=torch.float64)
    first = first_beyond(margins(wrong, value, allowed))
    if first != cell or first_beyond(margins(value, value, None)) is not None:
        yield f"step {step.id!r}, wrong in cell {cell}, is first wrong in {first}"
    wrong[cell] = float("nan")
    if not isnan(error := relative_difference(wrong, value)):
        yield f"step {step.id!r} with a NaN that the run has not differs by {error}"
