"""Changes of scores and masks, compared with plain PyTorch: the softmax of one attention receives other scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

import numpy as np
import torch
from torch import Tensor

from tracer.record import AttentionRecord
from tracer.utils.internals.torch_internals import DispatchMode
from tracer.verify.checks import reference_run
from tracer.verify.checks.reference_run import PlainRun, Transparent
from tracer.verify.checks.run.changed_values import compare, forward

SCALINGS = {"div": -1, "mul": 1}
"""Calls by which scores are multiplied by one number, with the power of that."""

Edit = Callable[[Tensor], Tensor]


def problems(run: PlainRun) -> Iterator[str]:
    """Yield a sentence for each change of scores whose output differs from that of scores edited by hand."""
    for record in run.trace.attentions:
        number, lines = _softmax(run, record), _lines(run, record)
        if number is None or "scores" not in lines:
            continue
        try:
            run.model.with_changes({lines["scores"]: "zero"}, run.inputs)
        except ValueError:  # its scores are not computed by themselves
            continue
        for change, edit in _kinds(run, record).items():
            expected = _with_scores(run, number, edit)
            try:
                yield from compare(run, {lines["scores"]: change}, expected)
            except ValueError as error:
                yield f"{change} of {lines['scores']!r} is refused: {error}"
        return


def _lines(run: PlainRun, record: AttentionRecord) -> dict[str, str]:
    """Return the ids of the scores and weights of an attention."""
    inside = [step.id for step in run.trace.steps if record.op in step.ops or step.inside == record.op]
    around = next((id.removesuffix("weights") for id in inside if id.endswith(".weights")), None)
    known = {step.id for step in run.trace.steps}
    return {name: f"{around}{name}" for name in ("scores", "weights") if around and f"{around}{name}" in known}


def _softmax(run: PlainRun, record: AttentionRecord) -> int | None:
    """Return the number of the softmax of an attention among all of the run; None if it is not found."""
    if record.problem or record.over != "tokens":
        return None
    weights = run.trace.attention(record.layer, part=record.part or None).double().numpy()
    for number, softmax in enumerate(run.softmaxes):
        if softmax.shape == weights.shape and np.allclose(softmax, weights, rtol=0, atol=1e-4):
            return number
    return None


def _kinds(run: PlainRun, record: AttentionRecord) -> dict[str, Edit]:
    """Return the changes that fit the scores of an attention, and the effect of each, written out by hand."""
    queries, keys = torch.arange(record.queries)[:, None], torch.arange(record.keys)
    kinds: dict[str, Edit] = {
        "zero": lambda scores: torch.zeros_like(scores),
        "causal": lambda scores: scores.masked_fill(keys > queries, -torch.inf),
        "window(2)": lambda scores: scores.masked_fill((keys - queries).abs() > 1, -torch.inf),
    }
    if min(record.queries, record.keys) > 2:
        kinds["close(0;2)"] = lambda scores: scores.masked_fill((keys == 0) & (queries == 2), -torch.inf)
    named = [name for name, _ in record.chain]
    if not set(named) <= SCALINGS.keys() | {"causal"}:
        return kinds
    factor = prod(float(value[1]) ** SCALINGS[name] for name, value in record.chain if name in SCALINGS)
    if factor != 1:
        kinds["unscale"] = lambda scores: scores / factor
    query, key = run.trace.values.get(record.q), run.trace.values.get(record.k)
    if record.mask == "causal" and query is not None and key is not None and record.queries == record.keys > 2:
        heads = query.shape[-3] // key.shape[-3]
        bare = query @ key.repeat_interleave(heads, -3).mT * factor
        visible = (keys <= queries) | (keys < 2)
        kinds["bidirectional"] = lambda scores: bare
        kinds["prefix(2)"] = lambda scores: bare.masked_fill(~visible, -torch.inf)
        kinds["open(2;0)"] = lambda scores: torch.where((keys == 2) & (queries == 0), bare, scores)
    return kinds


def _with_scores(run: PlainRun, number: int, edit: Edit) -> list[Tensor]:
    """Return the outputs of a plain run in which one softmax takes other scores."""
    with Transparent(), _EditedScores(number, edit):
        return forward(run, run.model.net)


class _EditedScores(DispatchMode):
    """A mode that edits the scores of one softmax, counted as `OpObserver` counts them; fused attention is computed by
    its formula there."""

    def __init__(self, number: int, edit: Edit):
        super().__init__()
        self.left, self.edit = number, edit

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        fused = name.startswith("_scaled_dot_product") and not name.endswith("backward")
        if not fused and name not in ("_softmax", "_safe_softmax"):
            return func(*args, **kwargs)
        self.left -= 1
        if self.left != -1:
            return func(*args, **kwargs)
        if not fused:
            return func(self.edit(args[0]), *args[1:], **kwargs)
        mask, causal, scale = reference_run._options(func, args, kwargs)
        query, key, value = args[:3]
        key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        result = torch.softmax(self.edit(scores), -1) @ value
        return result, result.new_empty(0)
