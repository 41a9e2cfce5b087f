"""Parameters and FLOPs: op by op at the run, and their formulas at sizes that the run did not have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import ceil, floor, nan, prod, sqrt

import torch

from tracer.expr import infer
from tracer.expr.math.algebra import Product
from tracer.symbols import cost
from tracer.verify.checks.reference_run import OpObserver, PlainRun, Transparent

OP_COUNTERS: dict[str, bool | None] = dict.fromkeys(("mm", "bmm", "addmm", "convolution"), True)
OP_COUNTERS |= dict.fromkeys(("add", "_softmax", "gelu", "lgamma", "cummax"), False)
OP_COUNTERS |= dict.fromkeys(("mine.kernel", "_cdist_forward", "mkldnn_rnn_layer"))
"""Ops whose FLOPs are counted, those that have none, and those that may multiply matrices and are not counted."""


def problems(run: PlainRun) -> Iterator[str]:
    """Compare counts with those of the plain run, and formulas with a net that is built at other sizes."""
    trace, counted = run.trace, [op.flops for op in run.trace.ops if op.flops]
    if counted != [cost for cost in run.costs if cost]:
        yield f"the ops cost {sum(counted):,} FLOPs, counted by shapes {sum(run.costs):,}"
    if trace.flops != sum(counted) or trace.params != sum(op.params for op in trace.ops):
        yield "the totals are not the sums over the ops"
    for line, step in zip(getattr(run.model, "lines", ()), trace.steps, strict=False):
        yield from _check_drawings(line, step)
    for op, expected in OP_COUNTERS.items():
        if cost.counts(op) is not expected:
            yield f"{op} is counted: {cost.counts(op)}, expected {expected}"
    known, used = dict(run.model.net.named_parameters()), set()
    for op in trace.ops:
        fresh = set(op.parameters) - used
        if op.params != sum(prod(known[name].shape) for name in fresh):
            yield f"op {op.index} has {op.params:,} parameters, expected those of {sorted(fresh)}"
        used |= fresh
    if getattr(run.model, "vocabulary", None) is not None and "?" not in (trace.params_symbolic, trace.flops_symbolic):
        yield from _elsewhere(run)


def _check_drawings(line, step) -> Iterator[str]:
    """Check the scale drawing of each step that multiplies matrices: (n, k), (k, m), (n, m)."""
    multiplies = next(
        (node for node in line.equation.atoms(Product) if min(len(infer(x)) for x in node.args) > 1), None
    )
    if multiplies is None:
        return
    shapes = [operand.shape for operand in step.product or ()]
    fits = len(shapes) == 3 and shapes[0][1] == shapes[1][0] and shapes[2] == (shapes[0][0], shapes[1][1])
    if not fits:
        yield f"the product of step {step.id!r} is drawn as {shapes}"


def elsewhere(run: PlainRun) -> dict[str, int]:
    """Return sizes at which the model was neither run nor probed, and all sizes derived from them.

    There is one more block in each tower whose formulas know of blocks. B stays where ops ran at this batch only.
    """
    spec, trace = run.model.spec, run.trace
    ran = {symbol.name: symbol.value for symbol in trace.symbols if symbol.name in spec.runs}
    sizes = {**ran, **run.model.sizes, **(spec.probes[0] if spec.probes else {}), "B": 3}
    counted = set(re.findall(r"\w+", f"{trace.params_symbolic} {trace.flops_symbolic}"))
    for symbol in sizes:
        if symbol in spec.parts.values():
            sizes[symbol] = run.model.sizes[symbol] + (symbol in counted)
        elif symbol in ("T", "K", "N_v"):
            sizes[symbol] -= 1
        elif symbol in ("H", "D", "V", "d_ff", "T_max"):
            sizes[symbol] *= 2
        elif symbol == "W":
            sizes[symbol] *= 3
    if any(op.note for op in trace.ops):
        sizes["B"] = next(symbol.value for symbol in trace.symbols if symbol.name == "B")
    return run.model.vocabulary.complete(sizes)


def _elsewhere(run: PlainRun) -> Iterator[str]:
    sizes, spec = elsewhere(run), run.model.spec
    own = {name: value for name, value in sizes.items() if name not in (*spec.runs, *spec.derived)}
    net, args, named = run.model.vocabulary.build({**own, **{name: sizes[name] for name in spec.runs}})
    with torch.no_grad(), Transparent(), OpObserver() as observer:
        net(*args, **named)
    expected = {"flops": sum(observer.costs)}
    if run.trace.params == sum(prod(x.shape) for x in run.model.net.parameters()):  # no run passes any by
        expected["params"] = sum(prod(x.shape) for x in net.parameters())
    for what, count in expected.items():
        formula = getattr(run.trace, f"{what}_symbolic")
        if at(formula, sizes) != count:
            yield f"the formula of {what}, {formula}, gives {at(formula, sizes)} at {sizes}, counted {count}"


def at(formula: str, sizes: dict[str, int]) -> float:
    """Return the value of one of our formulas at some sizes, by Python's own arithmetic; NaN if it has an unknown
    size."""
    known = {"__builtins__": {}, "sqrt": sqrt, "ceiling": ceil, "floor": floor}
    try:
        return eval(formula, known, sizes)
    except NameError:
        return nan
