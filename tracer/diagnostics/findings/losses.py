"""Rules on losses: labels that are shifted twice or not at all, and what is no logit where logits are expected."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from tracer.capture.calls import Call, Ref
from tracer.diagnostics.findings.attention import is_causal
from tracer.diagnostics.findings.batches import BATCH
from tracer.diagnostics.findings.run_view import Evidence, live_calls, rule
from tracer.diagnostics.findings.second_runs import OUTPUT_TOLERANCE, relative_difference, run_with_other_tokens
from tracer.graph.dataflow import Graph
from tracer.graph.index_maps import IndexMap

if TYPE_CHECKING:
    from tracer.diagnostics.findings.run_view import RunView


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


PROBABILITIES = (
    "is given probabilities: in this run, each row adds up to 1, and its numbers lie between {low:.3g} and {high:.3g}."
)
LIKELIHOODS = (
    "is given log-probabilities: in this run, the exponentials of each row add up to 1. The second softmax changes none"
    " of them, so that the loss is right, and one of the two is idle."
)


@rule(
    "softmax twice",
    lambda run: (loss for loss in losses(run) if loss.op.name == "cross_entropy_loss"),
    "Cross-entropy takes logits and applies a softmax itself, and {what}",
    "Give it the logits: leave the softmax out of forward, or take `nll_loss` of a `log_softmax`.",
    lesson="loss",
    runs_again=True,
)
def find_probabilities(run: RunView, loss: Call) -> Evidence | None:
    """Find probabilities, or their logarithms, in the place of logits, so that a softmax is taken twice."""
    logits = loss.arguments.get("self")
    values = run.value(logits.key) if isinstance(logits, Ref) else None
    if values is None or not values.is_floating_point() or values.dim() < 1 or values.numel() < MIN_LABELS:
        return None
    before = run.graph.producing_call(run.graph.root(logits.key))  # type: ignore[union-attr]
    axis, rows = min(values.dim() - 1, 1), values.double()
    for numbers, what in ((rows, PROBABILITIES), (rows.exp(), LIKELIHOODS)):
        sums = numbers.sum(dim=axis)
        if bool((numbers >= 0).all()) and bool(((sums - 1).abs() <= SUM_TOLERANCE**2).all()):
            text = what.format(low=float(rows.min()), high=float(rows.max()))
            return Evidence(*([before] if before is not None else []), loss, what=text)
    return None


SQUASHING = {
    "sigmoid": "lie between 0 and 1", "tanh": "lie between -1 and 1", "relu": "are never negative",
    "gelu": "are hardly ever negative", "silu": "are hardly ever negative",
}  # fmt: skip
"""Activations whose results are no logits, and what holds for these results."""
LOGIT_LOSSES = {"cross_entropy_loss": "a softmax", "binary_cross_entropy_with_logits": "a sigmoid"}
"""Losses that take logits, and what they apply to them."""


@rule(
    "activation on logits",
    lambda run: (call for call in live_calls(run) if call.op.name in LOGIT_LOSSES),
    "This loss takes logits of either sign and any size, and applies {own} itself. It is given the results of {name},"
    " which {bounds}: the probabilities of this run lie between {low:.3g} and {high:.3g}.",
    "Give it the logits: leave `{name}` out before the loss, and apply it where probabilities are shown.",
    lesson="loss",
    runs_again=True,
)
def find_squashed_logits(run: RunView, loss: Call) -> Evidence | None:
    """Find the result of an activation in the place of logits."""
    logits = loss.arguments.get("self")
    before = run.graph.producing_call(run.graph.root(logits.key)) if isinstance(logits, Ref) else None
    if not isinstance(logits, Ref) or before is None or before.op.name not in SQUASHING:
        return None
    name, values = before.op.name, run.value(logits.key)
    if values is None or not values.numel():
        return None
    softmax = loss.op.name == "cross_entropy_loss"
    shares = values.double().softmax(min(values.dim() - 1, 1)) if softmax else values.double().sigmoid()
    return Evidence(
        before, loss, own=LOGIT_LOSSES[loss.op.name], name=name, bounds=SQUASHING[name], low=float(shares.min()),
        high=float(shares.max()),
    )  # fmt: skip
