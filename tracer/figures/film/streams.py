"""Residual stream of a run as lanes: which token is in which lane, and what each chapter did to it.

A lane belongs to a patch, a word, or a token that is neither, such as CLS. Towers that work on the same patches share
their lanes, so that patches which one of them never sees are missing, and come back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tracer.attention import places, segments, unseen
from tracer.figures.cell_payload import tensor_of
from tracer.figures.film.chapters import MLP, Chapter, between
from tracer.figures.predictions import visible_token
from tracer.figures.tensors import as_array
from tracer.record import Segment, Step, Trace
from tracer.utils.errors import shorten

WORD = 24
"""Characters of a word on a lane."""


@dataclass(frozen=True)
class Lane:
    """One lane: its name in a sentence, its short name, and its patch, counted from 0, or None."""

    name: str
    mark: str
    patch: int | None = None
    word: bool = False


@dataclass
class Stream:
    """Lanes of one tower, or of several that share them. `slots` has the lane of each token of each tower."""

    lanes: list[Lane]
    slots: dict[str, list[int]] = field(default_factory=dict)
    read: int | None = None
    """The lane whose token is read for the answer, found in the tensors; None where it is not one alone."""
    mean_of: int = 0
    """Of how many tokens the mean is read; 0 where it is not."""


@dataclass(frozen=True)
class Snapshot:
    """Stream after a chapter: the vector of each lane, NaN in a lane that holds no token then.

    `change` is the length of what the chapter added to each vector, as a share of the vector's length before. In a
    block, `attention` and `mlp` are the same of its two parts; None where they can't be told apart.
    """

    stream: int
    vectors: np.ndarray
    change: np.ndarray
    attention: np.ndarray | None = None
    mlp: np.ndarray | None = None

    @property
    def present(self) -> np.ndarray:
        """Return which lanes hold a token."""
        return ~np.isnan(self.vectors[:, 0])

    @property
    def lengths(self) -> np.ndarray:
        """Return the length of each lane's vector."""
        return np.linalg.norm(self.vectors, axis=-1)

    def likeness(self, lane: int) -> np.ndarray:
        """Return the cosine similarity of each lane's vector with that of one lane."""
        lengths = self.lengths
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.vectors @ self.vectors[lane] / (lengths * lengths[lane])


def tensor(trace: Trace, step: Step) -> np.ndarray | None:
    """Return a step's tensor for the first input of the batch, or None if it is not available."""
    value = tensor_of(trace, step.id)
    if value is None or not value.dim() or value.is_complex():
        return None
    array = as_array(value)
    if len(step.symbolic) == 3 and step.symbolic[1] == "B" and array.ndim == 3:
        return array[:, 0]
    return array[0]


def streams(trace: Trace, sequence: Sequence[Chapter]) -> list[Stream]:
    """Return the streams of a run, one for each tower that does not share the lanes of another."""
    towers = dict.fromkeys(chapter.part for chapter in sequence if chapter.kind == "block")
    tokens = {tower: count for tower in towers if (count := _count(sequence, tower))}
    out: list[Stream] = []
    fewer, hidden = unseen(trace)
    order = list(tokens)
    for tower in sorted(order, key=lambda name: name == fewer and bool(hidden)):
        lanes = _lanes(trace, tower, tokens[tower])
        host = next((stream for stream in out if tower == fewer and hidden and _fits(lanes, stream)), None)
        if host is None:
            out.append(Stream(lanes, {tower: list(range(len(lanes)))}))
        else:
            host.slots[tower] = [host.lanes.index(lane) for lane in lanes]
    return sorted(out, key=lambda stream: min(order.index(tower) for tower in stream.slots))


def _count(sequence: Sequence[Chapter], tower: str) -> int:
    """Return how many tokens each block of a tower returns; 0 where number or width differ among blocks."""
    blocks = [chapter.steps[-1] for chapter in sequence if chapter.part == tower and chapter.kind in ("block", "cross")]
    shapes = {(_tokens(step), step.shape[-1]) if len(step.shape) == 3 else (0, 0) for step in blocks}
    return shapes.pop()[0] if len(shapes) == 1 else 0


def _fits(lanes: Sequence[Lane], stream: Stream) -> bool:
    return set(lanes) <= set(stream.lanes)


def _lanes(trace: Trace, tower: str, tokens: int) -> list[Lane]:
    """Return the lane of each token of a tower."""
    part, _, later = tower.partition("/")
    all_places = {} if later else places(trace, part)
    if len(all_places) == tokens and max(all_places) >= tokens:  # the others join in a later block
        all_places = dict(enumerate(all_places[token] for token in sorted(all_places)))
    patches = {token: patch for token, patch in all_places.items() if token < tokens}
    lanes = [Lane(f"token {token + 1}", str(token + 1)) for token in range(tokens)]
    often = {word for word, count in Counter(trace.words).items() if count > 1}
    parted = () if later else segments(trace, part)
    if not parted and not later and len(trace.words) == tokens:
        parted = (Segment("text", 0, tokens, part),)
    for segment in parted:
        for place, token in enumerate(range(segment.start, min(segment.stop, tokens))):
            if segment.name == "text" and place < len(trace.words):
                mark = shorten(visible_token(str(trace.words[place])), WORD)
                number = f" ({place + 1})" if trace.words[place] in often else ""
                lanes[token] = Lane(f"“{mark}”{number}", mark, None, True)
            elif token not in patches:
                alone = segment.stop - segment.start == 1
                kind = "patch" if segment.name == "image" else segment.name
                name = kind if alone else f"{kind} {place + 1}"
                lanes[token] = Lane(name, name)
    columns = trace.picture.columns if trace.picture else 1
    for token, patch in patches.items():
        row, column = patch // columns + 1, patch % columns + 1
        lanes[token] = Lane(f"the patch in row {row}, column {column}", f"row {row}, column {column}", patch)
    return lanes


def stream_of(all_streams: Sequence[Stream], part: str) -> int | None:
    """Return the index of the stream that a tower's tokens are in, or None."""
    return next((index for index, stream in enumerate(all_streams) if part in stream.slots), None)


def snapshot(
    trace: Trace, chapter: Chapter, all_streams: Sequence[Stream], before: Snapshot | None, width: int
) -> Snapshot | None:
    """Return the stream after a chapter; None where the chapter does not end in one, or its tensors were not kept.

    `width` is the length of the vectors in the stream, `before` the snapshot before.
    """
    index = stream_of(all_streams, chapter.part)
    if index is None or chapter.kind in ("patches", "project", "answer"):
        return None
    stream = all_streams[index]
    for step in reversed(chapter.steps):
        slots = _slots(stream, chapter.part, step, width)
        if slots:
            vectors = tensor(trace, step)
            break
    else:
        return None
    if vectors is None or vectors.shape != (len(slots), width):  # an earlier step is not what the chapter leaves
        return None
    full = np.full((len(stream.lanes), width), np.nan, np.float32)
    same = before is not None and before.stream == index and before.vectors.shape == full.shape
    if before is not None and same and chapter.kind in ("tokens", "position", "sequence"):
        full[:] = before.vectors  # the lanes of other tokens go on as they were
    full[slots] = vectors
    if before is None or not same:
        return Snapshot(index, full, np.full(len(stream.lanes), np.nan, np.float32))
    change = _relative_change(before.vectors, full)
    middle = between(chapter)
    inside = tensor(trace, middle) if middle is not None else None
    if inside is not None and inside.shape == vectors.shape:
        attended = np.full_like(full, np.nan)
        attended[slots] = inside
        return Snapshot(
            index, full, change, _relative_change(before.vectors, attended), _relative_change(attended, full)
        )
    alone = chapter.records and not any(step.stage in MLP for step in chapter.steps)
    return Snapshot(index, full, change, change if alone else None)


def _relative_change(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return the length of what was added to each vector, as a share of the vector's length before."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.linalg.norm(after - before, axis=-1) / np.linalg.norm(before, axis=-1)


def _slots(stream: Stream, part: str, step: Step, width: int) -> list[int]:
    """Return the lanes of a step's tokens: of all of the tower's, or of its patches or its words alone."""
    if len(step.shape) != 3 or step.shape[-1] != width:
        return []
    slots = stream.slots[part]
    patches = [slot for slot, lane in enumerate(stream.lanes) if lane.patch is not None]
    words = [slot for slot, lane in enumerate(stream.lanes) if lane.word]
    return next((chosen for chosen in (slots, patches, words) if len(chosen) == _tokens(step)), [])


def _tokens(step: Step) -> int:
    """Return the number of tokens in a tensor of three axes, of which the batch may be the first or the second."""
    return step.shape[0] if step.symbolic[1:2] == ("B",) else step.shape[1]


def find_read(trace: Trace, sequence: Sequence[Chapter], all_streams: Sequence[Stream]) -> None:
    """Find the lane that is read in each stream: the one whose vector, or row of the answer, is used further.

    The mean of all tokens counts as read from all of them.
    """
    last: dict[str, Step] = {}
    for chapter in sequence:
        index = stream_of(all_streams, chapter.part)
        if index is None or chapter.kind not in ("read", "answer", "block", "cross"):
            continue
        stream, slots = all_streams[index], all_streams[index].slots[chapter.part]
        for step in chapter.steps:
            before = last.get(chapter.part)
            if len(step.shape) == 2 and before is not None and step.shape[-1] == before.shape[-1]:
                _find_vector(trace, stream, slots, before, step)
            if len(step.shape) == 3 and _tokens(step) == len(slots):
                last[chapter.part] = step
        if chapter.kind == "answer" and stream.read is None:
            stream.read = _row_of_result(trace, chapter, stream)


def _find_vector(trace: Trace, stream: Stream, slots: Sequence[int], before: Step, step: Step) -> None:
    """Find the stream and the tokens that a vector comes from: one of the vectors before it, or their mean."""
    rows, array = tensor(trace, before), tensor(trace, step)
    if rows is None or array is None or rows.shape[1:] != array.shape:
        return
    equal = np.flatnonzero((rows == array).all(-1))
    if not equal.size:  # what was recomputed is not rounded as the run was
        equal = np.flatnonzero(np.isclose(rows, array, rtol=1e-4, atol=1e-6).all(-1))
    if equal.size:
        stream.read = slots[int(equal[0])]
    elif stream.read is None:
        stream.mean_of = _pooled_count(stream, slots, rows, array) or stream.mean_of


def _pooled_count(stream: Stream, slots: Sequence[int], rows: np.ndarray, mean: np.ndarray) -> int:
    """Return the number of rows whose mean a vector is: all, or those of the patches alone; 0 for neither."""
    patches = [token for token, slot in enumerate(slots) if stream.lanes[slot].patch is not None]
    choices = (rows, rows[patches]) if patches else (rows,)
    return next((len(chosen) for chosen in choices if np.allclose(chosen.mean(0), mean, atol=1e-5)), 0)


def _row_of_result(trace: Trace, chapter: Chapter, stream: Stream) -> int | None:
    """Return the lane whose row of the logits has the probabilities of the result, or None."""
    shares = trace.result.get("probabilities")
    if trace.result.get("kind") not in ("next", "caption") or not shares:
        return None
    for step in chapter.steps:
        array = tensor(trace, step)
        if array is None or array.ndim != 2:
            continue
        odds = np.exp(array - array.max(-1, keepdims=True))
        odds = -np.sort(-odds / odds.sum(-1, keepdims=True))[:, : len(shares)]
        alike = np.abs(odds - np.asarray(shares[: odds.shape[1]], np.float32)).max(-1)
        row = int(alike.argmin())
        words = [slot for slot, lane in enumerate(stream.lanes) if lane.word]
        slots = stream.slots[chapter.part] if len(stream.slots[chapter.part]) == len(array) else words
        if alike[row] < 1e-3 and len(slots) == len(array):
            return slots[row]
    return None
