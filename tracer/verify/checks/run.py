"""Records, shapes, costs and proofs of a run, computed again."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from inspect import getdoc
from itertools import pairwise
from math import ceil, floor, inf, isnan, nan, prod, sqrt

import numpy as np
import sympy
import torch
import torch.nn.functional as F
from torch.autograd.profiler_legacy import profile  # the newer one writes to standard error
from torch.utils.flop_counter import FlopCounterMode, bmm_flop

import tracer
from tracer import models
from tracer.expr import Node, ShapeError, Tensor, infer
from tracer.expr.arithmetic import Product
from tracer.expr.indexing import CausalMask, PrefixMask
from tracer.latex_reader.evaluator import names, names_in
from tracer.latex_reader.parser import UnreadableLatex, read
from tracer.ops import is_layout
from tracer.record import costs as cost_breakdown
from tracer.record import verdict
from tracer.symbols import cost, notation
from tracer.symbols.notation import parse, symbol
from tracer.tracing.proofs import same_size
from tracer.utils.torch_state import Difference, first_beyond, relative_difference
from tracer.verify.checks import check
from tracer.verify.checks.reference_run import OpObserver, PlainRun, Transparent, array, attached, tensors

# Parameters and FLOPs: op by op at the run, and their formulas at sizes that the run did not have.

OP_COUNTERS: dict[str, bool | None] = dict.fromkeys(("mm", "bmm", "addmm", "convolution"), True)
OP_COUNTERS |= dict.fromkeys(("add", "_softmax", "gelu", "lgamma", "cummax"), False)
OP_COUNTERS |= dict.fromkeys(("mine.kernel", "_cdist_forward", "mkldnn_rnn_layer"))
"""Ops whose FLOPs are counted, those that have none, and those that may multiply matrices and are not counted."""


@check
def check_flops_and_params(run: PlainRun) -> Iterator[str]:
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
    if not any(min(len(infer(x)) for x in node.args) > 1 for node in line.equation.atoms(Product)):
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
    for name in sizes:
        if name in spec.parts.values():
            sizes[name] = run.model.sizes[name] + (name in counted)
        elif name in ("T", "K", "N_v"):
            sizes[name] -= 1
        elif name in ("H", "D", "V", "d_ff", "T_max"):
            sizes[name] *= 2
        elif name == "W":
            sizes[name] *= 3
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


# Calls of modules and composite ops, by the hooks of a plain run, by PyTorch's FLOP counter, and by its profiler.


@check
def check_module_records(run: PlainRun) -> Iterator[str]:
    """Compare the records of a trace with those of PyTorch's own tools for the same forward, untraced."""
    for module in run.trace.modules:
        if module.verdict != "verified":
            yield f"module {module.path!r}: {module.problem}"
    yield from _check_calls(run)
    yield from _check_flops(run)
    yield from _check_composites(run)
    yield from _shared_out(run)


def _shapes(values) -> list[list[int]]:
    return [list(x.shape) for x in tensors(values)]


def _check_calls(run: PlainRun) -> Iterator[str]:
    """Check each module's calls, in order: class, shapes in and out, and its parameters."""
    net, calls_seen = run.model.net, defaultdict(list)
    paths = {module: path for path, module in net.named_modules()}

    def saw(module, args, named, output):
        kind, parameters = type(module).__name__, {id(x): x.numel() for x in module.parameters()}
        calls_seen[paths[module]].append((kind, _shapes((args, named)), _shapes(output), sum(parameters.values())))

    hooks = [module.register_forward_hook(saw, with_kwargs=True) for module in paths]
    with attached(hooks), torch.no_grad(), Transparent():
        net(*run.inputs, **run.inputs.named)
    records = defaultdict(list)
    for module in run.trace.modules:
        inputs, outputs = ([list(x.shape) for x in tensors] for tensors in (module.inputs, module.outputs))
        records[module.path].append((module.kind, inputs, outputs, module.params))
    shared = len(paths) < sum(1 for _ in net.named_modules(remove_duplicate=False))
    own = {*paths.values()}
    for path in [path for path in records if path not in own and path.rpartition(".")[0] in own]:
        if path.rpartition(".")[2] == records[path][0][0]:
            del records[path]  # a forward that builds a module: it has no name, so it goes by its class
    if not shared and records.keys() != calls_seen.keys():
        yield f"modules {sorted(records.keys() ^ calls_seen.keys())} were called in one of two runs"
    for path in records.keys() & calls_seen.keys():
        if [call[:3] for call in records[path]] != [call[:3] for call in calls_seen[path]]:
            yield f"module {path!r} is said to be {records[path]}, hooks saw {calls_seen[path]}"
        for (*_, used), (*_, count) in zip(records[path], calls_seen[path], strict=False):
            if used > count or (used < count and getattr(run.model.spec, "whole", False)):
                yield f"the operations of module {path!r} read {used:,} parameters, it holds {count:,}"


def _check_flops(run: PlainRun) -> Iterator[str]:
    """Check the FLOPs of each module, over all its calls; the counter has no formula for the fused attention of the
    CPU."""
    trace = run.trace
    if any(op.op == "_scaled_dot_product_flash_attention_for_cpu" for op in trace.ops):
        return
    with torch.no_grad(), Transparent(), FlopCounterMode(display=False) as counter:
        run.model.net(*run.inputs, **run.inputs.named)
    name, counts = type(run.model.net).__name__, counter.get_flop_counts()
    totals = Counter()
    for module in trace.modules:
        totals[f"{name}.{module.path}".rstrip(".")] += module.flops
    for path, flops in totals.items():
        if path in counts and flops != sum(counts[path].values()):
            yield f"module {path!r} costs {flops:,} FLOPs, PyTorch counts {sum(counts[path].values()):,}"
    if sum(counts["Global"].values()) != trace.modules[0].flops:
        yield f"the model costs {trace.modules[0].flops:,} FLOPs, PyTorch counts {sum(counts['Global'].values()):,}"


def _check_composites(run: PlainRun) -> Iterator[str]:
    """Check the composite ops that PyTorch's profiler lists, in order, with the shapes of their inputs."""
    with torch.no_grad(), Transparent(), profile(record_shapes=True) as profiler:
        run.model.net(*run.inputs, **run.inputs.named)
    events = [event for event in profiler.function_events if event.cpu_parent is None]
    events = [(event.name.removeprefix("aten::"), [list(x) for x in event.input_shapes or () if x]) for event in events]
    events = [event for place, event in enumerate(events) if not _of_a_constant(events, place)]
    calls = run.trace.calls
    if [call.name for call in calls] != [name for name, _ in events]:
        yield f"{len(calls)} composite ops ran, PyTorch's profiler lists {len(events)} others"
        return
    for call, (name, shapes) in zip(calls, events, strict=True):
        taken = [argument.tensors for argument in call.arguments]
        operand_shapes = [list(group[0].shape) for group in taken if len(group) == 1 and group[0].shape]
        if len(operand_shapes) == len(shapes) and operand_shapes != shapes:  # of lists it has none
            yield f"{call.text} takes {operand_shapes}, PyTorch's profiler saw {name} take {shapes}"
    beneath = [index for call in calls for index in range(call.first, call.last)]
    if beneath != list(range(len(run.trace.ops))):
        yield "some operations belong to no composite op, or to two"


def _of_a_constant(events: list[tuple[str, list]], place: int) -> bool:
    """Return whether an event fills a tensor with Python numbers, as `torch.tensor` does before it releases it."""
    names = [name for name, _ in events[place : place + 3]]
    return names[:3] == ["empty", "to", "lift_fresh"] or names[:2] == ["to", "lift_fresh"]


def _shared_out(run: PlainRun) -> Iterator[str]:
    """Check that the costs of steps add up to those of ops, and parts of fused attention to those of two products."""
    trace = run.trace
    owned = [op for op in trace.ops if op.step is not None]
    costs = {step.id: cost_breakdown.cost_of_step(trace, step) for step in trace.steps}
    if sum(cost.flops for cost in costs.values()) != sum(op.flops or 0 for op in owned):
        yield f"steps cost {sum(cost.flops for cost in costs.values()):,} FLOPs, their operations do not"
    for step in trace.steps:
        if step.product is None or step.inside is None or "attention" not in trace.ops[step.inside].op:
            continue
        (B, h, S, d_k), (_, _, T, _), (*_, d_v) = (tensor.shape for tensor in trace.ops[step.inside].inputs[:3])
        expected = [bmm_flop((B * h, S, d_k), (B * h, d_k, T)), bmm_flop((B * h, S, T), (B * h, T, d_v))]
        shares = [costs[step.id].flops, costs[trace.ops[step.inside].step].flops]
        if shares != expected:
            yield f"fused attention of step {step.id!r} costs {shares} FLOPs, its two products {expected}"


# What each step reads, by the names in its printed line, which other checks evaluate.


@check
def check_reads(run: PlainRun) -> Iterator[str]:
    """Compare what each step is said to read with the names that the reader of LaTeX finds in its line."""
    table = names(run.trace.steps)
    sizes = {notation.latex(size.name) for size in run.trace.symbols}
    for step in run.trace.steps:
        try:
            line = read(step.latex, {*table, *sizes})
        except UnreadableLatex:  # the check of printed equations says so
            continue
        printed = [key for name in names_in((line.right, line.since, line.turns)) for key in table.get(name, ())]
        keys = {key.removeprefix("step ").removesuffix(".T") for key in printed}
        if keys != set(step.reads) or len(keys) != len(step.reads):
            yield f"step {step.id!r} is said to read {sorted(step.reads)}, its line has {sorted(keys)}"


# Functions in a model's equations against PyTorch's own, in float64 and over more numbers than a run has.

X = torch.linspace(-9, 9, 420, dtype=torch.float64).reshape(7, 60) ** 3 / 81
"""Numbers from -9 to 9, most of them near 0."""


@check
def check_node_functions(run: PlainRun) -> Iterator[str]:
    """Execute each function that the equations name once, on `X`."""
    examples: dict[str, Node] = {}
    for line in getattr(run.model, "lines", ()):
        for node in _nodes(line.equation):
            if type(node).__name__ in PYTORCH:
                examples.setdefault(f"{type(node).__name__} {[a for a in node.args if a.is_number]}", node)
    for name, node in examples.items():
        scale = torch.linspace(0.5, 2, 60, dtype=torch.float64)
        arguments = [X, scale, scale.flip(0) - 1][: len(node.operands)]
        inner = node.run(float, *arguments)
        expected = PYTORCH[type(node).__name__](*(float(a) for a in node.args if a.is_number), *arguments)
        if not (inner - expected).abs().max() <= 1e-12:
            yield f"{name} differs from PyTorch's by {float((inner - expected).abs().max()):.1e}"

    for line in getattr(run.model, "lines", ()):
        yield from _other_eps(run, line)
    yield from _masks()


def _masks() -> Iterator[str]:
    """Check masks of five tokens, cell by cell: -∞ or another lowest number where a query may not attend."""
    cases = ((CausalMask(5), 0, -inf), (CausalMask(5, -7.0), 0, -7.0), (PrefixMask(5, 3), 3, -inf))
    for node, first, lowest in cases:
        expected = [[0.0 if j <= i or j < first else lowest for j in range(5)] for i in range(5)]
        if node.run(int).tolist() != expected:
            yield f"{node} is {node.run(int).tolist()}"


def _other_eps(run: PlainRun, line) -> Iterator[str]:
    """Check that the ε of a norm in an equation is that of the module with its γ."""
    for node in _nodes(line.equation):
        if type(node).__name__ not in ("LayerNorm", "RMSNorm"):
            continue
        path = node.operands[1].key.removeprefix("parameter ").rpartition(".")[0]
        module = run.model.net.get_submodule(path)
        ran = next((getattr(module, name) for name in ("eps", "variance_epsilon") if hasattr(module, name)), None)
        if ran is not None and float(node.args[0]) != ran:
            yield f"step {line.id!r} has an ε of {float(node.args[0])}, {path} has {ran}"


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for operand in node.operands:
        yield from _nodes(operand)


PYTORCH = {
    "GELU": F.gelu,
    "GELUTanh": lambda x: F.gelu(x, approximate="tanh"),
    "ReLU": F.relu,
    "SiLU": F.silu,
    "Tanh": torch.tanh,
    "Softmax": lambda x: F.softmax(x, dim=-1),
    "LayerNorm": lambda eps, x, *scales: F.layer_norm(x, x.shape[-1:], *scales, eps=eps),
    "RMSNorm": lambda eps, x, gamma: F.rms_norm(x, x.shape[-1:], gamma, eps),
}
"""What PyTorch calls them: numbers first, then tensors."""


# Power of a proof: an equation is compared with a tensor that is slightly wrong, in one cell.

DTYPE_THRESHOLDS = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1, "int64": 1e-9}
"""Shares of the largest value that are an error in each dtype, whatever was computed."""

INFINITY_THRESHOLD = 1e30
"""Numbers beyond stand for infinities, as in some masks."""

SHORTFALL = sympy.Rational(1000, 1001)
"""A factor that is too little by a thousandth."""

MAX_PARAMETERS = 100_000
"""Parameters of a net that is run for two inputs too."""


@check
def check_proof_sensitivity(run: PlainRun) -> Iterator[str]:
    """Try the verdicts, and the difference of some steps' tensors from slightly wrong ones."""
    if [verdict(margin) for margin in (1.001, 1.0, float("nan"))] != ["refuted", "verified", "refuted"]:
        yield f"1.001 times the error that is allowed in a cell is called {verdict(1.001)}"
    if verdict(None) == "verified":
        yield "what was not executed is called verified"
    values = [(step, value) for step in run.trace.steps if (value := run.trace.value(step)) is not None]
    for step, value in values[:: max(1, len(values) // 12)]:
        finite = value.is_floating_point() and value.numel() and value.isfinite().all()
        if finite and 0 < value.abs().max() < INFINITY_THRESHOLD:
            yield from _wrong(step, value.double())
        error = nan if step.error is None else step.error
        if step.verdict == "verified" and not 0 <= error <= DTYPE_THRESHOLDS.get(step.dtype, 0.0):
            yield f"step {step.id!r} is called verified with an error of {step.error}"
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
    """Check that equations of twice the run's value, or a thousandth more, are refuted, except those of nothing but 0
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
            if value is not None and (value != 2 * value).any() and step.verdict != "refuted":
                yield f"{times} the equation of step {step.id!r} is called {step.verdict}"


def _several(run: PlainRun) -> Iterator[str]:
    """Check that the equations of a run of two inputs are verified too."""
    for step in replace(run.model).trace(**{**run.inputs.sizes, "B": 2}).steps:
        if step.verdict not in ("verified", "recomputed"):
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
    first = first_beyond(Difference(wrong, value).shares(allowed))
    if first != cell or first_beyond(Difference(value, value).shares(None)) is not None:
        yield f"step {step.id!r}, wrong in cell {cell}, is first wrong in {first}"
    wrong[cell] = float("nan")
    if not isnan(error := relative_difference(wrong, value)):
        yield f"step {step.id!r} with a NaN that the run has not differs by {error}"


# Shapes in symbols, at sizes that the run did not have: the outputs of each module there, by forward hooks.


@check
def check_shapes_at_other_sizes(run: PlainRun) -> Iterator[str]:
    """Compare the symbols of every module's outputs with their shapes at other sizes."""
    if getattr(run.model, "vocabulary", None) is None:
        return
    last = {}
    for op in run.trace.ops:
        parts = op.module.split(".")
        for depth in range(len(parts) + 1):
            last[".".join(parts[:depth])] = op
    sizes, spec = elsewhere(run), run.model.spec
    sizes |= {symbol: run.model.sizes[symbol] for symbol in spec.parts.values() if symbol in run.model.sizes}
    own = {name: value for name, value in sizes.items() if name not in (*spec.runs, *spec.derived)}
    net, args, named = run.model.vocabulary.build({**own, **{name: sizes[name] for name in spec.runs}})
    returned: dict[str, list] = {}
    for path, module in net.named_modules():
        module.register_forward_hook(lambda module, args, out, path=path: returned.setdefault(path, []).append(out))
    with torch.no_grad():
        net(*args, **named)
    for path, outputs in returned.items():
        op = last.get(path)
        if len(outputs) != 1 or not isinstance(outputs[0], torch.Tensor) or op is None or not op.outputs:
            continue
        symbolic, shape = op.outputs[0].symbolic, tuple(outputs[0].shape)
        if symbolic is None or "?" in symbolic:
            continue
        if tuple(at(size, sizes) for size in symbolic) != shape:
            yield f"{path or 'the model'} returns [{', '.join(symbolic)}], at {sizes} it returns {list(shape)}"


# Facts about a model before it runs, its summary and its inputs, against its file once it is imported.


@check
def check_spec_literals(run: PlainRun) -> Iterator[str]:
    """Compare the facts read from a model's file with the imported module."""
    name, spec = run.model.name, run.model.spec
    if name not in models.names():
        return
    module = import_module(f"tracer.models.{name.replace('-', '_')}")
    if models.summary(name) != (getdoc(module) or "").partition("\n")[0]:
        yield f"the model is said to be {models.summary(name)!r}"
    if models.takes(name) != spec.takes or models.samples(name) != spec.samples:
        yield f"the model is said to take {models.takes(name)}, and samples of {models.samples(name)!r}"


# Trace of the same net as an unknown module, with only the batch axes named.

BATCH = 3


@check
def check_undescribed_module(run: PlainRun) -> Iterator[str]:
    """Compare the shapes and the output of such a trace with those of the plain run."""
    if ":" in run.model.name or not getattr(run.model, "sizes", None):
        return
    if sum(parameter.numel() for parameter in run.model.net.parameters()) > MAX_PARAMETERS:
        return
    inputs = run.model.inputs(**{**run.inputs.sizes, "B": BATCH})
    names = run.model.net.forward.__code__.co_varnames[1 : 1 + len(inputs)]
    axes = [(name, 0) for name, x in zip(names, inputs, strict=True) if len(x) == BATCH]
    with torch.no_grad():
        trace = tracer.trace(run.model.net, *inputs, symbols={"B": axes[0]}, **inputs.named)
        output = run.model.net(*inputs, **inputs.named)
    if not all(torch.equal(a, b) for a, b in zip(tensors(trace.output), tensors(output), strict=True)):
        yield "traced as a module, the net gives another output"
    if trace.params != run.trace.params or len(trace.attentions) != len(run.trace.attentions):
        yield f"traced as a module, the net has {trace.params:,} parameters, {len(trace.attentions)} attentions"
    last = trace.ops[-1].outputs[0]
    if len(axes) == 1 and (last.symbolic is None or last.symbolic[0] != "B"):
        yield f"traced as a module, the net returns {last.symbolic}, expected a batch of B"
    for op in trace.ops:
        for tensor in (*op.inputs, *op.outputs):
            for size, number in zip(tensor.symbolic or (), tensor.shape, strict=bool(tensor.symbolic)):
                if (size.isdigit() and int(size) != number) or (size == "B" and number != BATCH):
                    yield f"traced as a module, op {op.index} has a size of {number} that is said to be {size}"
                    return
