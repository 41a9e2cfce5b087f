"""Run as a film: its beats in order, derived from the trace alone.

Each beat has a title, a sentence computed from the run, the equation of one step with its shape and its proof, and
what the stage shows. All steps of the run are in one beat each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tracer.attention import windows
from tracer.figures.cell_payload import with_tensors
from tracer.figures.film import sentences
from tracer.figures.film.chapters import (
    Chapter,
    Snapshot,
    Stream,
    between,
    chapters,
    find_read,
    snapshot,
    stream_of,
    streams,
)
from tracer.figures.film.sentences import Caption, Scene, closed_keys
from tracer.figures.tensors import as_array
from tracer.record import (
    ATTENTION_WEIGHTS,
    CHANGED_SUFFIX,
    INPUT,
    LOGITS,
    SCORES,
    AttentionRecord,
    Step,
    TensorRecord,
    Trace,
)

LABELS = {
    "patches": "Patches",
    "position": "Position",
    "norm": "Norm",
    "visible": "Hide",
    "return": "Return",
    "read": "Read",
    "project": "Project",
    "answer": "Answer",
    "modules": "Modules",
}
"""The names of beats on the scrubber; those of others depend on what they show."""
SHOWN_BEFORE = SCORES, ATTENTION_WEIGHTS
"""Roles of what attention weights are computed from."""
CELLS = 1 << 24
"""Weights of one attention, over all heads, that are computed at once."""


@dataclass(frozen=True)
class Beat:
    """One beat: its texts, the equation below, and what the stage shows.

    `kind` is that of the chapter, or "photo", "text" or "input". `stream` is the index of the stream that it is about,
    `record` the attention whose threads run, `snapshot` the state of the stream when it ends; `focus` is the lane that
    is looked at. `shown` is the step of the equation, and `also` the step of scores, or of weights before a change,
    that stands before it.
    """

    kind: str
    label: str
    caption: Caption
    symbol: str = ""
    latex: str = ""
    symbolic: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    shown: Step | None = None
    also: Step | None = None
    steps: tuple[str, ...] = ()
    stream: int | None = None
    snapshot: Snapshot | None = None
    record: AttentionRecord | None = None
    focus: int = 0
    number: int = 0
    part: str = ""
    across: tuple[int, list[int]] | None = None
    """The stream and the lanes of the keys, where they are those of another tower."""
    weights: np.ndarray | None = None
    """The mean of the attention over its heads, `[S_q, S_k]`, where it was computed."""
    cells: np.ndarray | None = None
    """The numbers of an input that the stage draws, of one axis or two."""


@dataclass(frozen=True)
class Storyboard:
    """Beats of a run and the streams that they show."""

    trace: Trace
    beats: tuple[Beat, ...]
    streams: tuple[Stream, ...] = field(default_factory=tuple)


def storyboard(trace: Trace, prove: bool = True) -> Storyboard:
    """Return the beats of a run; `prove` says whether the equations that they show are verified where their proof is
    still to come."""
    sequence = chapters(trace)
    shown = [_shown_step(chapter) for chapter in sequence]
    equations = [step for chapter, step in zip(sequence, shown, strict=True) for step in (_scores(chapter, step), step)]
    waiting = [step.id for step in equations if step is not None and step.pending]
    if prove and waiting and trace.prover is not None:
        trace = trace.prove(waiting)
        sequence = chapters(trace)
        shown = [_shown_step(chapter) for chapter in sequence]
    kept, trace = trace, with_tensors(trace, _drawn_steps(sequence))
    all_streams = streams(trace, sequence)
    find_read(trace, sequence, all_streams)
    widths = _widths(sequence)
    blocks = {chapter.part: chapter.number for chapter in sequence if chapter.kind == "block"}
    beats, last, own = _inputs(trace), {}, {}
    for chapter, step in zip(sequence, shown, strict=True):
        index = stream_of(all_streams, chapter.part)
        stream = all_streams[index] if index is not None else None
        before = last.get(index)
        after = snapshot(trace, chapter, all_streams, before, widths.get(chapter.part, 0))
        record = next((each for each in chapter.records if drawable(trace, each, stream, chapter.part)), None)
        across = None
        if chapter.kind == "cross" and record is None:
            across = _keys(chapter.records[0], all_streams, chapter.part)
            record = chapter.records[0] if across and not chapter.records[0].problem else None
        focus = _focus(trace, stream, chapter.part) if stream else 0
        heads, weights = None, own.get(chapter.part)
        if chapter.kind in ("block", "cross"):
            heads = _all_weights(trace, record)
            weights = None if heads is None else heads.mean(0)
        if chapter.kind == "block":
            own[chapter.part] = weights
        query = stream.slots[chapter.part].index(focus) if stream and heads is not None else None
        scene = Scene(
            trace,
            chapter,
            stream,
            before,
            after,
            weights,
            focus,
            blocks.get(chapter.part, 0),
            [all_streams[across[0]].lanes[slot] for slot in across[1]] if across else (),
            heads[:, query] if heads is not None and query is not None else None,
            closed_keys(trace, record, query) if record and record.mask != "none" and query is not None else None,
        )
        beats.append(
            Beat(
                chapter.kind,
                _label(chapter, scene, len(blocks) > 1),
                sentences.caption(scene, step),
                step.symbol if step else "",
                step.latex if step else "",
                step.symbolic if step else (),
                step.shape if step else (),
                step,
                _scores(chapter, step),
                tuple(each.id for each in chapter.steps),
                index,
                after,
                record,
                focus,
                chapter.number,
                chapter.part,
                across,
                weights if chapter.kind in ("block", "cross") else None,
            )
        )
        if after is not None:
            last[index] = after
    if not any(beat.snapshot is not None for beat in beats):  # nothing that could be drawn as lanes
        beats, all_streams = [replace(beat, stream=None, record=None) for beat in beats], []
    elif beats[0].kind == "modules" or (beats[0].kind not in ("photo", "text") and beats[0].snapshot is None):
        # what goes in is nowhere else on the stage
        beats = [*_other_input(trace), *beats]
    return Storyboard(kept, tuple(beats), tuple(all_streams))


def _drawn_steps(sequence: Sequence[Chapter]) -> set[str]:
    """Return the steps whose tensors a film reads: the results of each chapter and of a block's attention, and all from
    which the answer is read."""
    whole = ("read", "project", "answer")
    middle = {step.id for chapter in sequence if (step := between(chapter)) is not None}
    return middle | {step.id for chapter in sequence for step in chapter.steps[0 if chapter.kind in whole else -1 :]}


def _keys(record: AttentionRecord, all_streams: Sequence[Stream], part: str) -> tuple[int, list[int]] | None:
    """Return the stream of an earlier tower with as many tokens as an attention has keys, and their lanes, or None."""
    towers = [(index, name, slots) for index, stream in enumerate(all_streams) for name, slots in stream.slots.items()]
    alike = [(index, slots) for index, name, slots in towers if name != part and len(slots) == record.keys]
    return alike[-1] if alike else None


def drawable(trace: Trace, record: AttentionRecord, stream: Stream | None, part: str) -> bool:
    """Return whether an attention is self-attention that can be drawn: its weights are available, and its queries are
    its keys."""
    return (
        stream is not None
        and not record.problem
        and record.over == "tokens"
        and record.queries == record.keys == len(stream.slots.get(part, ()))
        and windows(trace, record) == 1
    )


def heads_weights(trace: Trace, record: AttentionRecord, query: int | None = None) -> np.ndarray:
    """Return the weights of an attention for the first input, `[h, S_q, S_k]`, or of one query, `[h, S_k]`."""
    layer = [each for each in trace.attentions if each.part == record.part].index(record)
    return as_array(trace.attention(layer, query=query, part=record.part)[0])


def _all_weights(trace: Trace, record: AttentionRecord | None) -> np.ndarray | None:
    """Return the weights of an attention, `[h, S_q, S_k]`, None without one or where it is too large."""
    if record is None or record.heads * record.queries * record.keys > CELLS:
        return None
    return heads_weights(trace, record)


def _widths(sequence: Sequence[Chapter]) -> dict[str, int]:
    """Return the length of the vectors in each tower's stream: that of the last step of its blocks."""
    return {
        chapter.part: chapter.steps[-1].shape[-1]
        for chapter in sequence
        if chapter.kind in ("block", "cross") and chapter.steps[-1].shape
    }


def _shown_step(chapter: Chapter) -> Step | None:
    """Return the step whose equation a beat shows: the attention weights of a block, as a change left them, else its
    last notable line."""
    steps = chapter.steps
    if chapter.kind in ("block", "cross"):
        weights = next((step for step in steps if step.role == ATTENTION_WEIGHTS), None)
        changed = weights and next((step for step in steps if step.id == weights.id + CHANGED_SUFFIX), None)
        return changed or weights or steps[-1]
    if chapter.kind == "read":
        return steps[-1]
    if chapter.kind == "answer":
        return next((step for step in reversed(steps) if step.role == LOGITS), steps[-1])
    return steps[-1] if steps else None


def _scores(chapter: Chapter, weights: Step | None) -> Step | None:
    """Return the step of the scores that a block's attention weights are the softmax of, or of the weights that a
    change made them from; None where their equation reads neither."""
    if weights is None or chapter.kind not in ("block", "cross") or weights.role != ATTENTION_WEIGHTS:
        return None
    before = reversed(chapter.steps[: chapter.steps.index(weights)])
    return next((step for step in before if step.role in SHOWN_BEFORE and step.id in weights.reads), None)


def _input_tensors(trace: Trace) -> tuple[dict[str, TensorRecord], dict[str, str]]:
    """Return the input tensors of the model, and their symbols, by names such as "input image"."""
    letters = {name.of: name.symbol for step in trace.steps for name in step.names if name.of.startswith(INPUT)}
    tensors = {
        str(record.maker): record
        for op in reversed(trace.ops)
        for record in op.inputs
        if str(record.maker).startswith(INPUT)
    }
    return tensors, letters


def _other_input(trace: Trace) -> list[Beat]:
    """Return the beat of an input other than a photo or a text, such as a sound; none without such an input."""
    tensors, letters = _input_tensors(trace)
    name = sentences.name_of(tensors)
    if name is None:
        return []
    record, symbol, cells = tensors[name], letters.get(name, ""), sentences.values(trace, name)
    caption = sentences.input_caption(cells, record.shape)
    return [Beat("input", "Input", caption, symbol, symbol, record.symbolic or (), record.shape, cells=cells)]


def _inputs(trace: Trace) -> list[Beat]:
    """Return the beats of the photo and of the text, by the model's input tensors."""
    tensors, letters = _input_tensors(trace)
    beats: list[Beat] = []
    image = next((name for name, record in tensors.items() if len(record.shape) == 4 and trace.picture), None)
    ids = [name for name, record in tensors.items() if trace.words and len(trace.words) in record.shape]
    text = next((name for name in ids if "int" in tensors[name].dtype), None)
    for kind, label, name in (("photo", "Photo", image), ("text", "Text", text)):
        if name is None:
            continue
        record = tensors[name]
        vocabulary = next((size.value for size in trace.symbols if size.name == "V"), None)
        caption = (
            sentences.photo(trace, record.shape)
            if kind == "photo"
            else sentences.words(trace, record.shape, vocabulary)
        )
        symbol = letters.get(name, "")
        symbolic = record.symbolic or tuple("?" for _ in record.shape)
        beats.append(Beat(kind, label, caption, symbol, symbol, symbolic, record.shape))
    return beats


def _label(chapter: Chapter, scene: Scene, several: bool) -> str:
    """Return the name of a chapter on the scrubber."""
    if chapter.kind in ("block", "cross"):
        return f"{chapter.number}×" if chapter.kind == "cross" else str(chapter.number)
    if chapter.kind == "tokens":
        words = scene.stream is not None and any(lane.word for lane in scene.stream.lanes)
        return "Embed" if scene.stream is None or (words and not _of_patches(chapter)) else "Tokens"
    if chapter.kind == "sequence" and scene.after is not None and scene.before is not None:
        new = np.flatnonzero(scene.after.present & ~scene.before.present)
        return scene.name(int(new[0])) if new.size == 1 else "Join"
    if chapter.kind == "answer" and scene.trace.result.get("kind") == "next":
        return "Next token"
    return LABELS.get(chapter.kind, chapter.kind.capitalize())


def _of_patches(chapter: Chapter) -> bool:
    return any(size in ("N", "H*W/P**2") for step in chapter.steps for size in step.symbolic)


def _focus(trace: Trace, stream: Stream, part: str) -> int:
    """Return the lane in focus: the one that is read, else that of the most informative patch, else the first.

    A lane that the tower has no token in gives way to the nearest that it has.
    """
    slots = stream.slots[part]
    lane = stream.read if stream.read is not None else _telling(trace, stream)
    if lane in slots:
        return lane
    columns = trace.picture.columns if trace.picture else 1

    def distance(slot: int) -> float:
        here, there = stream.lanes[slot].patch, stream.lanes[lane].patch
        if here is None or there is None:
            return abs(slot - lane)
        return np.hypot(here // columns - there // columns, here % columns - there % columns)

    return min(slots, key=distance)


def _telling(trace: Trace, stream: Stream) -> int:
    """Return the lane of the patch that is hardest to predict, or has the most pixels of a rare class, or the
    largest number of a map; else 0."""
    picture, result = trace.picture, trace.result
    lanes = {lane.patch: slot for slot, lane in enumerate(stream.lanes) if lane.patch is not None}
    if picture is None or not lanes:
        return 0
    if result.get("kind") == "reconstruction":
        patch = int(np.asarray(result["anomaly"], float).argmax())
    elif result.get("kind") == "map":
        cells = np.asarray(result["map"], float)
        row, column = np.unravel_index(int(cells.argmax()), cells.shape)
        patch = row * picture.rows // cells.shape[0] * picture.columns + column * picture.columns // cells.shape[1]
    elif result.get("kind") == "labels":
        labels = np.asarray(result["labels"])
        labels = labels[0] if labels.ndim == 3 else labels
        rare = labels != np.bincount(labels.ravel()).argmax()
        high, wide = rare.shape[0] // picture.rows, rare.shape[1] // picture.columns
        cells = rare[: high * picture.rows, : wide * picture.columns]
        patch = int(cells.reshape(picture.rows, high, picture.columns, wide).sum((1, 3)).argmax())
    else:
        patch = next(iter(lanes))
    return lanes.get(patch, 0)
