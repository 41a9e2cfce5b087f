"""Verification: all contents of a model's trace are compared with independent computations.

A report has the figures that the command line promises. Checks without a figure of their own (formulas of cost,
attention rows, findings that nobody acknowledged) add a key `"problems"`, a list of sentences, only where they fail,
and operands that no check of a line sees a key `"unseen"`, their number, only where there are any.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import tracer
from tracer import zoo
from tracer.capture.score_path import sinks
from tracer.capture.tensors import output_tensors, same_outputs
from tracer.diagnostics import findings
from tracer.export import to_json, to_table
from tracer.inputs.model_inputs import Inputs
from tracer.record import Op, Step, Trace, verdict_within
from tracer.shapes import UNKNOWN, value_of
from tracer.spec.spec import Model
from tracer.symbols import cost
from tracer.tracing import AT_HAND
from tracer.tracing.proofs import relative_error
from tracer.utils.torch_internals import tree_map_only
from tracer.verify import checks
from tracer.verify.checks.reference_run import Transparent, seeded_run

OPENED_TOLERANCE = 1e-4
"""Largest relative difference between a fast path and the same forward opened, in float32."""

ROWS = 1e-5
"""Largest difference of the sum of an attention row from 1."""


def verify(name: str) -> dict[str, Any]:
    """Return the report on a model, by name: `{"model", "ops", "dims", "solved", "equations", "verified", "max_error",
    "coverage", "identical", "opened_error"}`. ValueError for an unknown name.

    `dims` counts the dimensions of all op inputs and outputs, `solved` those with a symbolic size; `equations`
    the steps that were not recomputed, `verified` those whose verdict is that; `identical` says that the
    output is bit-equal to the same forward untraced; `opened_error` is its relative difference to the fast path,
    None where there is none.
    """
    return report(small(name))


def small(name: str) -> Model:
    """Return the model of that name as it is verified: an example of a library at tiny sizes."""
    return tracer.load(name, **(zoo.tiny(name) if name in zoo.examples() else {}))


def report(model: Model) -> dict[str, Any]:
    """Return the report on a model, run on its own sample without gradients."""
    with torch.no_grad():
        inputs = model.inputs()
        traced = seeded_run(model.trace, primitives=True, keep=AT_HAND).prove()
        with Transparent():
            closed = seeded_run(model.net, *inputs, **inputs.named)
        fast = seeded_run(model.net, *inputs, **inputs.named)
    sizes = sizes_of(traced)
    steps = [step for step in traced.steps if step.latex and not step.recomputed]
    errors = [step.error for step in steps if step.error is not None]
    result = {
        "model": model.name,
        "ops": len(traced.ops),
        "dims": len(sizes),
        "solved": sum(size != UNKNOWN for size in sizes),
        "equations": len(steps),
        "verified": sum(step.verdict == "verified" for step in steps),
        "max_error": max(errors, key=lambda error: (error != error, error), default=None),
        "coverage": traced.coverage,
        "identical": same_outputs(traced.output, closed),
        "opened_error": None if same_outputs(closed, fast) else _difference(closed, fast),
    }
    problems = [*_open(traced), *_sizes(traced), *_unverified(steps)]
    problems += [*_cost(traced, model, inputs), *_attention(traced), *_primitives(traced)]
    checked = traced if traced.replay is None else traced.check()
    problems += checks.problems(model, inputs, checked)
    problems += [findings.sentence(finding, traced) for finding in traced.findings]
    if model.spec.whole and traced.coverage < 1:
        problems.append(f"the steps cover {traced.coverage:.1%} of the computing ops, expected all")
    unseen = sum(len(step.unseen) for step in checked.steps)
    more = {"unseen": unseen, "problems": problems}
    return to_json.plain(result | {name: value for name, value in more.items() if value})


def sizes_of(trace: Trace) -> list[str]:
    """Return the size of each axis of all op inputs and outputs as a formula, `UNKNOWN` where there is none."""
    tensors = [tensor for op in trace.ops for tensor in (*op.inputs, *op.outputs)]
    return [size for tensor in tensors for size in tensor.symbolic or (UNKNOWN,) * len(tensor.shape)]


def failures(report: dict[str, Any]) -> list[str]:
    """Return the errors of a report, one sentence each; empty if everything is verified."""
    name, reasons = report["model"], []
    for what, whole, done in (("dimensions", "dims", "solved"), ("equations", "equations", "verified")):
        if report[done] < report[whole]:
            reasons.append(f"{report[whole] - report[done]} of {report[whole]} {what} are not {done}")
    if not report["identical"]:
        reasons.append("the traced output is not bit-equal to the untraced one")
    opened = report["opened_error"]
    if opened is not None and not (isinstance(opened, float) and opened <= OPENED_TOLERANCE):
        reasons.append(f"the opened fast path differs by {opened}, expected at most {OPENED_TOLERANCE}")
    return [f"{name}: {sentence}" for sentence in [*reasons, *report.get("problems", ())]]


def text(reports: list[dict[str, Any]]) -> str:
    """Return the reports as an aligned table, then one line per failure."""
    extra = "problems", "unseen"
    lines = [{name: _cell(value) for name, value in report.items() if name not in extra} for report in reports]
    failed = [sentence for report in reports for sentence in failures(report)]
    partly = [report["model"] for report in reports if report["coverage"] < 1]
    verified = "Everything is verified" + (f"; steps cover a part of {', '.join(partly)}." if partly else ".")
    with_unseen = [figures for figures in reports if "unseen" in figures]
    unseen = [f"{figures['model']}: no check sees {figures['unseen']} operands." for figures in with_unseen]
    return "\n".join([to_table.align(lines), "", *unseen, *(failed or [verified])])


def _cell(value) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case None:
            return "–"
        case float():
            return f"{value:.3g}"
    return str(value)


def _tensors(output) -> list[torch.Tensor]:
    return [tensor for _, tensor in output_tensors(output)]


def _difference(a, b) -> float:
    return max(relative_error(x.double(), y.double()) for x, y in zip(_tensors(a), _tensors(b), strict=True))


def _open(trace: Trace) -> Iterator[str]:
    """Yield the first op with a size that is not solved."""
    for op in trace.ops:
        for tensor in (*op.inputs, *op.outputs):
            if UNKNOWN in (tensor.symbolic or (UNKNOWN,) * len(tensor.shape)):
                shape = ", ".join(tensor.symbolic or map(str, tensor.shape))
                yield f"the first of them is in op {op.index} ({op.op}), at {_line(op)}: [{shape}] is {tensor.shape}"
                return


def _line(op: Op) -> str:
    return f"{op.source.file}:{op.source.line}" if op.source else f"module {op.module!r}"


def _unverified(steps: list[Step]) -> Iterator[str]:
    """Yield each step whose equation or shape is not verified, with the known reason."""
    for step in steps:
        if UNKNOWN in step.symbolic:
            yield f"step {step.id!r} has the shape [{', '.join(step.symbolic)}], expected a symbol for each size"
        if step.verdict == "refuted":
            where = f"; the first wrong cell is {list(step.wrong)}" if step.wrong is not None else ""
            yield f"step {step.id!r} is off by {step.error:.2g}, {step.margin:.3g} times what rounding explains{where}"
        elif step.verdict != "verified":
            yield f"step {step.id!r} is not verified: {step.note or step.verdict}"


def _sizes(trace: Trace) -> Iterator[str]:
    """Check that every solved size and every formula of cost has, at this run's symbols, the value that ran."""
    sizes = {symbol.name: symbol.value for symbol in trace.symbols}
    for op in trace.ops:
        formulas = [(op.params_symbolic, op.params), (op.flops_symbolic, op.flops)]
        for tensor in (*op.inputs, *op.outputs):
            formulas += zip(tensor.symbolic or (), tensor.shape, strict=tensor.symbolic is not None)
        for formula, number in formulas:
            if formula != UNKNOWN and _value(formula, sizes) != number:
                yield f"op {op.index} ({op.op}): {formula} is {_value(formula, sizes)} at this run, expected {number}"


def _cost(trace: Trace, model: Model, inputs: Inputs) -> Iterator[str]:
    """Check the formulas of cost against the module's own parameters and PyTorch's FLOP counter on `meta`."""
    sizes = {symbol.name: symbol.value for symbol in trace.symbols}
    everything = sum(parameter.numel() for parameter in model.net.parameters())
    counted = {"params": everything, "flops": _count_flops(model.net, inputs)}
    if not model.spec.whole:  # models of libraries have parameters that a run passes by
        least = sum(parameter.numel() for parameter in _parameters_with_gradient(model.net, inputs))
        counted["params"] = min(max(trace.params, least), everything)
    for what, expected in counted.items():
        formula, number = getattr(trace, f"{what}_symbolic"), getattr(trace, what)
        if number != expected:
            yield f"{number} {what} counted, expected {expected}"
        if _value(formula, sizes) != expected:
            yield f"the formula of {what}, {formula}, gives {_value(formula, sizes)}, expected {expected}"


def _parameters_with_gradient(net: torch.nn.Module, inputs: Inputs) -> list[torch.nn.Parameter]:
    """Return the parameters that the output depends on, by its gradient; the run read these at least."""
    net = copy.deepcopy(net).requires_grad_()
    parameters = list(net.parameters())
    with torch.enable_grad():
        outputs = _tensors(seeded_run(net, *inputs, **inputs.named))
        total = sum(tensor.sum() for tensor in outputs if tensor.requires_grad)
        gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    return [parameter for parameter, gradient in zip(parameters, gradients, strict=True) if gradient is not None]


def _count_flops(net: torch.nn.Module, inputs: Inputs) -> int:
    """Count FLOPs by PyTorch's own counter, on `meta`; on the CPU for a forward that reads values, with the formula for
    fused attention of other devices."""
    arguments = (tuple(inputs), inputs.named)
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            args, named = tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), arguments)
            seeded_run(copy.deepcopy(net).to("meta"), *args, **named)
    except RuntimeError:
        fused = {getattr(torch.ops.aten, name): cost.attention_flops for name in cost.FUSED_OPS}
        with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=fused) as counter:
            seeded_run(net, *inputs, **inputs.named)
    return counter.get_total_flops()


def _value(formula: str, sizes: dict[str, int]) -> float | str:
    if formula == UNKNOWN:
        return UNKNOWN
    try:
        return value_of(formula, sizes)
    except KeyError as error:
        return f"unknown for want of {error}"


def _attention(trace: Trace) -> Iterator[str]:
    """Check that every attention of the run can be recovered, and its rows sum to 1."""
    layer: dict[str, int] = {}
    for record in trace.attentions:
        number = layer[record.part] = layer.get(record.part, -1) + 1
        where = f"attention of layer {number}" + (f" in {record.part!r}" if record.part else "")
        if record.problem:
            yield f"{where}: {record.problem}"
            continue
        sums = trace.attention(number, part=record.part).sum(dim=-1)
        over = sums.max().item() - 1 if sinks(record.chain) else (sums - 1).abs().max().item()
        if not over <= ROWS:
            yield f"{where}: its rows sum to 1 only within {over:.1e}"


def _primitives(trace: Trace) -> Iterator[str]:
    """Yield the errors in the decompositions of the ops."""
    for opened in trace.decompositions:
        where = f"op {opened.op} ({trace.ops[opened.op].op})"
        results = trace.ops[opened.op].outputs
        if opened.error is not None and verdict_within(opened.error, results[0].dtype) != "verified":
            yield f"{where}: its primitives differ from it by {opened.error:.1e}"
        tensors = [x for primitive in opened.primitives for x in (*primitive.inputs, *primitive.outputs)]
        if count := sum((x.symbolic or ()).count(UNKNOWN) for x in tensors):
            yield f"{where}: {count} dimensions of its primitives are not solved"
