"""Masks: those that models build, those read from a trace, and the outputs that a token really changes.

`visible` reads the mask that ran, cell by cell, from any trace. `influence` is a second check that does not use masks:
it changes one token and compares the positions' outputs. `reach` predicts these positions from the mask,
`largest_share` bounds the attention of unchanged positions to changed ones. `predict_under_mask` runs a model under its
mask, `close_picture` predicts each word with the picture masked in some blocks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import log
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tracer import changes
from tracer.attention import layers, within
from tracer.capture import Recording, record
from tracer.capture.score_path import MASKED_SCORE, hides, is_windowed, own_columns, scores_rows
from tracer.changes.of_inputs import Hide, MaskWords
from tracer.expr import tensors
from tracer.inputs.model_inputs import Inputs
from tracer.record import AttentionRecord, Segment, Trace
from tracer.spec.blocks import causal as causal
from tracer.spec.blocks import padding as padding
from tracer.spec.blocks import prefix as prefix
from tracer.spec.preparation import names
from tracer.tracing import assemble
from tracer.tracing.records import part_of
from tracer.utils.errors import quote

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracer.spec.spec import Model
    from tracer.textbook.derivation import DerivedStep


# Ablation of attention from words to the picture: mask it and predict again.


class AblationResult(NamedTuple):
    """Model's predictions with the picture masked in some blocks, one entry for each word that it predicts.

    `words` are the words of the text and, last, the most probable next one; `open` and `closed` their probabilities
    with all blocks open and with some closed, `best` and `instead` the most probable words at these places.
    """

    words: tuple[str, ...]
    open: tuple[float, ...]
    closed: tuple[float, ...]
    best: tuple[str, ...]
    instead: tuple[str, ...]


@torch.no_grad()
def close_picture(model: Model, inputs: Inputs, layers: Sequence[int]) -> AblationResult:
    """Mask the picture from the words in these blocks, which count from 0, and predict each word of the text again.

    Each word is predicted from the true words before it, in the run and with the picture closed, so that no difference
    comes from another beginning. What a word has read in an open block stays: only all blocks closed hide the picture.
    ValueError for a model without picture and text in one stream, and for a block that it does not have.
    """
    own = {segment.name: segment for segment in inputs.segments}
    if not {"image", "text"} <= own.keys() or len({segment.part for segment in inputs.segments}) > 1:
        raise ValueError(f"{quote(model.name)} has no picture and text in one sequence, so the picture can't be closed")
    blocks = getattr(model.net, "blocks", ())
    for layer in layers:
        if not 0 <= layer < len(blocks):
            raise ValueError(f"layer {layer} is not in this model, expected 0 to {len(blocks) - 1}")
    image, text = own["image"], own["text"]
    close = changes.close(range(image.start, image.stop), range(text.start, text.stop))
    closed = model.with_changes({f"{blocks[layer]}.attention.scores": close for layer in layers}, inputs)
    before = model.net(*inputs)[0].softmax(-1).cpu()  # [T, V]
    after = closed.net(*inputs)[0].softmax(-1).cpu()  # [T, V]
    known = names(model)
    best, instead = ([known[number] for number in shares.argmax(-1).tolist()] for shares in (before, after))
    following = torch.cat([inputs[1][0, 1:].cpu(), before[-1:].argmax(-1)])  # [T]
    place = torch.arange(len(following))
    return AblationResult(
        words=tuple(known[number] for number in following.tolist()),
        open=tuple(before[place, following].tolist()),
        closed=tuple(after[place, following].tolist()),
        best=tuple(best),
        instead=tuple(instead),
    )


# Mask that ran: the keys that each query may attend to, read from the scores of a trace.


class MaskedRow(NamedTuple):
    """One query's scores before the mask, the numbers of its mask and its attention weights, `[S_k]` each."""

    before: torch.Tensor
    mask: torch.Tensor
    weights: torch.Tensor


class RowsOfHeads(NamedTuple):
    """Rows of several queries in every head: scores before, whether a key is open, and weights, `[h, S_q, S_k]`."""

    before: torch.Tensor
    open: torch.Tensor
    weights: torch.Tensor


class MaskValues(NamedTuple):
    """Number that a mask has in every open cell, and in every closed one: 0 and -∞, or the numbers that the code uses.

    None where there is no such cell, or where the cells have different numbers.
    """

    open: float | None
    closed: float | None


class RowSums(NamedTuple):
    """All rows of weights of one head: the largest deviation of their sums from 1, and the largest weight of a closed
    cell.

    The latter is None where no cell is closed.
    """

    off: float
    closed: float | None


class SegmentVisibility(NamedTuple):
    """View of one segment on another: the share of (query, key) cells that are visible, 0 to 1."""

    queries: str
    keys: str
    share: float


def visible(trace: Trace, layer: int = 0, *, head: int = 0, part: str | None = None, batch: int = 0) -> torch.Tensor:
    """Return bool `[S_q, S_k]`: True where the key was open to the query, cell by cell, as the scores that ran show it.

    ValueError for a layer, head or input of the batch that the run does not have, or attention that can't be recovered.
    """
    record = _record(trace, layer, part)
    cells, head = open_cells(trace, record), within(head, record.heads, "head")
    return cells[within(batch, cells.shape[0], "batch"), head]


def open_keys(
    trace: Trace, query: int, layer: int = 0, *, head: int = 0, part: str | None = None, batch: int = 0
) -> torch.Tensor:
    """Return the row of `visible` of one query, bool `[S_k]`, without computing the others."""
    return _open(trace, _record(trace, layer, part), [query])[batch, head, 0]


def _open(trace: Trace, record: AttentionRecord, rows: list[int]) -> torch.Tensor:
    """Return the open cells, bool `[B, h, rows, S_k]`.

    A closed one has a weight below the resolution of its dtype, next to the highest of its row, whatever its score: it
    would even with the highest score that the row has before the mask.
    """
    before, after = (_scores(trace, record, chain, rows) for chain in (_without_masks(trace, record), record.chain))
    highest = after.amax(dim=-1, keepdim=True)
    before, after = (_own(scores, trace, record) for scores in (before, after))
    most = before.amax(dim=-1, keepdim=True) + (after - before)
    return most - highest >= log(torch.finfo(after.dtype).eps)  # a row that is closed as a whole compares as no number


def _without_masks(trace: Trace, record: AttentionRecord):
    """Return the recorded chain without the links that hide keys."""
    return tuple(link for link in record.chain if not hides(link, trace.values.get))


def _mask(trace: Trace, record: AttentionRecord, rows: list[int]) -> torch.Tensor:
    """Apply the links that hide keys to scores of 0: return the numbers of the mask, `[B, h, rows, S_k]`."""
    chain = tuple(link for link in record.chain if hides(link, trace.values.get))
    scores = _scores(trace, record, chain, rows, of_zeros=True)
    return torch.where(scores.isinf(), scores, 0.0) if record.scores else scores


def _own(scores: torch.Tensor, trace: Trace, record: AttentionRecord) -> torch.Tensor:
    return own_columns(scores, record.chain, record.keys, trace.values.get)


def _record(trace: Trace, layer: int, part: str | None) -> AttentionRecord:
    records = layers(trace, part)
    record = records[within(layer, len(records), "layer")]
    if record.problem:
        raise ValueError(f"layer {layer}: the mask is not recoverable: {record.problem}")
    return record


def _scores(trace: Trace, record: AttentionRecord, chain, rows: list[int], of_zeros: bool = False) -> torch.Tensor:
    """Return scores after the links of `chain`, `[B, h, rows, columns]`: the keys, and the columns beside them. Scores
    that a change replaced are those of the run, with their mask. With `of_zeros`, all queries and keys are 0."""
    if record.scores:
        scores = trace.values[record.scores][..., rows, :]
    else:
        q, k = (trace.values[key] for key in (record.q, record.k))
        q, k = (torch.zeros_like(q), torch.zeros_like(k)) if of_zeros else (q, k)
        scores = scores_rows(q, k, chain, rows, trace.values.get)
    return scores.reshape(-1, record.heads, *scores.shape[-2:])  # of a single head, a model may leave the axis out


def row(
    trace: Trace, query: int, layer: int = 0, *, head: int = 0, part: str | None = None, batch: int = 0
) -> MaskedRow:
    """Return the effect of the mask on one query of an input of the batch: scores before it, the mask, weights after
    it.

    Each is `[S_k]`. The scores before are the recorded chain without its masking links, the mask is these links alone:
    what they add, or write in the place of a score.
    """
    record, weights = _record(trace, layer, part), trace.attention(layer, head, query, part=part)[batch]
    before = _own(_scores(trace, record, _without_masks(trace, record), [query]), trace, record)[batch, head, 0]
    return MaskedRow(before, _mask(trace, record, [query])[batch, head, 0], weights)


def whole(trace: Trace, queries: list[int], layer: int = 0, *, part: str | None = None, batch: int = 0) -> RowsOfHeads:
    """Return `row` for several queries of an input of the batch, in all heads at once."""
    record = _record(trace, layer, part)
    before = _own(_scores(trace, record, _without_masks(trace, record), queries), trace, record)[batch]
    weights = trace.attention(layer, part=part)[batch][:, queries]
    return RowsOfHeads(before, _open(trace, record, queries)[batch], weights)


def numbers(trace: Trace, queries: list[int], layer: int = 0, *, part: str | None = None, batch: int = 0) -> MaskValues:
    """Return the numbers of the mask itself for these queries of an input of the batch, in all heads."""
    record = _record(trace, layer, part)
    mask, open = _mask(trace, record, queries)[batch], _open(trace, record, queries)[batch]
    distinct = (torch.unique(mask[cells]).tolist() for cells in (open, ~open))
    return MaskValues(*(values[0] if len(values) == 1 else None for values in distinct))


def rows(trace: Trace, layer: int = 0, *, head: int = 0, part: str | None = None, batch: int = 0) -> RowSums:
    """Return bounds of the attention weights of one head, for an input of the batch, summed in float64."""
    weights = trace.attention(layer, head, part=part)[batch].double()
    closed = weights[~visible(trace, layer, head=head, part=part, batch=batch)]
    return RowSums(float((weights.sum(dim=-1) - 1).abs().max()), float(closed.max()) if len(closed) else None)


def kind(cells: torch.Tensor) -> str:
    """Return the kind of mask bool `[S, S]`: "bidirectional", "causal", "prefix", "padded", "windows", or "other".

    A prefix mask is causal but for its first n tokens, 1 < n < S, which see each other fully. In a padded one the
    same last keys are hidden from every query. Windows are groups of tokens that see only themselves.
    """
    queries, keys = cells.shape
    if bool(cells.all()):
        return "bidirectional"
    if queries == keys:
        lower = torch.ones_like(cells).tril()
        if torch.equal(cells, lower):
            return "causal"
        ahead = int(cells[0].sum())
        prefix = lower | (torch.arange(keys) < ahead)
        if torch.equal(cells, prefix):
            return "prefix"
    count = int(cells[0].sum())
    if torch.equal(cells, (torch.arange(keys) < count).expand_as(cells)):
        return "padded"
    return "windows" if is_windowed(~cells) else "other"


def blocks(cells: torch.Tensor, segments: tuple[Segment, ...]) -> tuple[SegmentVisibility, ...]:
    """Return the share of visible cells of `[S, S]` for each pair of segments, queries first."""
    return tuple(
        SegmentVisibility(a.name, b.name, float(cells[a.start : a.stop, b.start : b.stop].float().mean()))
        for a in segments
        for b in segments
    )


def reach(cells: torch.Tensor, tokens: int | Collection[int], hops: int) -> tuple[int, ...]:
    """Return the positions that a token, or several, can influence through `hops` blocks with this mask: themselves,
    and all that see them in turn."""
    reachable = torch.zeros(cells.shape[1], dtype=torch.bool)
    reachable[[tokens] if isinstance(tokens, int) else list(tokens)] = True
    for _ in range(hops):
        reachable = reachable | (cells & reachable).any(dim=1)
    return tuple(reachable.nonzero().flatten().tolist())


def largest_share(
    trace: Trace, queries: Collection[int], positions: ChangedPositions, *, part: str | None = None
) -> float:
    """Return the largest share of attention, 0 to 1, that any of `queries` gives, in a block and head, to positions
    that had already changed.

    Before the first block that is what entered it; before a later one, what of the tokens that moved in the end the
    mask lets the change reach by then. ValueError where a block's attention can't be recovered.
    """
    cells, most = visible(trace, part=part), 0.0
    for layer in range(len(layers(trace, part))):
        before = sorted({*positions.entering, *positions.leaving}.intersection(reach(cells, positions.entering, layer)))
        shares = trace.attention(layer, part=part)[:, :, list(queries)][..., before].double().sum(dim=-1)
        most = max(most, float(shares.max()))
    return most


def open_cells(trace: Trace, record: AttentionRecord) -> torch.Tensor:
    """Return bool `[B, h, S_q, S_k]`: True where a key was open to a query, of one attention of the run."""
    return _open(trace, record, list(range(record.queries)))


def hidden_rows(trace: Trace, record: AttentionRecord) -> torch.Tensor:
    """Return bool `[B, h, S_q]`: True where the mask hides all keys from a query, by -∞ or by numbers as low as those
    that hide a key."""
    mask = _own(_mask(trace, record, list(range(record.queries))), trace, record)
    return (mask <= MASKED_SCORE).all(dim=-1)


# Outputs of a model under a mask, and the mask as it ran, without the proofs of a trace.


class Prediction(NamedTuple):
    """Mask of the first block, bool `[S_q, S_k]`, True where open, and the model's result."""

    cells: torch.Tensor
    result: Mapping[str, Any]


def predict_under_mask(model: Model, inputs: Inputs) -> Prediction:
    """Run the model once and read the mask that ran; no shape is solved and no equation executed, so it is quick.

    ValueError where the run has no attention, or one whose mask can't be read.
    """
    with torch.no_grad():
        recording = record(model.net, tuple(inputs), inputs.named)
        result = model.spec.result(model, inputs, recording.output)
    run = assemble(model.net, recording, model=model.name, sizes={}, derived={}, solution=None, parts=model.spec.parts)
    return Prediction(visible(run), result)


# Influence: change one token of the input, run again, and list the positions whose outputs changed.

KEPT_BYTES = 2**30
"""Bytes that a run may keep here, until the two streams that are compared are taken from it."""


class ChangedPositions(NamedTuple):
    """Positions of a tower's sequence that changed: in the input of its first block, and in the output of its last."""

    entering: tuple[int, ...]
    leaving: tuple[int, ...]


class Streams(NamedTuple):
    """Residual stream at the input of a tower's first block, and at the output of its last: `[B, S, D]` each."""

    entering: torch.Tensor
    leaving: torch.Tensor


class TowerEnds(NamedTuple):
    """Keys of the values of a run where the residual stream enters a tower's first block and leaves its last."""

    entering: str
    leaving: str


def influence(
    model: Model, inputs: Inputs, token: int, *, part: str | None = None, trace: Trace | None = None
) -> ChangedPositions:
    """Return the positions whose residual stream differs once `token` of the input is replaced, before and after the
    blocks of tower `part`, the first if it is None.

    A word becomes the next entry of the vocabulary, a patch becomes grey; nothing is known of the mask. Compared
    bit by bit. What enters is the token itself, or nothing where the tower does not see it, or more where another
    tower has mixed it before. `trace` is the model's run of `inputs`, where there is one already. ValueError for a
    token outside the sequence, or one that is learned and not part of the input (CLS).
    """
    part = next(iter(model.spec.parts)) if part is None else part
    changed_inputs = change_token(model, inputs, token, part=part)
    steps = trace.later.derived_steps if trace and trace.later else None
    before = trace and traced_streams(model, trace, part=part)
    before, after = before or streams(model, inputs, part=part), streams(model, changed_inputs, part=part, steps=steps)
    return _differing(before, after)


def change_and_compare(
    model: Model, inputs: Inputs, token: int, part: str, ends: TowerEnds, before: Streams
) -> ChangedPositions:
    """Return the same as `influence` by what is known of the run of `inputs`: the ends of the tower, and its streams
    there."""
    recording = _record_of(model, change_token(model, inputs, token, part=part), calls=False)
    return _differing(before, _streams_at(model, ends, recording.store.get))


def change_token(model: Model, inputs: Inputs, token: int, *, part: str = "") -> Inputs:
    """Return `inputs` with one token of a tower's sequence changed, for every input of the batch."""
    own = [segment for segment in inputs.segments if segment.part in ("", part)]
    segment = next((s for s in own if s.start <= token < s.stop), None)
    if segment is None:
        last = max((s.stop for s in own), default=0) - 1
        raise ValueError(f"token {token} is outside the sequence, expected 0 to {last}")
    place = token - segment.start
    if segment.name == "text":
        problem = "the input has no token numbers, so this token can't be changed"
        token_id = _number_at((*inputs, *inputs.named.values()), place, problem)
        return model.change_inputs(inputs, [MaskWords([place], (token_id + 1) % model.sizes["V"])])
    if segment.name in ("image", "visible"):
        sizes = model.vocabulary.complete({**inputs.sizes, **model.sizes})
        H, W, P = (sizes.get(size, 1) for size in "HWP")
        if segment.name == "image" and segment.stop - segment.start != (H // P) * (W // P):
            raise ValueError(f"the tokens of {model.name!r} are not patches of the photo, so none can be changed alone")
        return model.change_inputs(inputs, [Hide([_patch(inputs, segment, place)], "grey")])
    raise ValueError(f"token {token} ({segment.name}) is learned and not part of the input: choose another")


def _number_at(tensors: Iterable[torch.Tensor], place: int, problem: str) -> int:
    """Return the number at a place of the first tensor of whole numbers, of the first input of the batch. Raise
    ValueError with the problem if there is none."""
    numbers = next((tensor for tensor in tensors if not tensor.is_floating_point()), None)
    if numbers is None:
        raise ValueError(problem)
    return int(numbers[0, place])


def _patch(inputs: Inputs, segment: Segment, place: int) -> int:
    """Return the index of a patch in the photo; visible ones are listed in the segment, or by an input of their own."""
    if segment.name == "image":
        return place
    if segment.places:
        return segment.places[place]
    problem = "which patches are visible is drawn inside the model, so none can be changed alone"
    return _number_at(inputs, place, problem)


def _differing(before: Streams, after: Streams) -> ChangedPositions:
    changed = ((first != second).any(dim=2).any(dim=0) for first, second in zip(before, after, strict=True))
    return ChangedPositions(*(tuple(positions.nonzero().flatten().tolist()) for positions in changed))


def streams(
    model: Model, inputs: Inputs, *, part: str | None = None, steps: Sequence[DerivedStep] | None = None
) -> Streams:
    """Return the residual stream at both ends of a tower, the first if `part` is None.

    `steps` are the model's steps on inputs of these sizes, where they are known. ValueError for a model whose steps
    don't say where its blocks begin and end, or one that is too large.
    """
    recording = _record_of(model, inputs, calls=steps is None)
    steps = model.derived_steps(recording, inputs.sizes) if steps is None else steps
    return _streams_at(model, tower_ends(model, steps, part), recording.store.get)


def _record_of(model: Model, inputs: Inputs, calls: bool) -> Recording:
    with torch.no_grad():
        return record(model.net, tuple(inputs), inputs.named, cap=KEPT_BYTES, attention=False, calls=calls)


def traced_streams(model: Model, trace: Trace, *, part: str | None = None) -> Streams | None:
    """Return the same from an existing run of the model; None if it did not keep them."""
    if trace.later is None:
        return None
    return _find_streams(model, tower_ends(model, trace.later.derived_steps, part), trace.values.get)


def tower_ends(model: Model, steps: Sequence[DerivedStep], part: str | None = None) -> TowerEnds:
    """Return the ends of a tower, the first if `part` is None, in a run of these steps. ValueError for a model whose
    steps don't say where its blocks begin and end."""
    part = next(iter(model.spec.parts)) if part is None else part
    places = {step.line.id: step.value for step in steps if step.line.place}
    inside = [
        (line, line.place.module) for line in (step.line for step in steps) if line.layer is not None and line.place
    ]
    blocks = [line for line, module in inside if part_of(module, (part,)) == part]
    if not blocks:
        raise ValueError(f"no step of {model.name!r} says where its blocks begin and end, so this check has no place")
    first = next((tensor.key for tensor in tensors(blocks[0].equation) if tensor.key in places), None)
    if first is None:
        raise ValueError(f"the blocks of {model.name!r} make no sequence of the one they read, so this has no place")
    return TowerEnds(places[first], places[blocks[-1].id])


def _find_streams(model: Model, ends: TowerEnds, value: Callable) -> Streams | None:
    """Return the streams at the ends of a tower; None where they were not kept."""
    entering, leaving = map(value, ends)
    if entering is None or leaving is None:
        return None
    if [entering.dim(), leaving.dim()] != [3, 3] or entering.shape[1] != leaving.shape[1]:
        raise ValueError(f"the blocks of {model.name!r} make no sequence of the one they read, so this has no place")
    return Streams(entering, leaving)


def _streams_at(model: Model, ends: TowerEnds, value: Callable) -> Streams:
    if (found := _find_streams(model, ends, value)) is None:
        raise ValueError(f"{model.name!r} at these sizes is too large for the influence check: choose smaller ones")
    return found
