"""A rule on gradients: parameters that an output depends on, and that no gradient reaches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from tracer.capture.calls import Call
from tracer.capture.modes import Function
from tracer.capture.tensors import output_tensors
from tracer.diagnostics.findings.modules import outermost_groups
from tracer.diagnostics.findings.run_view import Evidence, rule
from tracer.diagnostics.findings.second_runs import OUTPUT_TOLERANCE, movement_with
from tracer.shapes.variation import shadow_copy
from tracer.utils.errors import reason
from tracer.utils.torch_state import seeded_draws

if TYPE_CHECKING:
    from tracer.diagnostics.findings.run_view import RunView


CUTS = frozenset(
    ("detach", "argmax", "argmin", "argsort", "topk", "sort", "lift_fresh", "round", "ge", "gt", "lt", "le")
)
"""Calls whose results have no gradient, or none of what they were computed from."""


class GradientCut(NamedTuple):
    """Parameters that no gradient reaches: the paths of their modules, their names, their number, how far an output
    moves with them, and the call that cuts the way of the gradient, None for a part without gradients."""

    paths: list[str]
    names: list[str]
    size: int
    share: float
    call: Call | None


def gradient_cuts(run: RunView) -> Iterator[GradientCut]:
    """Yield the parameters to be trained that an output moves with and that get no gradient from any output."""
    if run.replay is None or isinstance(run.replay.module, Function):
        return
    tensors = dict(run.replay.module.named_parameters())
    cut = _without_gradient(run, tensors)
    live = {*run.graph.ancestors(ref.key for ref in run.graph.outputs)}
    known = [name for name in cut if f"parameter {name}" in live] or cut
    estimated = _estimated(run)
    known = [name for name in known if f"parameter {name}" not in estimated]
    groups: dict[int | None, list[str]] = {}
    for name in known:
        groups.setdefault(_cutting_call(run, [name]), []).append(name)
    for number, names in groups.items():
        share = movement_with(run, [tensors[name] for name in names])
        if share > OUTPUT_TOLERANCE:
            paths, call = outermost_groups(names, list(tensors)), None if number is None else run.graph.calls[number]
            yield GradientCut(paths, names, sum(tensors[name].numel() for name in names), share, call)


def _without_gradient(run: RunView, tensors: dict[str, nn.Parameter]) -> list[str]:
    """Return the names of the parameters to be trained that get no gradient from the outputs; none where no output has
    a gradient, unless that is a loss."""
    found = gradients(run, {name: tensor.detach().clone() for name, tensor in tensors.items()})
    return [name for name, gradient in found.items() if gradient is None]


def gradients(run: RunView, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor | None]:
    """Return the gradients of the outputs of a run, weighted at random, with these values in its parameters, by the
    names of those to be trained; none where no output has a gradient, unless that is a loss."""
    assert run.replay is not None
    replay = run.replay
    tensors = dict(replay.module.named_parameters())
    copies = {
        id(tensor): nn.Parameter(values[name], requires_grad=tensor.requires_grad) for name, tensor in tensors.items()
    }
    try:
        module = shadow_copy(replay.module, dict(copies))
        args, kwargs = shadow_copy((tuple(replay.args), dict(replay.kwargs)), {})
        with torch.enable_grad(), seeded_draws(0):
            outputs = [tensor for _, tensor in output_tensors(module(*args, **kwargs))]
            floats = [tensor for tensor in outputs if tensor.is_floating_point() or tensor.is_complex()]
            moving = [tensor for tensor in floats if tensor.requires_grad]
            trained = {name: copies[id(tensor)] for name, tensor in tensors.items() if tensor.requires_grad}
            if not moving:
                lost = bool(floats) and all(not tensor.shape for tensor in floats)
                return dict.fromkeys(trained) if lost else {}
            total = sum((tensor.abs() * torch.rand(tensor.shape).to(tensor.device)).double().sum() for tensor in moving)
            found = torch.autograd.grad(total, list(trained.values()), allow_unused=True)
    except Exception as error:  # of a stranger's model, such as one that runs without gradients alone
        run.problems.append(f"Its gradients could not be computed ({reason(error)}).")
        return {}
    return dict(zip(trained, found, strict=True))


def _estimated(run: RunView) -> set[str]:
    """Return the values behind straight-through estimators, `x + (q - x).detach()`, whose gradient is that of x on
    purpose (Bengio et al. 2013; van den Oord et al. 2017, section 3.2)."""
    graph, estimated = run.graph, set[str]()
    for call in graph.calls:
        before = graph.producing_call(call.arguments["self"].key) if call.op.name == "detach" else None
        if before is None or before.op.name != "sub":
            continue
        operands = graph.inputs[graph.producer[before.outputs[0].key]]
        sums = [graph.inputs[index] for index in graph.live_users[call.outputs[0].key] if graph.name(index) == "add"]
        if any(ref.key == operand.key for refs in sums for ref in refs for operand in operands):
            estimated.update(graph.ancestors([before.outputs[0].key]))
    return estimated


def _cutting_call(run: RunView, names: list[str]) -> int | None:
    """Return the number of the first call after these parameters that cuts gradients."""
    graph = run.graph
    after = {key for name in names for key in graph.descendants(f"parameter {name}")}
    for index, call in enumerate(graph.calls):
        if call.op.name in CUTS and graph.is_live(index) and any(ref.key in after for ref in graph.inputs[index]):
            return index
    return None


@rule(
    "gradient cut",
    gradient_cuts,
    "The output moves by {share:.2g} of its largest value with other numbers in {paths} ({count:,} parameters), and no"
    " gradient reaches them: {where}. Training leaves them as they are.",
    "Leave out what cuts the gradient. For a part that is frozen on purpose, say so: `requires_grad_(False)`.",
    runs_again=True,
)
def find_cut(run: RunView, cut: GradientCut) -> Evidence:
    """Find parameters to be trained that no gradient reaches."""
    places = [cut.call] if cut.call is not None else run.readers(cut.names)[:1]
    where = f"`{cut.call.op.name}` cuts it" if cut.call is not None else "they are read in a part without gradients"
    return Evidence(
        *places, paths=listed(cut.paths), count=cut.size, share=cut.share, where=where,
        intent=run.intent_at("gradient cut", "", cut.paths[0]),
    )  # fmt: skip


def listed(paths: list[str]) -> str:
    """Return the first paths of a list as text."""
    texts = [f"`{path}`" for path in paths[:3]]
    if len(paths) > len(texts):
        texts.append(f"{len(paths) - len(texts)} more")
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
