"""Attention of a trace: weights per layer, head and query, mean over heads, and rollout over layers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracer.record import AttentionRecord, Segment, Trace
from tracer.utils.errors import quote
from tracer.utils.lazy_import import lazy_import

if TYPE_CHECKING:
    import torch

    from tracer.capture import score_path
else:  # imported when first used
    score_path = lazy_import("tracer.capture.score_path")


def parts(trace: Trace) -> tuple[str, ...]:
    """Return the names of the towers that have attention; one, the empty name, for most models."""
    return tuple(dict.fromkeys(record.part for record in trace.attentions))


def layers(trace: Trace, part: str | None = None) -> tuple[AttentionRecord, ...]:
    """Return the attention of one tower, layer by layer. Raise ValueError if the run had none, or no such tower."""
    if not trace.attentions:
        raise ValueError(f"{quote(trace.model)} ran no attention that this trace recorded")
    known = parts(trace)
    part = known[0] if part is None else part
    if part not in known:
        raise ValueError(f"part={quote(part)} is not one of this model's: {', '.join(map(repr, known))}")
    return tuple(record for record in trace.attentions if record.part == part)


def block_names(trace: Trace, part: str | None = None) -> tuple[str, ...]:
    """Return the name of each attention of a tower, for a sentence: "block 3" where each is in a block of its own, as
    in most models.

    In an encoder–decoder model they are "encoder block 1", "decoder block 1" and "decoder block 1, across", which looks
    at the tokens of another tower. A further attention of a block is its "attention 2".
    """
    records = layers(trace, part) if trace.attentions else ()
    plain = tuple(f"block {layer + 1}" for layer in range(len(records)))
    numbers = [_layer(trace, record) for record in records]
    towers = [BLOCK_NUMBER.split(record.module, maxsplit=1)[0] for record in records]
    modules = {record.module for record in records}
    if numbers == list(range(len(records))) or None in numbers or len(modules) < len(records):
        return plain
    names: list[str] = []
    first: dict[tuple[str, int | None], AttentionRecord] = {}
    count = Counter[tuple[str, int | None]]()
    for record, number, tower in zip(records, numbers, towers, strict=True):
        place = tower, number
        count[place] += 1
        before = first.setdefault(place, record)
        across = record.keys != record.queries == before.queries == before.keys
        more = "" if before is record else ", across" if across else f", attention {count[place]}"
        names.append(f"{_distinct(tower, towers)} block {(number or 0) + 1}{more}".strip())
    return tuple(names) if len({*names}) == len(names) else plain


BLOCK_NUMBER = re.compile(r"(?:^|\.)[^.]*?\d+(?=\.|$)")
"""First numbered module of a path, before which the name of its tower stands."""


def _layer(trace: Trace, record: AttentionRecord) -> int | None:
    """Return the block that an attention belongs to, as its lines count it; None where they do not say."""
    layers_of = (step.layer for step in trace.steps if record.op in (step.inside, *step.ops))
    return next((layer for layer in layers_of if layer is not None), None)


def _distinct(tower: str, towers: Sequence[str]) -> str:
    """Return what the path of a tower has that those of the others lack, as words without "blocks"; "" for one tower
    alone."""
    others = {part for other in {*towers} - {tower} for part in other.split(".")}
    own = next((part for part in tower.split(".") if part not in others), "") if others else ""
    return re.sub(r"_?(blocks|layers)$", "", own).replace("_", " ")


def token_segments(trace: Trace, record: AttentionRecord) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
    """Return the named segments of the queries and of the keys of an attention.

    Where a run names none, its text is the sequence of the first attention if that has as many tokens, and an attention
    across looks at the same tokens.
    """
    own = segments(trace, record.part)
    if own or not trace.words:
        return own, own
    text = (Segment("text", 0, len(trace.words), record.part),)
    first = layers(trace, record.part)[0]
    tower = BLOCK_NUMBER.split(first.module, maxsplit=1)[0]
    inside = record.module.startswith(tower)
    read = first.queries == first.keys == len(trace.words)
    return (
        text if read and inside and record.queries == first.queries else (),
        text if read and record.keys == first.keys and (inside or record.keys != record.queries) else (),
    )


def segments(trace: Trace, part: str | None = None) -> tuple[Segment, ...]:
    """Return the named segments of one tower's sequence; of the first tower, or of the only one, if `part` is None."""
    part = next(iter(parts(trace)), "") if part is None else part
    return tuple(segment for segment in trace.segments if segment.part in ("", part))


def places(trace: Trace, part: str | None = None) -> dict[int, int]:
    """Return the patch of each token of a tower, both counted from 0, patches row by row; empty if none is one.

    Either all patches in their order, from the first of the `Picture` on, or those that a segment names.
    """
    picture, own = trace.picture, segments(trace, part)
    if picture is None:
        return {}
    if not own or "image" in [segment.name for segment in own]:
        return {picture.first + patch: patch for patch in range(picture.rows * picture.columns)}
    return {segment.start + at: patch for segment in own for at, patch in enumerate(segment.places)}


def unseen(trace: Trace) -> tuple[str, tuple[int, ...]]:
    """Return (tower, patches): the tower that received only some patches, and the patches that it did not; ("", ()) if
    none."""
    for segment in trace.segments:
        if segment.places and trace.picture:
            patches, visible = range(trace.picture.rows * trace.picture.columns), set(segment.places)
            return segment.part, tuple(patch for patch in patches if patch not in visible)
    return "", ()


def weights(
    trace: Trace, layer: int, head: int | None = None, query: int | None = None, *, part: str | None = None
) -> torch.Tensor:
    """Return attention weights; see `Trace.attention`."""
    records = layers(trace, part)
    record = records[within(layer, len(records), "layer")]
    if record.problem:
        raise ValueError(f"layer {layer}: the attention is not recoverable: {record.problem}")
    rows = range(record.queries) if query is None else [within(query, record.queries, "query")]
    if record.weights:
        result = _heads_first(trace.values[record.weights], record)[..., list(rows), :]
    else:
        q, k = (_heads_first(trace.values[key], record) for key in (record.q, record.k))
        result = score_path.softmax_rows(q, k, record.chain, rows, trace.values.get)
    result = result.flatten(0, -4) if result.dim() > 4 else result  # windows, say, are items of the batch
    if query is not None:
        result = result[..., 0, :]
    return result if head is None else result[:, within(head, record.heads, "head")]


def windows(trace: Trace, record: AttentionRecord) -> int:
    """Return the number of windows in which the attention of each input ran; 1 if every query sees the whole
    sequence."""
    q = trace.values.get(record.q)
    batch_sizes = [t.shape[0] for op in trace.ops for t in op.inputs if t.shape and str(t.maker).startswith("input ")]
    if q is None or not batch_sizes:
        return 1
    items = q.shape[:-3].numel() if q.ndim > 3 else q.shape[0] // record.heads
    return 1 if items in batch_sizes or items % batch_sizes[0] else items // batch_sizes[0]


def rollout(trace: Trace, *, part: str | None = None, start: int = 0, steps: bool = False) -> torch.Tensor:
    """Return the attention rollout: `Â_L ⋯ Â_1` with `Â = (A + I) / 2`, A the mean over heads; `[B, S, S]`, rows sum to
    1.

    `steps=True` gives the product after every layer, `[L, B, S, S]`. Source: Abnar and Zuidema 2020, section 3.
    """
    import torch  # loaded once numbers are asked for

    product, every, records = None, [], layers(trace, part)
    for layer in range(start, len(records)):
        if records[layer].over != "tokens":
            raise ValueError(f"layer {layer} attends from channel to channel, which a rollout over tokens can't carry")
        if windows(trace, records[layer]) > 1:
            raise ValueError(f"layer {layer} attends inside windows, which a rollout over all tokens can't carry")
        mean = weights(trace, layer, part=part).mean(dim=1)
        mixed = (mean + torch.eye(mean.shape[-1], dtype=mean.dtype)) / 2
        product = mixed if product is None else mixed @ product
        every.append(product)
    return torch.stack(every) if steps else product


def _heads_first(tensor: torch.Tensor, record: AttentionRecord) -> torch.Tensor:
    if tensor.dim() >= 4:
        return tensor
    return tensor.reshape(-1, record.heads, *tensor.shape[-2:])


def within(value: int, count: int, name: str) -> int:
    """Return a number of a layer, head or query. Raise ValueError for one that the run does not have."""
    if not 0 <= value < count:
        raise ValueError(f"{name}={value} is outside this run's {count}: 0 to {count - 1}")
    return value
