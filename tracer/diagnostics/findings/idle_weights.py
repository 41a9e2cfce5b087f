"""A rule on weights that an output was computed from, and that move none: their numbers cancel on the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from tracer.capture import Recording
from tracer.capture.calls import Call
from tracer.capture.modes import Function
from tracer.diagnostics.findings.attention import masks
from tracer.diagnostics.findings.gradients import gradients, listed
from tracer.diagnostics.findings.run_view import Evidence, live_calls, rule
from tracer.diagnostics.findings.second_runs import output_list, relative_difference
from tracer.ops import SOFTMAXES, base
from tracer.shapes.variation import other_weights
from tracer.utils.errors import reason

if TYPE_CHECKING:
    from tracer.diagnostics.findings.run_view import RunView


NOTHING = 1e-5
"""Largest difference of an output, as a share of the largest value, that is taken for rounding where weights are drawn
anew, and so are as large as any."""
FAINT = 1e-4
"""Share of the largest gradient under which a weight is looked at."""
DRAWS = 2
"""Draws of the whole model in which a weight has to move nothing."""
MOST = 24
"""Weights that are looked at."""
CHOICES = frozenset(("topk", "argmax", "argmin", "argsort", "sort", "bincount", "one_hot", "nonzero", "unique", "max"))
"""Calls that choose by values: what they leave out in one run has no effect there."""
SELECTIONS = ("where", "masked", "index_put")
"""Beginnings of the names of calls that put a learned value in the place of some tokens."""

CONSTANT_WEIGHTS = (
    " All of it goes through this softmax, and the answer stays as it is with any other scores in its place: its"
    " weights are added up before they meet the values, and weights add up to 1."
)
ONE_ROW = (
    " Between tokens that see each other, {rows} of its {size} rows alone {are} read: all of these scores are raised by"
    " the same number, and a softmax does not depend on that."
)
MULTIPLY_VALUES = (
    "Sum over the keys together with the values: `torch.einsum('bhij,bjhd->bihd', weights, v)`, or `weights @ v`."
)
OTHER_SIGN = (
    "Look up one row for each distance: check the sign of the relative positions, key − query or query − key, that the"
    " function of the rows expects."
)
FOLLOW = "Follow it through the code: something after it cancels it, such as a mask, a product with 0, or a norm."


class IdleWeights(NamedTuple):
    """Weights of one module that move no output: their names, how many numbers they have, the calls that show where
    they are lost, why, and the repair."""

    names: list[str]
    size: int
    calls: list[Call]
    why: str
    repair: str


def idle_weights(run: RunView) -> Iterator[IdleWeights]:
    """Yield the weights that move no output in runs of the model with all weights drawn anew, by their modules."""
    if run.replay is None or isinstance(run.replay.module, Function) or run.draws or not _is_telling(run):
        return
    tensors = dict(run.replay.module.named_parameters())
    live = {*run.graph.ancestors((ref.key for ref in run.graph.outputs), lambda key: not _is_zeroed(run, key))}
    matrices = [
        name for name, tensor in tensors.items() if f"parameter {name}" in live and _is_matrix(run, name, tensor)
    ]
    idle = matrices
    for draw in range(1, DRAWS + 1):
        idle = _without_effect(run, tensors, idle, draw)
    groups: dict[tuple[str, int | None], list[str]] = {}
    for name in idle:
        softmax = _softmax_after(run, name)
        module = name.rpartition(".")[0] if softmax is None else ""
        groups.setdefault((module, softmax), []).append(name)
    for (_, softmax), names in groups.items():
        calls, why, repair = _cause(run, names, softmax)
        yield IdleWeights(names, sum(tensors[name].numel() for name in names), calls, why, repair)


def _is_telling(run: RunView) -> bool:
    """Return whether a run shows what weights do: no softmax is over one number, no input is one number everywhere, and
    nothing is chosen by values."""
    for call in live_calls(run):
        if call.op.name in CHOICES:
            return False
    for op in run.trace.ops:
        if "softmax" in base(op.op) and op.inputs and 1 in op.inputs[0].shape[-1:]:
            return False
    if any(1 in run.graph.shape(site.k)[-2:-1] for site in run.sites):
        return False
    floats = [tensor for tensor in run.inputs.values() if tensor.is_floating_point() and tensor.dim() > 1]
    return not any(bool((tensor == tensor.flatten()[0]).all()) for tensor in floats if tensor.numel())


def _is_zeroed(run: RunView, key: str) -> bool:
    """Return whether a value is a product with the number 0, which keeps parameters in the graph of gradients on
    purpose."""
    call = run.graph.producing_call(key)
    return (
        call is not None
        and call.op.name == "mul"
        and any(value == 0 for value in call.arguments.values() if isinstance(value, (int, float)))
    )


def _is_matrix(run: RunView, name: str, tensor: Tensor) -> bool:
    """Return whether a parameter has several rows and columns, and is no learned value that is put in the place of some
    tokens."""
    key = f"parameter {name}"
    if sum(size > 1 for size in tensor.shape) < 2 or not tensor.is_floating_point():
        return False
    waiting, users = [key], list[Call]()
    while waiting:
        for index in run.graph.live_users.get(waiting.pop(), ()):
            call = run.graph.calls[index]
            if run.graph.kind[index] == "layout":
                waiting += [ref.key for ref in call.outputs]
            else:
                users.append(call)
    return not any(call.op.name.startswith(SELECTIONS) for call in users)


def _draw(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Return other numbers for a parameter; those of a matrix are as large as after its usual initialization."""
    if not tensor.is_floating_point() or sum(size > 1 for size in tensor.shape) < 2:
        return other_weights(tensor.detach(), generator, False)
    numbers = torch.randn(tensor.shape, generator=generator) * tensor.shape[-1] ** -0.5
    return numbers.to(tensor.device, tensor.dtype)


def _without_effect(run: RunView, tensors: dict[str, nn.Parameter], names: list[str], seed: int) -> list[str]:
    """Return those of some parameters that move no output of the model with all weights drawn anew."""
    if not names:
        return []
    generator = torch.Generator().manual_seed(seed)
    whole = {name: _draw(tensor, generator) for name, tensor in tensors.items()}
    found = gradients(run, whole)
    known = {name: gradient for name in tensors if (gradient := found.get(name)) is not None}
    reach = {name: float((gradient * whole[name]).abs().max()) for name, gradient in known.items()}
    most = max(reach.values(), default=0.0)
    faint = [name for name in names if name in reach and reach[name] <= FAINT * most][:MOST]
    first = _run_with(run, tensors, whole) if faint and most > 0 else None
    idle = []
    for name in faint if first is not None else ():
        second = _run_with(run, tensors, whole | {name: _draw(tensors[name], generator)})
        if second is not None and first is not None and _alike(first, second):
            idle.append(name)
    return idle


def _run_with(run: RunView, tensors: dict[str, nn.Parameter], values: dict[str, Tensor]) -> Recording | None:
    others: dict[int, Tensor] = {
        id(tensors[name]): nn.Parameter(value, requires_grad=False) for name, value in values.items()
    }
    try:
        return run.run(others, whole=True)
    except Exception as error:  # of a stranger's model, with other numbers
        run.problems.append(f"It could not be run with other weights ({reason(error)}).")
        return None


def _alike(first: Recording, second: Recording) -> bool:
    """Return whether the outputs of two runs are the same within rounding, and tell something."""
    pairs = [pair for pair in zip(output_list(first), output_list(second), strict=False) if pair[0].is_floating_point()]
    if not pairs or any(not bool(tensor.isfinite().all()) for pair in pairs for tensor in pair):
        return False
    return all(relative_difference(one, another) <= NOTHING for one, another in pairs)


def _softmax_after(run: RunView, name: str) -> int | None:
    """Return the call of the first softmax after a parameter whose scores move no output; None where there is none."""
    after = run.graph.descendants(f"parameter {name}")
    for index, call in enumerate(run.graph.calls):
        if call.op.name in SOFTMAXES and run.graph.is_live(index) and call.outputs[0].key in after:
            scores = run.graph.inputs[index][0].key
            values = run.value(scores)
            if values is None or not values.is_floating_point():
                return None
            draws = [torch.randn(values.shape, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
            return None if run.moves_with_values(scores, draws, NOTHING) else index
    return None


def _cause(run: RunView, names: list[str], softmax: int | None) -> tuple[list[Call], str, str]:
    """Return the calls where weights are lost, why, and the repair."""
    graph = run.graph
    if softmax is not None:
        key = graph.calls[softmax].outputs[0].key
        users = [graph.calls[index] for index in graph.live_users[key]]
        return [graph.calls[softmax], *users[:1]], CONSTANT_WEIGHTS, MULTIPLY_VALUES
    keys = {f"parameter {name}" for name in names}
    readers = [
        call for call in live_calls(run)
        if not keys.isdisjoint(graph.root(ref.key) for ref in graph.inputs[graph.producer[call.outputs[0].key]])
        and graph.kind[graph.producer[call.outputs[0].key]] != "layout"
    ]  # fmt: skip
    for call in readers:
        rows = _rows_read(run, call) if call.op.name == "embedding" else None
        if rows is not None and len(rows) == 1:
            size = graph.shape(call.arguments["weight"].key)[0]
            return [call], ONE_ROW.format(rows=f"row {rows[0]}", size=size, are="is"), OTHER_SIGN
    return readers, "", FOLLOW


def _rows_read(run: RunView, call: Call) -> list[int] | None:
    """Return the rows of a table that are read for pairs of tokens that see each other; None where it is not read for
    pairs."""
    rows = run.value(call.arguments["indices"].key)
    for mask in masks(run) if rows is not None and rows.dim() >= 2 else ():
        if rows.shape[-2:] == mask.open.shape[-2:]:  # type: ignore[union-attr]
            seen = mask.open.any(dim=0)
            return sorted(set(rows.reshape(-1, *seen.shape)[0][seen].tolist()))  # type: ignore[union-attr]
    return None


@rule(
    "weights without effect",
    idle_weights,
    "No answer moves with {names} ({count:,} numbers): in second runs with all weights of the model drawn anew, other"
    " numbers there give the same outputs within rounding.{why}",
    "{repair}",
    runs_again=True,
    explained_by=("softmax axis",),
    compares=True,
)
def find_idle_weights(run: RunView, weights: IdleWeights) -> Evidence:
    """Find weights that are read and whose numbers cancel before an answer."""
    return Evidence(
        *weights.calls,
        names=listed(weights.names),
        count=weights.size,
        why=weights.why,
        repair=weights.repair,
        intent=run.intent_at("weights without effect", "", weights.names[0]),
    )
