"""Effects of heads: the answer with each head switched off, and what each head attends to.

Source: heads switched off one at a time, Michel et al. 2019; attention distance, Dosovitskiy et al. 2021, figure 7."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tracer.attention import layers, parts, places, segments, weights
from tracer.changes import Change, TargetLine
from tracer.changes.of_inputs import Hide
from tracer.changes.options import attention_lines
from tracer.record import Trace
from tracer.utils.errors import quote
from tracer.utils.job_queue import doing, tell

if TYPE_CHECKING:
    from tracer.inputs.model_inputs import Inputs
    from tracer.spec.spec import Model


# Probabilities of an answer's choices, from the output of a batch, for models of every kind.

SINGLE_ANSWER_KINDS = {"classes", "sentences", "next", "caption"}
"""Kinds of results with one answer for each input; a text's is the next token."""
POSITION_ANSWER_KINDS = {"tokens", "labels"}
"""Kinds of results with an answer at each position."""


def choice_probabilities(kind: str, output: Any) -> Tensor | None:
    """Return the probabilities of all choices, `[B, choices]` or `[B, positions, choices]`, in float64.

    `kind` is that of the model's result, `output` what forward returned: a tensor, or a mapping with `logits`. None for
    a kind without probabilities, such as a reconstruction.
    """
    scores = output.get("logits") if isinstance(output, Mapping) else output
    if kind not in SINGLE_ANSWER_KINDS | POSITION_ANSWER_KINDS or not isinstance(scores, Tensor) or scores.dim() < 2:
        return None
    scores = scores.detach().double()
    if kind in SINGLE_ANSWER_KINDS:
        scores = scores[:, -1] if scores.dim() == 3 else scores
        return as_probabilities(scores) if scores.dim() == 2 else None
    return as_probabilities(scores.flatten(1, -2)) if scores.dim() > 2 else None


def as_probabilities(scores: Tensor) -> Tensor:
    """Return the softmax over the last axis, or the scores themselves where a model returns probabilities already."""
    if bool((scores >= 0).all()) and bool((scores.sum(dim=-1) - 1).abs().max() < 1e-4):
        return scores
    return scores.softmax(dim=-1)


def answer_probability(probabilities: Tensor, answer: Tensor) -> Tensor:
    """Return the probability of an answer in each row, `[B]`; the mean over positions where there are several.

    `answer` is the number of the choice, or one for each position.
    """
    index = answer.expand(probabilities.shape[:-1])[..., None]
    picked = probabilities.gather(-1, index)[..., 0]
    return picked.mean(dim=-1) if picked.dim() > 1 else picked


def floating_output(output: Any) -> Tensor:
    """Return the first floating-point tensor that forward returned, `[B, …]`, except a loss, which is one number for
    the batch. Raise ValueError where there is none."""
    values = (
        output.values() if isinstance(output, Mapping) else output if isinstance(output, (tuple, list)) else (output,)
    )
    for value in values:
        if isinstance(value, Tensor) and torch.is_floating_point(value) and value.dim():
            return value
    raise ValueError("the model returned no tensor of numbers, so there is no answer that a head could change")


# Attention of a word on the picture: the share of its row's attention on each patch.


def region(trace: Trace, place: int, layer: int, head: int | None = None) -> torch.Tensor:
    """Return the attention on every patch, `[rows, columns]`, of the row that predicts the word at `place` of the text,
    from 1.

    That row is the one of the token before it; `place` T, after the last word, gives the row that predicts the next.
    The mean over heads where `head` is None. ValueError for a run without picture or text, and for another place.
    """
    text = next((segment for segment in segments(trace) if segment.name == "text"), None)
    if trace.picture is None or text is None:
        raise ValueError(f"this run of {quote(trace.model)} has no picture and text in one sequence")
    if not 1 <= place <= text.stop - text.start:
        raise ValueError(f"place={place} is outside this run's text, expected 1 to {text.stop - text.start}")
    row = weights(trace, layer, head, text.start + place - 1)[0]
    row = row.mean(dim=0) if head is None else row
    patches = trace.picture.rows * trace.picture.columns
    patch_weights = row[trace.picture.first : trace.picture.first + patches]
    return patch_weights.reshape(trace.picture.rows, trace.picture.columns)


# Test whether an answer depends on the patches that were attended to: hide them, and others for comparison.
#
# Source: Samek et al. 2017, section III; the baselines are as many patches at random, and those in the centre.

SEEDS = 20
"""Random choices of patches."""


class HidingTest(NamedTuple):
    """Probability of an answer with no patch hidden, and with equally many hidden: the most attended, the most central,
    and several random choices."""

    answer: str
    plain: float
    attended: float
    central: float
    random: tuple[float, ...]


def rank_by_attention(trace: Trace) -> tuple[int, ...]:
    """Return all patches of a run on a photo, the most attended first.

    This is the attention in the last block, the mean over heads, of the token that the answer is read from, or of all.
    Raise ValueError for a run without attention over a photo.
    """
    tokens = places(trace)
    records = layers(trace) if trace.attentions else ()
    if not tokens or not records or records[-1].problem or records[-1].keys <= max(tokens):
        raise ValueError("this run has no attention over a photo")
    weights = trace.attention(len(records) - 1)[0].mean(0)
    cls = [segment.start for segment in segments(trace) if segment.name == "CLS"]
    row = weights[cls[0]] if cls else weights.mean(0)
    return tuple(tokens[token] for token in sorted(tokens, key=lambda token: -float(row[token])))


def nearest_to_centre(rows: int, columns: int) -> tuple[int, ...]:
    """Return all patches of a grid, those nearest to the centre first."""
    y, x = np.divmod(np.arange(rows * columns), columns)
    far = np.maximum(abs((y + 0.5) / rows - 0.5), abs((x + 0.5) / columns - 0.5))
    return tuple(np.argsort(far, kind="stable").tolist())


def hide_attended(model: Model, trace: Trace, count: int, fill: str = "mean", **user_input: Any) -> HidingTest:
    """Hide that many patches and return the effect on the answer of a run; `user_input` are its arguments.

    Raise ValueError for a run that has no classes, no photo in patches, or not as many patches.
    """
    if trace.result.get("kind") != "classes" or trace.picture is None:
        raise ValueError("patches are hidden from models that name the class of a photo")
    ranked, names = rank_by_attention(trace), list(trace.result["classes"])
    if not 0 < count < len(ranked):
        raise ValueError(f"{count} patches can't be hidden, expected 1 to {len(ranked) - 1}")
    shares = list(map(float, trace.result["probabilities"]))
    answer = names[int(np.argmax(shares))]
    central = nearest_to_centre(trace.picture.rows, trace.picture.columns)

    def probability(patches: tuple[int, ...]) -> float:
        changed = model.with_changes({"image": Hide(patches, fill)})
        inputs = changed.inputs(**user_input)
        with torch.no_grad():
            output = changed.net(*inputs, **inputs.named)
        result = changed.spec.result(changed, inputs.on(torch.device("cpu")), output)
        return dict(zip(result["classes"], map(float, result["probabilities"]), strict=True)).get(answer, 0.0)

    draws = (np.random.default_rng(seed).choice(len(ranked), count, replace=False) for seed in range(SEEDS))
    return HidingTest(
        answer,
        max(shares),
        probability(ranked[:count]),
        probability(central[:count]),
        tuple(probability(tuple(map(int, patches))) for patches in draws),
    )


ROWS = 32
"""The most runs of one batch: the run as it is, and heads switched off."""
BATCH_TOLERANCE = 1e-4
"""The largest difference of a run in a batch to the same run alone, as a share of the largest output."""


class Head(NamedTuple):
    """A head of a block, both counted from 0."""

    layer: int
    head: int


class AttentionSummary(NamedTuple):
    """Summary of what the heads of one block attend to, an array `[h]` each.

    `entropy` of the weights in nats, the mean over queries. `distance` is the mean distance from a query to what it
    attends to, in widths of a patch, or in tokens for a text; weights on other tokens are left out, and the rest is
    scaled to 1. `special` is the share of weight on tokens that come from no input, such as CLS and registers. NaN
    where a run has none of these, and for a head whose weights are all 0.
    """

    entropy: np.ndarray
    distance: np.ndarray
    special: np.ndarray


@dataclass(frozen=True)
class HeadEffects:
    """Effects of the heads of one tower in a run.

    The arrays are `[blocks, heads]`; NaN where a block has fewer heads. `layers` are the numbers of the blocks, from 0.
    `change` is what switching the head off does: with `points`, the answer's probability after it less that before, in
    percentage points; else the size of the output's change as a share of the output's. `flips` is True where another
    answer becomes the most probable. `probability` is that of the answer with all heads, None without `points`. The
    others are as in `AttentionSummary`.
    """

    layers: tuple[int, ...]
    change: np.ndarray
    flips: np.ndarray
    entropy: np.ndarray
    distance: np.ndarray
    special: np.ndarray
    points: bool
    probability: float | None


class HeadProbe(NamedTuple):
    """One input run with all heads, and with each head off.

    `outputs` has what forward returned, as numbers `[1 + heads, …]`: first with all heads, then with each of `heads`
    off. `probabilities` are those of the choices, as in `choice_probabilities`; `weights` are those of all heads, `[h,
    …, S_q, S_k]`, by layer.
    """

    heads: tuple[Head, ...]
    outputs: Tensor
    probabilities: Tensor | None
    attended: Mapping[int, AttentionSummary]
    weights: Mapping[int, Tensor]


class _NotOneRowEach(Exception):
    """Weights whose first axis is not the batch, but windows, for example."""


@dataclass
class _Switch:
    """Heads that are off now: for each row of the batch a head, or None. `weights` has those of the first row, by
    layer, where `observes` is True."""

    off: list[Head | None] = field(default_factory=lambda: [None])
    observes: bool = False
    weights: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _SwitchHeads(Change):
    """A mode that sets the weights of switched-off heads to 0 in their rows."""

    name: ClassVar[str] = "switch_heads"
    layer: int
    switch: _Switch = field(repr=False)

    def apply(self, line: TargetLine) -> Any:
        if (axis := line.head_axis) is None:
            raise ValueError(f"{quote(line.id)} has no axis of heads, so none can be switched off")
        return partial(_switch_heads, layer=self.layer, switch=self.switch, axis=axis)

    def __str__(self) -> str:
        return self.name


def _switch_heads(x: Tensor, layer: int, switch: _Switch, axis: int) -> Tensor:
    off, heads = switch.off, x.shape[axis]
    if switch.observes:
        first = x[:1] if len(off) > 1 else x
        switch.weights[layer] = first.detach().movedim(axis, 0)
    if not any(head is not None and head.layer == layer for head in off):
        return x
    head_mask = torch.ones(len(off), heads, dtype=x.dtype, device=x.device)
    for row, head in enumerate(off):
        if head is not None and head.layer == layer:
            head_mask[row, head.head] = 0
    shape = [1] * x.dim()
    shape[axis] = heads
    if len(off) > 1:
        if axis == 0 or x.shape[0] != len(off):
            raise _NotOneRowEach
        shape[0] = len(off)
    return x * head_mask.view(shape)


class HeadSites(NamedTuple):
    """Where the heads of one tower are switched off, and how its tokens lie: all that is needed of a run.

    `lines` are the ids of the weights' lines by layer, `heads` those that can be switched off, `kind` that of the
    model's answer.
    """

    lines: Mapping[int, str]
    heads: tuple[Head, ...]
    kind: str
    layout: _Layout


def head_sites(trace: Trace, part: str | None = None) -> HeadSites:
    """Return the sites of the heads of a tower, the first if `part` is None. ValueError for a tower without weights
    that can be changed."""
    part = parts(trace)[0] if part is None and parts(trace) else part
    records = layers(trace, part)
    weights = {record.layer: attention_lines(trace, record).get("weights") for record in records}
    ids = {layer: step.id for layer, step in weights.items() if step is not None}
    heads = tuple(
        Head(record.layer, head)
        for record in records
        if record.layer in ids and record.over == "tokens"
        for head in range(record.heads)
    )
    if not heads:
        raise ValueError(f"{quote(trace.model)} has no line of attention weights, so no head can be switched off")
    return HeadSites(ids, heads, str(trace.result.get("kind")), _Layout(trace, part))


class HeadSwitchboard:
    """A model whose heads can be switched off one at a time, in plain runs that are not traced.

    `sites` are those of a run of the model at the sizes of the inputs that come. A model with changes keeps them. It
    holds the state of a run, so each thread makes its own.
    """

    def __init__(self, model: Model, inputs: Inputs, sites: HeadSites):
        self.heads = sites.heads
        self._switch, self._rows = _Switch(), ROWS
        self._kind, self._lay = sites.kind, sites.layout
        changes: dict[str, Any] = {}
        for layer in dict.fromkeys(head.layer for head in self.heads):
            line = sites.lines[layer]
            own = [model.changes[line]] if line in model.changes else []
            changes[line] = [*own, _SwitchHeads(layer, self._switch)]
        self._net = model.with_changes(changes, inputs).net

    @torch.no_grad()
    def probe(self, inputs: Inputs) -> HeadProbe:
        """Run an input with all heads, then with each head off. Progress is reported in heads."""
        self._switch.weights, self._switch.off, self._switch.observes = {}, [None], True
        alone = self._net(*inputs, **inputs.named)
        self._switch.observes = False
        outputs, probabilities = [_plain(alone)], [choice_probabilities(self._kind, alone)]
        with doing("Switching each head off"):
            at = 0
            while at < len(self.heads):
                tell(at, len(self.heads), "heads")
                off = self.heads[at : at + self._rows - 1]
                batch_output = self._run(inputs, off, alone)
                outputs.append(_plain(batch_output))
                probabilities.append(choice_probabilities(self._kind, batch_output))
                at += len(off)
        known = [row for row in probabilities if row is not None]
        return HeadProbe(
            self.heads,
            torch.cat(outputs),
            torch.cat(known) if len(known) == len(probabilities) else None,
            {layer: self._lay.describe(weights) for layer, weights in self._switch.weights.items()},
            self._switch.weights,
        )

    def _run(self, inputs: Inputs, off: Sequence[Head], alone: Any) -> Any:
        """Return the output with each of these heads off, one row each, from one batch whose first row has to equal the
        unchanged run; else from one run each."""
        if self._rows > 2:
            self._switch.off = [None, *off]
            many = _repeat(inputs, 1 + len(off))
            try:
                outputs = self._net(*many, **many.named)
                if _first_is(outputs, alone, 1 + len(off)):
                    return _map(lambda tensor: tensor[1:], outputs)
            except (_NotOneRowEach, RuntimeError, ValueError):
                pass
            self._rows = 2  # from here on one at a time
        outputs = []
        for head in off:
            self._switch.off = [head]
            outputs.append(self._net(*inputs, **inputs.named))
            tell(len(outputs), len(off), "heads")
        return _concatenate(outputs)


def head_effects(model: Model, inputs: Inputs, trace: Trace, part: str | None = None) -> HeadEffects:
    """Switch off every head of a tower, one at a time, and measure the effect on this input's answer.

    `trace` is a run of the model on an input of the same sizes.
    """
    return measure_heads(model, inputs, head_sites(trace, part))


def measure_heads(model: Model, inputs: Inputs, sites: HeadSites) -> HeadEffects:
    """Return the effects of switching off the heads at these sites, one at a time."""
    return effects(HeadSwitchboard(model, inputs, sites).probe(inputs))


def effects(probe: HeadProbe) -> HeadEffects:
    """Return the effects of the heads of one probe, as arrays."""
    known = tuple(dict.fromkeys(head.layer for head in probe.heads))
    shape = len(known), 1 + max(head.head for head in probe.heads)
    tables = {name: np.full(shape, np.nan) for name in ("change", *AttentionSummary._fields)}
    flips, probability = np.zeros(shape, dtype=bool), None
    if probe.probabilities is not None:
        answer = probe.probabilities[0].argmax(-1)
        probabilities = answer_probability(probe.probabilities, answer)
        changes, probability = 100 * (probabilities[1:] - probabilities[0]), float(probabilities[0])
        others = (probe.probabilities[1:].argmax(-1) != answer).reshape(len(probe.heads), -1).any(-1).tolist()
    else:
        first = probe.outputs[:1].double()
        changes = (probe.outputs[1:].double() - first).flatten(1).norm(dim=1) / first.norm()
        others = [False] * len(probe.heads)
    for head, change, flip in zip(probe.heads, changes.tolist(), others, strict=True):
        row = known.index(head.layer)
        tables["change"][row, head.head], flips[row, head.head] = change, flip
    for layer, attended in probe.attended.items():
        for name, values in attended._asdict().items():
            tables[name][known.index(layer), : len(values)] = values
    return HeadEffects(known, flips=flips, points=probability is not None, probability=probability, **tables)


class _Layout:
    """Layout of a tower's tokens: the distances between them, and which come from no input."""

    def __init__(self, trace: Trace, part: str | None):
        named, patches = segments(trace, part), places(trace, part)
        stop = max((segment.stop for segment in named), default=0)
        texts = [token for segment in named if segment.name == "text" for token in range(segment.start, segment.stop)]
        self.tokens = sorted(patches) or texts
        if patches and trace.picture:
            at = torch.tensor([divmod(patches[token], trace.picture.columns) for token in self.tokens]).double()
        else:
            at = torch.tensor([[float(token)] for token in self.tokens]).double().reshape(-1, 1)
        self.distances = torch.cdist(at, at)
        self.special = sorted(set(range(stop)) - set(patches) - set(texts))
        self.stop = stop

    def describe(self, weights: Tensor) -> AttentionSummary:
        """Summarize what heads attend to, from weights `[h, …, S_q, S_k]`."""
        weights = weights.double().cpu()
        heads, (queries, keys) = weights.shape[0], weights.shape[-2:]
        weights = weights.reshape(heads, -1, queries, keys)
        entropy = torch.special.entr(weights).sum(-1).mean((1, 2)).where(weights.flatten(1).any(1), torch.nan)
        nothing = torch.full((heads,), torch.nan, dtype=torch.float64)
        distance, special = nothing, nothing
        if queries == keys == self.stop:
            inner = weights[..., self.tokens, :][..., self.tokens]
            mass = inner.sum(-1)
            if len(self.tokens) > 1 and bool((mass > 0).any()):
                far = (inner * self.distances).sum(-1)
                distance = (far / mass).nan_to_num(0.0).sum((1, 2)) / (mass > 0).sum((1, 2))
            if self.special:
                others = sorted(set(range(keys)) - set(self.special))
                special = weights[..., others, :][..., self.special].sum(-1).mean((1, 2))
        return AttentionSummary(*(table.numpy() for table in (entropy, distance, special)))


def _plain(output: Any) -> Tensor:
    return floating_output(output).detach().cpu()


def _map(change, output: Any) -> Any:
    """Return an output with `change(tensor)` for its first tensors: those that answers are read from."""
    if isinstance(output, Mapping):
        return {name: change(value) for name, value in output.items() if isinstance(value, Tensor) and value.dim()}
    return change(output if isinstance(output, Tensor) else floating_output(output))


def _concatenate(outputs: Sequence[Any]) -> Any:
    copies = [_map(lambda tensor: tensor, output) for output in outputs]
    if isinstance(copies[0], Mapping):
        return {name: torch.cat([part[name] for part in copies]) for name in copies[0]}
    return torch.cat(copies)


def _repeat(inputs: Inputs, count: int) -> Inputs:
    """Return the inputs of one run as a batch of `count` equal rows."""

    def repeat(tensor: Tensor) -> Tensor:
        return tensor.expand(count, *tensor.shape[1:]) if tensor.dim() and tensor.shape[0] == 1 else tensor

    return inputs.map_tensors(repeat)


def _first_is(batch_output: Any, alone: Any, rows: int) -> bool:
    """Return whether a batch has one output per row, the first of which equals that of a single run."""
    batch, single = _plain(batch_output), _plain(alone)
    if batch.shape[0] != rows or single.shape[0] != 1 or batch.shape[1:] != single.shape[1:]:
        return False
    return bool((batch[:1] - single).abs().max() <= BATCH_TOLERANCE * single.abs().max())
