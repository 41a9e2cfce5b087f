"""The residual stream of a run as lanes: which token is in which lane, and what each chapter did to it.

A lane belongs to a patch, a word, or a token that is neither, such as CLS. Towers that work on the same patches share
their lanes, so that patches which one of them never sees are missing, and come back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tracer.attention import places, segments, unseen
from tracer.figures.film.chapters import Chapter
from tracer.figures.predictions.model_output import visible_token
from tracer.figures.tensors.heatmap import as_array
from tracer.record import Segment, Step, Trace
from tracer.utils.error_text import shorten

WORD = 24
"""Characters of a word on a lane."""


@dataclass(frozen=True)
class Lane:
    """One lane: its name in a sentence, its short name, and the patch that it is, counted from 0, or None."""

    name: str
    mark: str
    patch: int | None = None
    word: bool = False


@dataclass
class Stream:
    """The lanes of one tower, or of several that share them. `slots` has the lane of each token of each tower."""

    lanes: list[Lane]
    slots: dict[str, list[int]] = field(default_factory=dict)
    read: int | None = None
    """The lane whose token is read for the answer, found in the tensors; None where it is not one alone."""
    pooled: bool = False
    """Whether the mean of the tokens is read."""


@dataclass(frozen=True)
class Snapshot:
    """The stream after a chapter: the vector of each lane, NaN in a lane that holds no token then.

    `change` is the length of what the chapter added to each vector, as a share of the vector's length before.
    """

    stream: int
    vectors: np.ndarray
    change: np.ndarray

    @property
    def present(self) -> np.ndarray:
        """Return which lanes hold a token."""
        return ~np.isnan(self.vectors[:, 0])

    def likeness(self, lane: int) -> np.ndarray:
        """Return the cosine of each lane's vector with that of one lane."""
        lengths = np.linalg.norm(self.vectors, axis=-1)
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.vectors @ self.vectors[lane] / (lengths * lengths[lane])


def tensor(trace: Trace, step: Step) -> np.ndarray | None:
    """Return a step's tensor for the first input of the batch, or None if the run did not keep it."""
    value = trace.value(step)
    if value is None or not value.dim() or value.is_complex():
        return None
    array = as_array(value)
    if len(step.symbolic) == 3 and step.symbolic[1] == "B" and array.ndim == 3:
        return array[:, 0]
    return array[0]


def streams(trace: Trace, sequence: Sequence[Chapter]) -> list[Stream]:
    """Return the streams of a run, one for each tower that does not share the lanes of another."""
    tokens: dict[str, int] = {}
    for chapter in sequence:
        for record in chapter.records:
            tokens[chapter.part] = max(tokens.get(chapter.part, 0), record.queries)
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


def _fits(lanes: Sequence[Lane], stream: Stream) -> bool:
    return set(lanes) <= set(stream.lanes)


def _lanes(trace: Trace, tower: str, tokens: int) -> list[Lane]:
    """Return the lane of each token of a tower."""
    part, _, later = tower.partition("/")
    patches = {} if later else {token: patch for token, patch in places(trace, part).items() if token < tokens}
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
                name = segment.name if alone else f"{segment.name} {place + 1}"
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
    """Return the stream after a chapter; None where the chapter leaves none, or its tensors were not kept.

    `width` is the length of the vectors in the stream, `before` the snapshot before.
    """
    index = stream_of(all_streams, chapter.part)
    if index is None or chapter.kind in ("patches", "project", "answer"):
        return None
    stream = all_streams[index]
    for step in reversed(chapter.steps):
        slots = _slots(stream, chapter.part, step, width)
        vectors = tensor(trace, step) if slots else None
        if slots and vectors is not None and vectors.ndim == 2 and vectors.shape == (len(slots), width):
            break
    else:
        return None
    full = np.full((len(stream.lanes), width), np.nan, np.float32)
    if before is not None and before.stream == index and chapter.kind in ("tokens", "position", "sequence"):
        full[:] = before.vectors  # the lanes of other tokens go on as they were
    full[slots] = vectors
    change = np.full(len(stream.lanes), np.nan, np.float32)
    if before is not None and before.stream == index:
        with np.errstate(invalid="ignore", divide="ignore"):
            change = np.linalg.norm(full - before.vectors, axis=-1) / np.linalg.norm(before.vectors, axis=-1)
    return Snapshot(index, full, change)


def _slots(stream: Stream, part: str, step: Step, width: int) -> list[int]:
    """Return the lanes of a step's tokens: of all of the tower's, or of its patches or its words alone."""
    if len(step.shape) != 3 or step.shape[-1] != width:
        return []
    slots = stream.slots[part]
    patches = [slot for slot, lane in enumerate(stream.lanes) if lane.patch is not None]
    words = [slot for slot, lane in enumerate(stream.lanes) if lane.word]
    tokens = step.shape[0] if step.symbolic[1:2] == ("B",) else step.shape[1]
    return next((chosen for chosen in (slots, patches, words) if len(chosen) == tokens), [])


def find_read(trace: Trace, sequence: Sequence[Chapter], all_streams: Sequence[Stream]) -> None:
    """Find the lane that is read in each stream: its token's vector, or its row of the answer, is what goes on.

    The mean of all tokens counts as read from all of them.
    """
    for chapter in sequence:
        index = stream_of(all_streams, chapter.part)
        if index is None or chapter.kind not in ("read", "answer", "block", "cross"):
            continue
        stream, rows = all_streams[index], None
        for step in chapter.steps:
            array = tensor(trace, step)
            if array is None:
                continue
            if rows is not None and array.shape == rows.shape[1:]:
                equal = np.flatnonzero((rows == array).all(-1))
                if equal.size:
                    stream.read = stream.slots[chapter.part][int(equal[0])]
                stream.pooled |= not equal.size and bool(np.allclose(rows.mean(0), array, atol=1e-5))
            rows = array if array.ndim == 2 and len(array) == len(stream.slots[chapter.part]) else rows
        if chapter.kind == "answer" and stream.read is None:
            stream.read = _row_of_result(trace, chapter, stream)


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
