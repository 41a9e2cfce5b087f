"""Findings on a module's state: dropout that is still on, and parameters that nothing depends on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from tracer.capture.callable_module import Function
from tracer.capture.tensors.pytree import output_tensors, same_outputs
from tracer.diagnostics.findings.rule import Finding, Rule
from tracer.ops import ATTENTION, base
from tracer.shapes.twin_variation import other_weights
from tracer.utils.error_text import reason

if TYPE_CHECKING:
    from tracer.diagnostics.findings.run_view import RunView

DROPOUTS = frozenset(("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "native_dropout"))


def find_dropout(run: RunView) -> Iterator[Finding]:
    """Yield dropout that is active although the module is in evaluation mode, and changes its output from run to
    run."""
    if run.graph is None or run.trains or run.replay is None:
        return
    active = []
    for call in run.graph.calls:
        name = base(call.name)
        if (name in DROPOUTS and call.arguments.get("p") and call.arguments.get("train")) or (
            call.name == ATTENTION and call.arguments.get("dropout_p")
        ):
            active.append(call)
    if not active:
        return
    share = _spread(run)
    modes = {path: module.training for path, module in run.replay.module.named_modules(remove_duplicate=False)}
    for call in active:
        probability = call.arguments.get("p") or call.arguments.get("dropout_p")
        fix = (
            "Pass `dropout_p=self.dropout if self.training else 0.0`."
            if call.name == ATTENTION
            else "Pass `training=self.training` to `F.dropout`, and hold modules in `nn.ModuleList`, where `.eval()`"
            " reaches them."
        )
        where = call.module if modes.get(call.module) else ""
        yield Finding(
            "dropout in eval",
            run.step(call.last - 1),
            tuple(range(call.first, call.last)),
            f"Dropout of {probability:g} is active although the model is in evaluation mode"
            + (f", since `{where}` is still in training mode" if where else "")
            + f": two runs of this input differ by {share:.2g} of the largest value.",
            fix,
        )


def _spread(run: RunView) -> float:
    """Return how far the outputs of two runs with other random numbers differ, as a share of the largest value."""
    outputs = [[tensor for _, tensor in output_tensors(run.run(seed=seed).output)] for seed in (1, 2)]
    share = 0.0
    for first, second in zip(*outputs, strict=False):
        if first.is_floating_point() and first.shape == second.shape and first.numel():
            high = first.double().abs().max()
            share = max(share, float((first.double() - second.double()).abs().max() / high) if high > 0 else 0.0)
    return share


def find_idle(run: RunView) -> Iterator[Finding]:
    """Yield parameters that no output depends on: with other values in them, a second run gives the same output."""
    graph, replay = run.graph, run.replay
    if graph is None or replay is None or (isinstance(replay.module, Function) and not replay.module.owned):
        return
    live = _ancestors(run)
    tensors = dict(replay.module.named_parameters())
    idle = [name for name in tensors if f"parameter {name}" not in live]
    if not idle or not graph.outputs:
        return
    draw = torch.Generator().manual_seed(1)
    others = {
        id(tensors[name]): torch.nn.Parameter(other_weights(tensors[name], draw, False), requires_grad=False)
        for name in idle
    }
    try:
        again = run.run(others, whole=True)
    except Exception as error:  # of a stranger's model, with other numbers
        run.problems.append(f"It could not be run with other parameters ({reason(error)}).")
        return
    if not same_outputs(again.output, run.values.output):
        return
    for group in _groups(idle, list(tensors)):
        names = [name for name in idle if name == group or name.startswith(f"{group}.")]
        count = sum(tensors[name].numel() for name in names)
        readers = sorted({op.index for op in run.trace.ops if not set(names).isdisjoint(op.parameters)})
        how = "is read, but what was computed from it reaches no output" if readers else "is read by no operation"
        message = (
            f"No output depends on `{group}` ({count:,} numbers): it {how}, and with other values in it, a second run"
            " gives the same output, bit by bit."
        )
        step = run.step(readers[0]) if readers else ""
        intent = run.intent_at("parameter unused", step, group)
        fix = f"Use `{group}` in forward, or remove it: it gets no gradient."
        yield Finding("parameter unused", step, tuple(readers), message, fix, intent)


def _ancestors(run: RunView) -> set[str]:
    """Return the keys of all values that an output was computed from."""
    graph = run.graph
    assert graph is not None
    waiting, live = [ref.key for ref in graph.outputs], set()
    while waiting:
        key = waiting.pop()
        if key not in live:
            live.add(key)
            if key in graph.producer:
                waiting += [ref.key for ref in graph.inputs[graph.producer[key]]]
    return live


def _groups(idle: list[str], every: list[str]) -> list[str]:
    """Return the outermost modules all of whose parameters are idle, and the parameters in none of these."""
    groups: list[str] = []
    for name in idle:
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            group = ".".join(parts[:depth])
            inside = [other for other in every if other == group or other.startswith(f"{group}.")]
            if set(inside) <= set(idle):
                if group not in groups:
                    groups.append(group)
                break
    return groups


RULES = (
    Rule("dropout in eval", find_dropout, runs_again=True),
    Rule("parameter unused", find_idle, runs_again=True),
)
