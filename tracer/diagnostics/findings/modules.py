"""Rules on modules and parameters: dropout that is still on, layers made in forward, and what nothing reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from tracer.capture.calls import Call, Ref
from tracer.capture.modes import Function
from tracer.capture.tensors import output_tensors, same_outputs
from tracer.diagnostics.findings.run_view import DRAWS, Evidence, live_calls, rule
from tracer.ops import ATTENTION, LINEAR
from tracer.shapes.variation import other_weights
from tracer.utils.errors import reason

if TYPE_CHECKING:
    from tracer.diagnostics.findings.run_view import RunView


DROPOUTS = frozenset(("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "native_dropout"))


class Dropout(NamedTuple):
    """A call that drops numbers, and how far two runs of the module differ."""

    call: Call
    share: float


def active_dropouts(run: RunView) -> Iterator[Dropout]:
    """Yield the dropouts that are active although the module is in evaluation mode."""
    if run.trains:
        return
    active = [
        call
        for call in run.graph.calls
        if (call.op.name in DROPOUTS and call.arguments.get("p") and call.arguments.get("train"))
        or (call.name == ATTENTION and call.arguments.get("dropout_p"))
    ]
    share = _spread(run) if active else 0.0
    yield from (Dropout(call, share) for call in active)


@rule(
    "dropout in eval",
    active_dropouts,
    "Dropout of {probability:g} is active although the model is in evaluation mode{where}: two runs of this input"
    " differ by {share:.2g} of the largest value.",
    "{repair}",
    runs_again=True,
    compares=True,
)
def find_dropout(run: RunView, dropout: Dropout) -> Evidence:
    """Find where an active dropout is switched on."""
    assert run.replay is not None
    call, share = dropout
    modes = {path: module.training for path, module in run.replay.module.named_modules(remove_duplicate=False)}
    return Evidence(
        call,
        probability=call.arguments.get("p") or call.arguments.get("dropout_p"),
        where=f", since `{call.module}` is still in training mode" if modes.get(call.module) else "",
        share=share,
        repair="Pass `dropout_p=self.dropout if self.training else 0.0`."
        if call.name == ATTENTION
        else "Pass `training=self.training` to `F.dropout`, and hold modules in `nn.ModuleList`, where `.eval()`"
        " reaches them.",
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


class NewLayer(NamedTuple):
    """A layer whose weights the forward drew, and how far two runs of the same input differ."""

    call: Call
    draw: Call
    share: float


def new_layers(run: RunView) -> Iterator[NewLayer]:
    """Yield the layers whose weights are drawn in the forward, where two runs differ by that."""
    graph, layers = run.graph, []
    for call in live_calls(run):
        weight = call.arguments.get("weight")
        if not call.op.traits & {"linear", "convolution", "lookup"} or not isinstance(weight, Ref):
            continue
        if graph.depends[weight.key] != "c" or graph.depends[call.outputs[0].key] != "x":
            continue
        above = filter(None, map(graph.producing_call, graph.ancestors([weight.key])))
        draw = next((before for before in above if before.op.name.startswith(DRAWS)), None)
        if draw is not None:
            layers.append((call, draw))
    share = _spread(run) if layers else 0.0
    if share:
        yield from (NewLayer(call, draw, share) for call, draw in layers)


@rule(
    "layer made in forward",
    new_layers,
    "The weights {shape} of this layer are drawn in each forward: they are no parameters, so that nothing trains them,"
    " and two runs of this input differ by {share:.2g} of the largest value.",
    "Make the layer once, in `__init__`: `self.layer = nn.Linear(…)`, and call it in forward.",
    runs_again=True,
)
def find_new_layer(run: RunView, layer: NewLayer) -> Evidence:
    """Find a layer that is made in forward, with new random weights each time."""
    weight = layer.call.arguments["weight"]
    return Evidence(layer.draw, layer.call, shape=list(weight.shape), share=layer.share)


class IdleParameters(NamedTuple):
    """A parameter, or a module with nothing but such ones, that no output depends on: its path, the names of its
    parameters, and how many numbers they have."""

    path: str
    names: list[str]
    size: int


def idle_parameters(run: RunView) -> Iterator[IdleParameters]:
    """Yield the parameters without which a second run gives the same output: it has other values in them."""
    graph, replay = run.graph, run.replay
    if replay is None or (isinstance(replay.module, Function) and not replay.module.owned):
        return
    live = {*graph.ancestors(ref.key for ref in graph.outputs)}
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
    if same_outputs(again.output, run.values.output):
        for path in outermost_groups(idle, list(tensors)):
            names = [name for name in idle if name == path or name.startswith(f"{path}.")]
            yield IdleParameters(path, names, sum(tensors[name].numel() for name in names))


@rule(
    "parameter unused",
    idle_parameters,
    "No output depends on `{path}` ({count:,} numbers): it {how}, and with other values in it, a second run gives the"
    " same output, bit by bit.",
    "Use `{path}` in forward, or remove it: it gets no gradient.",
    runs_again=True,
)
def find_readers(run: RunView, parameters: IdleParameters) -> Evidence:
    """Find the ops that read parameters that no output depends on."""
    path, names, size = parameters
    readers = run.readers(names)
    at = readers[0] if readers else None
    intent = run.intent_at("parameter unused", "" if at is None else run.step(at), path)
    how = "is read, but what was computed from it reaches no output" if readers else "is read by no operation"
    return Evidence(*readers, at=at, intent=intent, path=path, count=size, how=how)


def outermost_groups(idle: list[str], every: list[str]) -> list[str]:
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


class IdlePart(NamedTuple):
    """Rows of the weight of a packed projection that no output depends on, one of as many equal parts: the call, the
    name of the weight, the first row, and the row after the last."""

    call: Call
    name: str
    first: int
    stop: int
    parts: int


def idle_parts(run: RunView) -> Iterator[IdlePart]:
    """Yield the parts of projections for attention without which a second run gives the same output: it has other
    values in these rows."""
    graph = run.graph
    for name, calls in _packed_projections(run).items():
        width = calls[0].outputs[0].shape[-1]
        read = np.zeros(width, bool)
        for call in calls:
            read |= _features_read(run, call.outputs[0].key, width)
        unread = np.flatnonzero(~read)
        size = len(unread)
        if not size or width % size or size == width or unread[0] % size or unread[-1] - unread[0] != size - 1:
            continue
        part = IdlePart(calls[-1], name, int(unread[0]), int(unread[-1]) + 1, width // size)
        if graph.outputs and _same_without(run, part):
            yield part


def _packed_projections(run: RunView) -> dict[str, list[Call]]:
    """Return the linear maps whose results queries, keys and values of attentions are parts of, by their weights."""
    graph, packed = run.graph, dict[str, list[Call]]()
    near = {
        key
        for site in run.sites
        for key in graph.ancestors([site.q, site.k, site.v], lambda key: not graph.call_of(key).op.is_heavy)
    }
    for call in live_calls(run):
        weight = call.arguments.get("weight")
        if call.op.name not in LINEAR or not isinstance(weight, Ref) or call.outputs[0].key not in near:
            continue
        if weight.key.startswith("parameter "):
            packed.setdefault(weight.key.removeprefix("parameter "), []).append(call)
    return packed


def _features_read(run: RunView, key: str, width: int) -> np.ndarray:
    """Return which features of a projection some computation reads, bool `[width]`, through layouts."""
    graph, read, waiting = run.graph, np.zeros(width, bool), [key]
    while waiting:
        value = waiting.pop()
        moved = [
            index for index in graph.users.get(value, ()) if graph.source(graph.calls[index].outputs[0].key) == value
        ]
        if value in graph.returned or len(moved) < len(graph.live_users[value]):
            places = run.places(value)[1].table() if value != key else np.arange(width)
            read[np.unique(places % width)] = True
        waiting += [ref.key for index in moved for ref in graph.calls[index].outputs]
    return read


def _same_without(run: RunView, part: IdlePart) -> bool:
    """Return whether a run with other numbers in these rows of a weight gives the same output."""
    assert run.replay is not None
    weight = dict(run.replay.module.named_parameters(remove_duplicate=False)).get(part.name)
    if weight is None:
        return False
    other = weight.detach().clone()
    other[part.first : part.stop] = other[part.first : part.stop].flip(-1) + 1
    try:
        again = run.run({id(weight): torch.nn.Parameter(other, requires_grad=False)}, whole=True)
    except Exception as error:  # of a stranger's model, with other numbers
        run.problems.append(f"It could not be run with other parameters ({reason(error)}).")
        return False
    return same_outputs(again.output, run.values.output)


@rule(
    "projection part unused",
    idle_parts,
    "This projection has {parts} parts of {size} features for attention, and no output depends on rows {first} to"
    " {last} of `{name}`: with other values in them, a second run gives the same output, bit by bit.",
    "Read each part once: `q, k, v = qkv(x).chunk(3, dim=-1)`.",
    runs_again=True,
)
def find_idle_part(run: RunView, part: IdlePart) -> Evidence:
    """Find a part of a packed projection of queries, keys and values that nothing reads."""
    size = part.stop - part.first
    return Evidence(part.call, parts=part.parts, size=size, first=part.first, last=part.stop - 1, name=part.name)
