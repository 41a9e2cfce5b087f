"""Calls of modules and composite ops, by the hooks of a plain run, by PyTorch's FLOP counter, and by its profiler."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import torch
from torch.autograd.profiler_legacy import profile  # the newer one writes to standard error
from torch.utils.flop_counter import FlopCounterMode, bmm_flop

from tracer.record import cost_breakdown
from tracer.verify.checks.reference_run import PlainRun, Transparent, tensors


def problems(run: PlainRun) -> Iterator[str]:
    """Compare the records of a trace with those of PyTorch's own tools for the same forward, untraced."""
    for module in run.trace.modules:
        if module.verdict != "proven":
            yield f"module {module.path!r}: {module.problem}"
    yield from _check_calls(run)
    yield from _check_flops(run)
    yield from _check_composites(run)
    yield from _shared_out(run)


def _shapes(values) -> list[list[int]]:
    return [list(x.shape) for x in tensors(values)]


def _check_calls(run: PlainRun) -> Iterator[str]:
    """Check each module's calls, in order: class, shapes in and out, and its parameters."""
    net, calls_seen, paths = run.model.net, defaultdict(list), {}
    for path, module in net.named_modules():
        paths[module] = path

    def saw(module, args, named, output):
        kind, parameters = type(module).__name__, {id(x): x.numel() for x in module.parameters()}
        calls_seen[paths[module]].append((kind, _shapes((args, named)), _shapes(output), sum(parameters.values())))

    hooks = [module.register_forward_hook(saw, with_kwargs=True) for module in paths]
    try:
        with torch.no_grad(), Transparent():
            net(*run.inputs, **run.inputs.named)
    finally:
        for hook in hooks:
            hook.remove()
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
        for (*_, read), (*_, count) in zip(records[path], calls_seen[path], strict=False):
            if read > count or (read < count and getattr(run.model.spec, "whole", False)):
                yield f"the operations of module {path!r} read {read:,} parameters, it holds {count:,}"


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
    costs = {step.id: cost_breakdown.of_step(trace, step) for step in trace.steps}
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
