"""Axes of samples and tokens of inputs whose axes nobody named, by how the run reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch

from tracer.diagnostics.findings.attention import edges, paddings
from tracer.diagnostics.findings.batches import BATCH
from tracer.graph.attention_sites import AttentionSite

if TYPE_CHECKING:
    from tracer.diagnostics.findings.run_view import RunView


TOKENS = ("T", "S", "N", "M")
"""Symbols of the numbers of tokens of up to as many texts."""
POSITIONS = "its positions are numbered along axis {axis}"
PADDING = "its padding lies at the end of axis {axis}"
ANSWER = "an answer has one row for each of its places along axis {other}"
ATTENTION = "its attention is over axis {axis}"
NOTE = "Nobody named the axes: samples are taken to lie along axis {other} of `{name}`, since {reason}."


class NamedAxes(NamedTuple):
    """Axes of inputs by symbols, as `tracer.trace` takes them, and the sentence that says how they are known."""

    symbols: dict[str, list[tuple[str, int]]]
    note: str


class Sequence(NamedTuple):
    """An input of samples with tokens: its name, the two lengths in its order, and the axis of tokens."""

    name: str
    lengths: tuple[int, int]
    tokens: int
    note: str

    @property
    def samples(self) -> int:
        return self.lengths[1 - self.tokens]


def find_axes(run: RunView) -> NamedAxes | None:
    """Return the axes of samples and tokens of the inputs of a run with attention; None where they are not known."""
    sequences = [sequence for name in run.inputs if (sequence := _sequence(run, name)) is not None]
    if not sequences or len({sequence.samples for sequence in sequences}) > 1:
        return None
    samples = sequences[0].samples
    tokens = list(dict.fromkeys(sequence.lengths[sequence.tokens] for sequence in sequences))
    if samples in tokens or len(tokens) > len(TOKENS):
        return None
    letters = {samples: BATCH, **dict(zip(tokens, TOKENS, strict=False))}
    symbols: dict[str, list[tuple[str, int]]] = {BATCH: []}
    known = {sequence.name for sequence in sequences}
    for name, tensor in run.inputs.items():
        lengths = tensor.shape[:2] if name in known or tensor.dim() <= 2 else tensor.shape[:1]
        for axis, length in enumerate(lengths):
            if length in letters:
                symbols.setdefault(letters[length], []).append((name, axis))
    return NamedAxes(symbols, sequences[0].note)


def _sequence(run: RunView, name: str) -> Sequence | None:
    """Return an input of ids `[samples, tokens]` or vectors, in either order; None for any other input."""
    tensor, graph = run.inputs[name], run.graph
    key = f"input {name}"
    vectors = tensor.is_floating_point() and tensor.dim() == 3
    read = any(call.op.name == "embedding" and graph.root(call.arguments["indices"].key) == key for call in graph.calls)
    if (not vectors and not (read and tensor.dim() == 2)) or len({*tensor.shape[:2]}) < 2:
        return None
    lengths = tuple(tensor.shape[:2])
    within = graph.descendants(key)
    attended = {axis for site in run.sites if site.k in within for axis in _attended(run, site, lengths)}
    if not attended:
        return None
    votes = [*_positions(run, within, lengths), *_padded(run, name), *_answers(run, within, lengths)]
    votes += [(axis, ATTENTION) for axis in attended] if len(attended) == 1 else []
    counts = Counter(axis for axis, _ in dict.fromkeys(votes))
    if not counts:
        return None
    tokens = 1 if counts[0] == counts[1] else max(counts, key=counts.__getitem__)
    if votes == [(0, ATTENTION)]:
        return None  # windows may be as long as the batch
    reason = next(reason for axis, reason in votes if axis == tokens).format(axis=tokens, other=1 - tokens)
    return Sequence(name, lengths, tokens, NOTE.format(other=1 - tokens, name=name, reason=reason))


def _attended(run: RunView, site: AttentionSite, lengths: tuple[int, ...]) -> Iterator[int]:
    """Yield the axis whose places are the keys of an attention, learned tokens beside them or not."""
    shape = run.graph.shape(site.weights or site.k)
    keys = shape[-1 if site.weights else -2] if len(shape) > 1 else 0
    yield from (axis for axis, length in enumerate(lengths) if length == keys)


def _positions(run: RunView, within: set[str], lengths: tuple[int, ...]) -> Iterator[tuple[int, str]]:
    """Yield the axis along which a table that is added to tokens has different rows."""
    graph = run.graph
    for index in graph.computing_calls():
        call = graph.calls[index]
        if call.op.name != "add" or not call.outputs or len(call.outputs[0].shape) != 3 or not graph.is_live(index):
            continue
        tables = [ref for ref in graph.inputs[index] if graph.depends[ref.key] != "x"]
        streams = [ref for ref in graph.inputs[index] if ref.key in within and tuple(ref.shape[:2]) == lengths]
        if len(tables) == len(streams) == 1:
            shape = (1,) * (3 - len(tables[0].shape)) + tuple(tables[0].shape)
            axes = [axis for axis in (0, 1) if shape[axis] == lengths[axis] > 1]
            yield from ((axis, POSITIONS) for axis in axes if len(axes) == 1)


def _padded(run: RunView, name: str) -> Iterator[tuple[int, str]]:
    """Yield the axis at whose end the id of padding stands."""
    ids = run.inputs[name]
    for padding in paddings(run):
        if padding.name != name or ids.is_floating_point() or not bool(padding.whole.any()):
            continue
        cells = ids == ids[padding.whole].flatten()[0]
        axes = [axis for axis, one in enumerate((cells.T, cells)) if torch.equal(edges(one), one)]
        yield from ((axis, PADDING) for axis in axes if len(axes) == 1)


def _answers(run: RunView, within: set[str], lengths: tuple[int, ...]) -> Iterator[tuple[int, str]]:
    """Yield the axis of which an answer of one row for each place of the other has nothing left."""
    for ref in run.graph.outputs:
        if ref.key in within and len(ref.shape) >= 2 and "float" in str(ref.dtype):
            axes = [axis for axis in (0, 1) if ref.shape[0] == lengths[1 - axis] and lengths[axis] not in ref.shape]
            yield from ((axis, ANSWER) for axis in axes if len(axes) == 1)
