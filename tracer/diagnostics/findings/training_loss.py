"""Losses: labels that are shifted twice or not at all, and probabilities where logits are expected."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch

from tracer.capture.composite_calls import Call, Ref
from tracer.diagnostics.findings.attention_masks import is_causal
from tracer.diagnostics.findings.rule import Finding, Rule
from tracer.graph.dataflow import Graph
from tracer.graph.index_maps import IndexMap, IndexMapCache
from tracer.ops import IDENTITIES, SOFTMAXES, base

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


def find_strangers(run: RunView) -> Iterator[Finding]:
    """Yield losses in which logits of one sample are compared with a label of another, since their axes are in another
    order."""
    graph = run.graph
    if graph is None:
        return
    for index, call in enumerate(graph.calls):
        logits, target = call.arguments.get("self"), call.arguments.get("target")
        if base(call.name) not in LOSSES or not graph.is_live(index):
            continue
        if not isinstance(logits, Ref) or not isinstance(target, Ref):
            continue
        rows, labels = _places(graph, logits), _label_places(graph, target)
        if rows is None or labels is None or rows.shape != labels.shape:
            continue
        strangers = int((rows[:, 0] != labels[:, 0]).sum())
        if not strangers:
            continue
        yield Finding(
            "labels of another sample",
            run.step(call.last - 1),
            tuple(range(call.first, call.last)),
            f"In {strangers} of {len(rows)} rows, the logits of one sample are compared with a label of another: the"
            " axes of samples and tokens lie in one order in the logits, and in another in the labels.",
            "Lay both out alike before they are flattened: `[B, T, V]` and `[B, T]`, or `[T, B, V]` and `[T, B]`.",
        )


def find_shifts(run: RunView) -> Iterator[Finding]:
    """Yield losses of causal models in which a position is not compared with the token that follows it.

    Which label meets which position is read from the run: logits are followed back to the axis of tokens, and labels
    are compared with the ids that the model was given.
    """
    graph = run.graph
    if graph is None or not any(base(call.name) in LOSSES for call in graph.calls) or not is_causal(run):
        return
    for index, call in enumerate(graph.calls):
        if base(call.name) not in LOSSES or not graph.is_live(index):
            continue
        pairs = _pairs(run, call)
        if pairs is None:
            continue
        shift, count, of, ids = pairs
        if shift == 1:
            continue
        yield Finding(
            "labels shifted",
            run.step(call.last - 1),
            tuple(range(call.first, call.last)),
            f"The logits at each position are compared with {HOW[shift].format(ids)}. So it is with {count} of {of}"
            " labels of this run.",
            "Compare each position with the next token, once: `cross_entropy(logits[:, :-1].flatten(0, 1),"
            " ids[:, 1:].flatten())`. Models of transformers shift `labels` themselves.",
        )


def _pairs(run: RunView, call: Call) -> tuple[int, int, int, str] | None:
    """Return by how many positions labels are ahead of the logits that they are compared with, how many of them fit, of
    how many, and the name of the ids; None where no shift fits alone."""
    graph = run.graph
    assert graph is not None
    logits, target = call.arguments.get("self"), call.arguments.get("target")
    if not isinstance(logits, Ref) or not isinstance(target, Ref):
        return None
    places, labels = _places(graph, logits), run.value(target.key)
    if places is None or labels is None or labels.is_floating_point():
        return None
    labels = labels.reshape(-1).cpu()
    ignored = call.arguments.get("ignore_index", -100)
    for name, ids in run.inputs.items():
        if f"input {name}" not in _ids(graph) or ids.dim() != 2 or len(places) != len(labels):
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
            return whole[0], *fits[whole[0]], name
    return None


def _ids(graph: Graph) -> set[str]:
    """Return the keys of the inputs that index tables of embeddings."""
    return {graph.root(call.arguments["indices"].key) for call in graph.calls if base(call.name) == "embedding"}


def _places(graph: Graph, logits: Ref) -> np.ndarray | None:
    """Return the sample and the position of each row of logits, `[rows, 2]`; None where these are not a reshaped tensor
    `[B, T, V]`."""
    key, chain = logits.key, []
    while True:
        shape = graph.shape(key)
        index = graph.producer.get(key)
        if index is None or graph.kind[index] not in ("layout", "same"):
            name = base(graph.calls[index].name) if index is not None else ""
            if name in ("log_softmax", "_log_softmax"):
                before = next(iter(graph.calls[index].arguments.values()))  # type: ignore[index]
                key = before.key
                continue
            break
        if graph.kind[index] == "layout":
            chain.append((graph.calls[index], 0))
        key = graph.layout_source(key)
    if len(shape) != 3 or not prod(shape):
        return None
    places = IndexMapCache().of(shape, chain[::-1]) if chain else IndexMap(shape)
    cells = places.table()
    rows = np.moveaxis(cells, 1, -1).reshape(-1, cells.shape[1])[:, 0]
    samples, positions, letters = np.unravel_index(rows, shape)
    return np.stack([samples, positions], axis=1) if bool((letters == 0).all()) else None


def _label_places(graph: Graph, target: Ref) -> np.ndarray | None:
    """Return the sample and the position of each label, `[rows, 2]`; None where labels are not a reshaped input `[B,
    T]`."""
    root = graph.root(target.key)
    shape = graph.shape(root)
    if not root.startswith("input ") or len(shape) != 2 or not prod(shape):
        return None
    calls = [graph.calls[graph.producer[key]] for key in graph.chain(target.key, root)]
    chain = [(call, 0) for call in calls if base(call.name) not in IDENTITIES]
    places = IndexMapCache().of(shape, chain) if chain else IndexMap(shape)
    return np.stack(np.unravel_index(places.table().reshape(-1), shape), axis=1)


def find_raw_likelihoods(run: RunView) -> Iterator[Finding]:
    """Yield losses that expect log-probabilities, but receive numbers whose exponentials do not add up to 1."""
    graph = run.graph
    if graph is None:
        return
    for index, call in enumerate(graph.calls):
        logits = call.arguments.get("self")
        if base(call.name) not in LOSSES - {"cross_entropy_loss"} or not graph.is_live(index):
            continue
        values = run.value(logits.key) if isinstance(logits, Ref) else None
        if values is None or values.dim() < 1 or not values.is_floating_point():
            continue
        sums = values.double().exp().sum(dim=1 if values.dim() > 1 else 0)
        if bool(((sums - 1).abs() <= SUM_TOLERANCE).all()):
            continue
        yield Finding(
            "log-softmax missing",
            run.step(call.last - 1),
            tuple(range(call.first, call.last)),
            "The negative log-likelihood takes log-probabilities. The exponentials of what it is given add up to"
            f" between {sums.min():.3g} and {sums.max():.3g} instead of 1.",
            "Take `F.log_softmax(logits, dim=1)` first, or `F.cross_entropy` of the logits.",
        )


def find_probabilities(run: RunView) -> Iterator[Finding]:
    """Yield losses that expect logits, but receive probabilities, so that a softmax is taken twice."""
    graph = run.graph
    if graph is None:
        return
    for index, call in enumerate(graph.calls):
        if base(call.name) != "cross_entropy_loss" or not graph.is_live(index):
            continue
        logits = call.arguments.get("self")
        before = graph.producing_call(graph.root(logits.key)) if isinstance(logits, Ref) else None
        if before is None or base(before.name) not in SOFTMAXES:
            continue
        values = run.value(logits.key) if run.repeatable else None  # type: ignore[union-attr]
        measured = (
            ""
            if values is None
            else f" In this run, what it is given lies between {values.min():.3g} and {values.max():.3g}."
        )
        yield Finding(
            "softmax twice",
            run.step(call.last - 1),
            (*range(before.first, before.last), *range(call.first, call.last)),
            f"Cross-entropy takes logits and applies a softmax itself, and is given the result of a softmax.{measured}",
            "Give it the logits: leave the softmax out of forward, or take `nll_loss` of a `log_softmax`.",
        )


RULES = (
    Rule("labels shifted", find_shifts, "loss", runs_again=True),
    Rule("labels of another sample", find_strangers, "loss"),
    Rule("log-softmax missing", find_raw_likelihoods, "loss", runs_again=True),
    Rule("softmax twice", find_probabilities, "loss"),
)
