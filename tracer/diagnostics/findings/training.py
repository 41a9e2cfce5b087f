"""Rules on training: the loss, the state of modules, and residual sums."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from tracer.capture.calls import Call, Ref
from tracer.capture.modes import Function
from tracer.capture.tensors import output_tensors, same_outputs
from tracer.diagnostics.findings.attention import is_causal
from tracer.diagnostics.findings.batches import BATCH
from tracer.diagnostics.findings.run_view import DRAWS, Evidence, live_calls, rule
from tracer.diagnostics.findings.second_runs import OUTPUT_TOLERANCE, relative_difference, run_with_other_tokens
from tracer.graph.dataflow import Graph
from tracer.graph.index_maps import IndexMap
from tracer.ops import ATTENTION, LINEAR, NORMS
from tracer.shapes.variation import other_weights
from tracer.utils.errors import reason

if TYPE_CHECKING:
    from tracer.diagnostics.findings.run_view import RunView


# Losses: labels that are shifted twice or not at all, and probabilities where logits are expected.

LOSSES = frozenset(("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d"))
SHIFTS = (-1, 0, 1, 2)
HOW = {
    -1: "the token of `{}` before it: labels are shifted the wrong way",
    0: "their own token of `{}`: labels are not shifted, and to predict them is to copy the input",
    2: "the token of `{}` after the next: labels are shifted twice",
}
SUM_TOLERANCE = 0.01
"""How far the probabilities of a row may be from 1 in all."""
MIN_LABELS = 4
"""Labels from which on a shift can be told from chance."""


def losses(run: RunView) -> Iterator[Call]:
    """Yield the calls of losses of classes."""
    return (call for call in live_calls(run) if call.op.name in LOSSES)


@rule(
    "labels of another sample",
    losses,
    "In {strangers} of {rows} rows, the logits of one sample are compared with a label of another: the axes of samples"
    " and tokens lie in one order in the logits, and in another in the labels.",
    "Lay both out alike before they are flattened: `[B, T, V]` and `[B, T]`, or `[T, B, V]` and `[T, B]`.",
    lesson="loss",
)
def find_strangers(run: RunView, loss: Call) -> Evidence | None:
    """Find logits of one sample that are compared with a label of another, since their axes are in another order."""
    logits, target = loss.arguments.get("self"), loss.arguments.get("target")
    if not isinstance(logits, Ref) or not isinstance(target, Ref):
        return None
    rows, labels = logit_rows(run, logits), _label_places(run, target)
    if rows is None or labels is None or rows.places.shape != labels.shape:
        return None
    strangers = int((rows.places[:, 0] != labels[:, 0]).sum())
    return Evidence(loss, strangers=strangers, rows=len(labels)) if strangers else None


@rule(
    "labels shifted",
    lambda run: losses(run) if any(losses(run)) and is_causal(run) else (),
    "The logits at each position are compared with {how}. So it is with {count} of {labels} labels of this run.",
    "Compare each position with the next token, once: `cross_entropy(logits[:, :-1].flatten(0, 1), ids[:,"
    " 1:].flatten())`. Models of transformers shift `labels` themselves.",
    lesson="loss",
    runs_again=True,
)
def find_shift(run: RunView, loss: Call) -> Evidence | None:
    """Find a loss of a causal model in which a position is not compared with the token that follows it.

    Which label meets which position is read from the run: logits are followed back to the axis of tokens, and labels
    are compared with the ids that the model was given.
    """
    pairs = label_pairs(run, loss)
    if pairs is None or pairs.shift == 1 or (pairs.shift == 0 and _is_ahead(run, pairs)):
        return None
    return Evidence(loss, how=HOW[pairs.shift].format(pairs.ids), count=pairs.fitting, labels=pairs.labels)


def _is_ahead(run: RunView, pairs: LabelPairs) -> bool:
    """Return whether the logits at a position do not see its own token, as where a token was put in front: it is their
    label then."""
    first = run.inputs[pairs.ids].shape[1] // 2
    changed = run_with_other_tokens(run, pairs.ids, 1, first)
    logits = [] if changed is None else [each.store.get(pairs.logits) for each in (run.values, changed)]
    if changed is None or not run.has_same_ops(changed) or any(each is None for each in logits):
        return False
    one, another = (each.narrow(pairs.axis, 0, first + 1) for each in logits if each is not None)
    return relative_difference(one, another) <= OUTPUT_TOLERANCE


class LabelPairs(NamedTuple):
    """Labels of a loss beside the ids that the model was given: how many positions labels are ahead of the logits that
    they are compared with, how many of them fit, of how many, the name of the ids, the key of the logits `[B, T, V]`,
    or `[T, B, V]`, before they are reshaped, and their axis of positions."""

    shift: int
    fitting: int
    labels: int
    ids: str
    logits: str
    axis: int


def label_pairs(run: RunView, call: Call) -> LabelPairs | None:
    """Return which label of the ids meets which position of the logits; None where no shift fits alone."""
    logits, target = call.arguments.get("self"), call.arguments.get("target")
    if not isinstance(logits, Ref) or not isinstance(target, Ref):
        return None
    rows, labels = logit_rows(run, logits), run.value(target.key)
    if rows is None or labels is None or labels.is_floating_point():
        return None
    labels = labels.reshape(-1).cpu()
    ignored, places = call.arguments.get("ignore_index", -100), rows.places
    for name, ids in run.inputs.items():
        if f"input {name}" not in _ids(run.graph) or ids.dim() != 2 or len(places) != len(labels):
            continue
        ids = ids.cpu()
        samples, positions = (torch.from_numpy(axis) for axis in places.T)
        if int(samples.max()) >= ids.shape[0] or int(positions.max()) >= ids.shape[1]:
            continue
        fits = {}
        for shift in SHIFTS:
            inside = (positions + shift >= 0) & (positions + shift < ids.shape[1]) & (labels != ignored) & (labels >= 0)
            there = ids[samples[inside], positions[inside] + shift]
            fits[shift] = int((there == labels[inside]).sum()), int(inside.sum())
        whole = [shift for shift, (same, of) in fits.items() if of >= MIN_LABELS and same == of]
        if len(whole) == 1:
            return LabelPairs(whole[0], *fits[whole[0]], name, rows.key, rows.axis)
    return None


def _ids(graph: Graph) -> set[str]:
    """Return the keys of the inputs that index tables of embeddings."""
    return {graph.root(call.arguments["indices"].key) for call in graph.calls if call.op.name == "embedding"}


class LogitRows(NamedTuple):
    """Rows of logits: the key of `[B, T, V]`, or `[T, B, V]`, the sample and the position of each row of it, `[rows,
    2]`, and the axis of positions."""

    key: str
    places: np.ndarray
    axis: int


def logit_rows(run: RunView, logits: Ref) -> LogitRows | None:
    """Return the rows of logits; None where these are not a reshaped tensor `[B, T, V]` or `[T, B, V]`."""
    graph, key, chain = run.graph, logits.key, []
    while True:
        shape = graph.shape(key)
        index = graph.producer.get(key)
        if index is None or graph.kind[index] not in ("layout", "same"):
            call = graph.producing_call(key)
            if call is None or call.op.name not in ("log_softmax", "_log_softmax"):
                break
            key = next(iter(call.arguments.values())).key
            continue
        if graph.kind[index] == "layout":
            chain.append((graph.calls[index], 0))
        key = graph.layout_source(key)
    if len(shape) != 3 or not prod(shape):
        return None
    places = run.maps.of(shape, chain[::-1]) if chain else IndexMap(shape)
    cells = places.table()
    rows = np.moveaxis(cells, 1, -1).reshape(-1, cells.shape[1])[:, 0]
    *axes, letters = np.unravel_index(rows, shape)
    samples = _sample_axis(run, key, shape)
    places_of_rows = np.stack([axes[samples], axes[1 - samples]], axis=1)
    return LogitRows(key, places_of_rows, 1 - samples) if bool((letters == 0).all()) else None


def _sample_axis(run: RunView, key: str, shape: tuple[int, ...]) -> int:
    """Return which of the first two axes of a value has the samples: by its symbols, or as many as the ids have."""
    record = run.record(key)
    if record is not None and record.symbolic and BATCH in record.symbolic[:2]:
        return record.symbolic.index(BATCH)
    counts = {int(run.inputs[name].shape[0]) for name in run.inputs if f"input {name}" in _ids(run.graph)}
    return int(len(counts) == 1 and shape[0] not in counts and shape[1] in counts)


def _label_places(run: RunView, target: Ref) -> np.ndarray | None:
    """Return the sample and the position of each label, `[rows, 2]`; None where labels are not a reshaped input `[B,
    T]` or `[T, B]`."""
    root, places = run.places(target.key)
    shape = run.graph.shape(root)
    if not root.startswith("input ") or len(shape) != 2 or not prod(shape):
        return None
    axes, samples = np.unravel_index(places.table().reshape(-1), shape), _sample_axis(run, root, shape)
    return np.stack([axes[samples], axes[1 - samples]], axis=1)


@rule(
    "log-softmax missing",
    lambda run: (loss for loss in losses(run) if loss.op.name != "cross_entropy_loss"),
    "The negative log-likelihood takes log-probabilities. The exponentials of what it is given add up to between"
    " {low:.3g} and {high:.3g} instead of 1.",
    "Take `F.log_softmax(logits, dim=1)` first, or `F.cross_entropy` of the logits.",
    lesson="loss",
    runs_again=True,
)
def find_raw_likelihoods(run: RunView, loss: Call) -> Evidence | None:
    """Find log-probabilities whose exponentials do not add up to 1."""
    logits = loss.arguments.get("self")
    values = run.value(logits.key) if isinstance(logits, Ref) else None
    if values is None or values.dim() < 1 or not values.is_floating_point():
        return None
    sums = values.double().exp().sum(dim=1 if values.dim() > 1 else 0)
    if bool(((sums - 1).abs() <= SUM_TOLERANCE).all()):
        return None
    return Evidence(loss, low=sums.min(), high=sums.max())


@rule(
    "softmax twice",
    lambda run: (loss for loss in losses(run) if loss.op.name == "cross_entropy_loss"),
    "Cross-entropy takes logits and applies a softmax itself, and is given the result of a softmax.{measured}",
    "Give it the logits: leave the softmax out of forward, or take `nll_loss` of a `log_softmax`.",
    lesson="loss",
)
def find_probabilities(run: RunView, loss: Call) -> Evidence | None:
    """Find probabilities in the place of logits, so that a softmax is taken twice."""
    logits = loss.arguments.get("self")
    before = run.graph.producing_call(run.graph.root(logits.key)) if isinstance(logits, Ref) else None
    if before is None or "softmax" not in before.op.traits:
        return None
    measured = ""
    if run.repeatable and (values := run.value(logits.key)) is not None:  # type: ignore[union-attr]
        measured = f" In this run, what it is given lies between {values.min():.3g} and {values.max():.3g}."
    return Evidence(before, loss, measured=measured)


# Findings on a module's state: dropout that is still on, and parameters that nothing depends on.

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
        for path in _groups(idle, list(tensors)):
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
    readers = sorted({op.index for op in run.trace.ops if not set(names).isdisjoint(op.parameters)})
    at = readers[0] if readers else None
    intent = run.intent_at("parameter unused", "" if at is None else run.step(at), path)
    how = "is read, but what was computed from it reaches no output" if readers else "is read by no operation"
    return Evidence(*readers, at=at, intent=intent, path=path, count=size, how=how)


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


# Residual sums that add another stream than the one that the branch read.

FARTHEST = 120
"""Calls that a branch of a block may have."""


class Residual(NamedTuple):
    """A sum of a stream and the result of a branch that read it: the call, the key of the stream that is added, that of
    the stream that the branch reads, and whether each is the result of a norm."""

    call: int
    skip: str
    read: str
    normed: bool
    """Whether the branch begins with a norm of the stream that it reads."""
    attends: bool
    """Whether the branch contains an attention."""


class ResidualSum(NamedTuple):
    """A residual sum, the one whose result its branch reads, None for none, the one before the norm whose result it
    adds, None for none, and its norm."""

    residual: Residual
    earlier: Residual | None
    normed: Residual | None


NORMED = (
    "This sum adds the result of a norm, and the sum before it adds the stream itself: from here on, the stream goes on"
    " without what was there before the norm."
)
SKIPPED = (
    "The branch reads the sum of the line before, and what is added to it is the stream from before that sum, which no"
    " other call reads: what attention added is in no residual sum."
)


def residual_sums(run: RunView) -> Iterator[ResidualSum]:
    """Yield the residual sums of a run, with those that they come from."""
    graph = run.graph
    sums = residuals(run)
    results = {graph.calls[residual.call].outputs[0].key: residual for residual in sums}
    for residual in sums:
        norm = graph.producing_call(graph.root(residual.skip))
        before = ""
        if norm is not None and "norm" in norm.op.traits:
            before = graph.root(next(iter(norm.arguments.values())).key)
        alone = before in results and len(graph.live_users[before]) <= 1
        yield ResidualSum(residual, results.get(residual.read), results[before] if alone else None)


@rule(
    "residual skip",
    residual_sums,
    "{what}",
    "{repair}",
)
def find_skip(run: RunView, sums: ResidualSum) -> Evidence | None:
    """Find a residual sum that skips a residual sum, or that adds the result of a norm where the one before adds the
    stream itself.

    Source: He et al. 2016, equation 1; Xiong et al. 2020, figure 1.
    """
    graph, (residual, earlier, normed) = run.graph, sums
    call = graph.calls[residual.call]
    if residual.skip != residual.read:
        if earlier is None or not earlier.attends or residual.skip != earlier.skip:
            return None
        if any(user >= residual.call for user in graph.live_users[residual.read]):
            return None
        repair = "Add the stream that the branch reads: `x = x + attention(norm1(x))`, then `x = x + mlp(norm2(x))`."
        return Evidence(call, what=SKIPPED, repair=repair)
    if residual.normed or normed is None or not normed.normed or normed.skip != normed.read:
        return None
    if graph.calls[normed.call].module != call.module:
        return None  # the norm at the end of a stack
    return Evidence(call, what=NORMED, repair="Norm inside of the branch alone: `x = x + mlp(norm2(x))`.")


def residuals(run: RunView) -> list[Residual]:
    """Return the sums of a run in which one operand was computed from the other, or from the same stream."""
    graph, attentions = run.graph, {site.result for site in run.sites}
    sums = []
    for index in graph.computing_calls():
        call = graph.calls[index]
        operands = graph.data(index)
        if call.op.name != "add" or len(operands) != 2 or operands[0].shape != operands[1].shape:
            continue
        if len(operands[0].shape) < 3 or call.outputs[0].shape != operands[0].shape:
            continue
        first, second = (graph.root(ref.key) for ref in operands)
        for skip, branch in ((first, second), (second, first)):
            reading = _reads(graph, branch, skip, attentions)
            if reading is not None:
                sums.append(Residual(index, skip, *reading))
                break
    return sums


def _reads(graph: Graph, branch: str, skip: str, attentions: set[str]) -> tuple[str, bool, bool] | None:
    """Return the stream that a branch reads, whether it begins with its norm, and whether it attends; None if the
    branch was not computed from the stream that is added."""
    shape, waiting, visited, attends = graph.shape(skip), [branch], {branch}, False
    read, normed = None, False
    while waiting and len(visited) < FARTHEST:
        key = waiting.pop(0)
        attends = attends or key in attentions
        index = graph.producer.get(key)
        if index is None:
            continue
        name = graph.calls[index].op.name
        if key != branch and (key == skip or (name == "add" and _is_sum(graph, index, shape))):
            read = read or key
            continue
        if name in NORMS and key != branch and read is None:
            before = graph.root(next(iter(graph.calls[index].arguments.values())).key)
            if key == skip:
                read = key
                continue
            if graph.shape(before) == shape:
                read, normed = before, True
                continue
        for ref in graph.inputs[index]:
            root = graph.root(ref.key)
            if root not in visited and graph.depends[root] == "x":
                visited.add(root)
                waiting.append(root)
    if read is None:
        return (skip, False, attends) if skip in visited else None
    return (read, normed, attends) if read == skip or _comes_from(graph, read, skip) else None


def _is_sum(graph: Graph, index: int, shape: tuple[int, ...]) -> bool:
    operands = graph.data(index)
    return len(operands) == 2 and all(ref.shape == shape for ref in operands)


def _comes_from(graph: Graph, key: str, operand: str) -> bool:
    """Return whether a sum has another stream as an operand."""
    index = graph.producer.get(key)
    return index is not None and operand in {graph.root(ref.key) for ref in graph.inputs[index]}
