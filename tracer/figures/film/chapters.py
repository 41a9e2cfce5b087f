"""Steps of a run in chapters: each step in one of them, in the order in which the film shows them.

A chapter has a kind, which follows from stages, roles, layers and shapes: "patches", "tokens", "sequence" (tokens
joined into a longer sequence), "position", "norm" (of what enters the blocks), "visible" (some tokens left out),
"block", "cross" (the rest of a block, from its attention to another tower on), "return" (tokens put back), "read" (what
is taken from the last block), "project" (what a tower returns), "answer". What fits none of them is "modules", never
left out: steps of stages that no film knows, and ops without a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np

from tracer.attention import places, segments, unseen
from tracer.figures.cell_payload import tensor_of
from tracer.figures.predictions import visible_token
from tracer.figures.tensors import as_array
from tracer.ops import is_layout
from tracer.record import (
    ATTENTION_WEIGHTS,
    INPUT,
    RESIDUAL_STREAM,
    SELECTED_TOKENS,
    SEQUENCE,
    AttentionRecord,
    Op,
    Segment,
    Step,
    Trace,
)
from tracer.utils.errors import shorten

ENTRY = {"patches": "patches", "embedding": "tokens", "position": "position"}
"""Kinds of chapters by the stages of their steps, outside of blocks."""
ENTRY_ROLES = {SEQUENCE: "sequence", SELECTED_TOKENS: "visible"}
"""Kinds of chapters by the roles of such steps, where their stage is not enough."""
MLP = ("mlp", "experts")
"""Stages of what follows the attention in a block."""
BLOCK = ("attention", "mlp")
"""Stages that make a block of steps which the run does not count as blocks, as in a model of one."""


@dataclass(frozen=True)
class Chapter:
    """Consecutive steps of one kind, or `ops` that belong to no step.

    `part` is the tower that the chapter is of, and `records` are the attentions inside. `number` counts the blocks of
    a tower from 1. Where the layers of a run begin anew, so does a tower, whose name then ends in `/2`.
    """

    kind: str
    steps: tuple[Step, ...] = ()
    part: str = ""
    records: tuple[AttentionRecord, ...] = ()
    number: int = 0
    ops: tuple[Op, ...] = ()
    start: int = 0
    """The index of its first op, those of constants and masks beside the main way aside."""


@dataclass
class _Group:
    kind: str
    layer: int | None
    start: int
    steps: list[Step] = field(default_factory=list)


def chapters(trace: Trace) -> list[Chapter]:
    """Return the chapters of a run, in the order in which they ran."""
    main, beside = _sides(trace)
    groups: list[_Group] = []
    for kind, layer, step in _kinds(main):
        last = groups[-1] if groups else None
        if last is None or (last.kind, last.layer) != (kind, layer):
            groups.append(_Group(kind, layer, _first_op(step)))
        groups[-1].steps.extend([*beside.pop(step.id, ()), step])
    groups += [_Group("modules", None, _first_op(left[0]), left) for left in beside.values()]
    sequence = [_with_attention(trace, Chapter(group.kind, tuple(group.steps), start=group.start)) for group in groups]
    sequence = sorted([*sequence, *_uncovered_chapters(trace)], key=lambda chapter: chapter.start)
    return list(_number_repeats(sequence))


def _sides(trace: Trace) -> tuple[list[Step], dict[str, list[Step]]]:
    """Return the steps of the main path, and the step of it before which each of the others comes.

    Those are masks, tables of angles and the like: at most two axes, and made of nothing on the main way. A mask may
    have an axis for the batch and one for the heads besides.
    """
    layered = any(step.layer is not None for step in trace.steps)
    users: dict[str, list[str]] = {}
    for user, operands in trace.producers.items():
        for operand in operands:
            users.setdefault(operand, []).append(user)
    off: set[str] = set()
    for step in trace.steps:
        operands = [operand for operand in trace.producers[step.id] if not operand.startswith(INPUT)]
        masks = layered and step.stage in ("attention", "other")
        sizes = step.symbolic or ("?",) * len(step.shape)
        axes = [size for size in sizes if not masks or size not in ("1", "B")]
        if step.layer is None and len(axes) <= 2 and all(operand in off for operand in operands):
            off.add(step.id)
    main = [step for step in trace.steps if step.id not in off]
    order = {step.id: place for place, step in enumerate(main)}
    beside: dict[str, list[Step]] = {}
    for step in trace.steps:
        if step.id in off:
            ahead, visited = [step.id], set()
            while ahead:  # over other lines of this kind to the first line of the main way
                ahead = [user for id in ahead for user in users.get(id, ()) if user not in visited]
                visited.update(ahead)
            first = min((id for id in visited if id in order), key=order.__getitem__, default="")
            beside.setdefault(first, []).append(step)
    return main, beside


def _first_op(step: Step) -> int:
    return min(step.ops, default=step.inside or 0)


def _kinds(steps: Sequence[Step]) -> Iterator[tuple[str, int | None, Step]]:
    """Yield (kind, layer, step) of the main path."""
    inside = [step.layer is not None for step in steps]
    first = next((place for place, block in enumerate(inside) if block), len(steps))
    last = len(steps) - 1 - next((place for place, block in enumerate(reversed(inside)) if block), len(steps))
    width, leaving, kind = 0, "", ""
    for place, step in enumerate(steps):
        before = steps[place - 1].shape if place else ()
        later = [follower.stage for follower in steps[place + 1 :]]
        if step.layer is not None:
            width, leaving, kind = step.shape[-1] if 0 < len(step.shape) <= 3 else 0, "", "block"
            yield kind, step.layer, step
            continue
        ahead = place < last
        compared = "other" in later and "head" in later  # with what another tower returns
        unread = first > last and any(stage in BLOCK for stage in later)
        enters = kind in ("tokens", "sequence", "position", "norm")
        if step.stage in BLOCK and first <= last < place:  # attention that gathers what the blocks left
            kind = "read"
        elif step.stage in BLOCK or (step.stage == "norm" and unread):
            kind = "block"
            width = step.shape[-1] if step.shape else 0
        elif step.stage in ENTRY:
            kind, leaving = ENTRY_ROLES.get(step.role, ENTRY[step.stage]), ""
        elif step.stage == "norm" and enters and ahead and step.shape == before:
            kind = "norm"
        elif (step.stage == "norm" and place > first and ahead and _stage_after_norms(steps, place) == "decoder") or (
            step.stage == "decoder" and ahead
        ):
            kind = leaving = "return"
        elif step.stage in ("norm", "head", "decoder") and (place > first or width):
            same = step.shape[-1:] == (width,) and len(step.shape) <= 3
            kind = leaving or ("read" if same else "project" if ahead or compared or step.stage == "norm" else "answer")
            leaving = leaving if kind == "read" or step.stage == "norm" or compared else kind
        elif step.stage in ("head", "decoder"):
            kind = "project" if ahead or compared else "answer"
        elif step.stage == "other" and first <= last < place and "head" in later:
            kind = "read" if step.shape[-1:] == (width,) else "project"
        else:
            kind = "modules"
        yield kind, None, step


def _stage_after_norms(steps: Sequence[Step], place: int) -> str:
    return next((step.stage for step in steps[place:] if step.stage != "norm"), "")


def _with_attention(trace: Trace, chapter: Chapter) -> Chapter:
    """Return a chapter with the attentions that its steps belong to."""
    ops = {index for step in chapter.steps for index in step.ops}
    fused = {step.inside for step in chapter.steps}
    inside = tuple(record for record in trace.attentions if record.op in ops or record.op in fused)
    return replace(chapter, records=inside, part=inside[0].part if inside else "")


def _uncovered_chapters(trace: Trace) -> Iterator[Chapter]:
    """Yield the ops that compute and belong to no step, those of one module after another together."""
    loose = [op for op in trace.ops if op.step is None and not is_layout(op.op)]
    if trace.steps:
        pairs = groupby(enumerate(loose), key=lambda pair: (pair[1].module, pair[1].index - pair[0]))
        for _, run in pairs:
            ops = tuple(op for _, op in run)
            yield Chapter("modules", ops=ops, start=ops[0].index)
        return
    for _, run in groupby(loose, key=lambda op: op.module.partition(".")[0]):
        ops = tuple(run)
        yield Chapter("modules", ops=ops, start=ops[0].index)


def _number_repeats(sequence: Sequence[Chapter]) -> Iterator[Chapter]:
    """Yield the chapters with their towers and the block numbers within each."""
    towers, counts = _towers(sequence), dict[str, int]()
    for place, chapter in enumerate(sequence):
        entry = chapter.kind not in ("block", "read", "project", "answer")
        around = [*range(place, len(sequence)), *range(place - 1, -1, -1)]
        back = [*range(place, -1, -1), *range(place + 1, len(sequence))]
        tower = next((towers[near] for near in (around if entry else back) if near in towers), "")
        if chapter.kind != "block":
            yield replace(chapter, part=tower)
            continue
        for once in _passes(chapter):
            counts[tower] = counts.get(tower, 0) + 1
            for part in _split(once):
                yield replace(part, part=tower, number=counts[tower])


def _towers(sequence: Sequence[Chapter]) -> dict[int, str]:
    """Return the tower of each block, by its position: that of its attention; a new one where layer numbers restart."""
    towers: dict[int, str] = {}
    tower, last = "", None
    for place, chapter in enumerate(sequence):
        if chapter.kind != "block":
            continue
        layer, (base, _, number) = chapter.steps[-1].layer, tower.partition("/")
        own = chapter.records[0].part if chapter.records else base
        if own != base:
            tower = own
        elif last is not None and layer is not None and layer <= last:
            tower = f"{base}/{int(number or 1) + 1}"
        towers[place], last = tower, layer
    return towers


def _passes(chapter: Chapter) -> list[Chapter]:
    """Return a block once for each time that it ran: weights that all blocks share run in every one of them."""
    records = chapter.records
    if len(records) < 2 or len({(record.queries, record.keys) for record in records}) > 1:
        return [chapter]
    steps, cuts = chapter.steps, [0]
    for record in records[1:]:
        weights = next((at for at, step in enumerate(steps) if record.op in (step.inside, *step.ops)), 0)
        while weights and steps[weights - 1].stage in ("attention", "position"):
            weights -= 1
        ends = [at + 1 for at, step in enumerate(steps[:weights]) if step.stage == steps[-1].stage]
        cuts.append(ends[-1] if ends else 0)
    if sorted(set(cuts)) != cuts:
        return [chapter]
    parts = zip(cuts, [*cuts[1:], len(steps)], records, strict=True)
    return [replace(chapter, steps=steps[start:end], records=(record,)) for start, end, record in parts]


def _split(chapter: Chapter) -> list[Chapter]:
    """Split a block in two where it attends to its own tokens first, and then to those of another tower."""
    self_attention, cross_attention = (*chapter.records, None, None)[:2]
    if (
        self_attention is None
        or cross_attention is None
        or self_attention.queries != self_attention.keys
        or cross_attention.keys == cross_attention.queries
    ):
        return [chapter]
    steps = chapter.steps
    weights = next((at for at, step in enumerate(steps) if cross_attention.op in (step.inside, *step.ops)), 0)
    sums = [
        at
        for at, step in enumerate(steps[:weights])
        if step.stage in ("attention", "norm") and _is_stream(step, chapter)
    ]
    if not sums:
        return [chapter]
    cut = sums[-1] + 1
    first = replace(chapter, steps=steps[:cut], records=(self_attention,))
    return [first, replace(chapter, kind="cross", steps=steps[cut:], records=(cross_attention,))]


def between(chapter: Chapter) -> Step | None:
    """Return the step of the stream between a block's attention and its MLP; None where these are not one after the
    other, as in a block in which both read the same vectors."""
    steps = chapter.steps
    states = [at for at, step in enumerate(steps) if _is_stream(step, chapter)]
    weights = next((at for at, step in enumerate(steps) if step.role == ATTENTION_WEIGHTS), len(steps))
    for at in states:
        before, after = ({step.stage for step in part} for part in (steps[: at + 1], steps[at + 1 :]))
        if weights < at and before.isdisjoint(MLP) and after.intersection(MLP) and "attention" not in after:
            return steps[at]
    return None


def _is_stream(step: Step, chapter: Chapter) -> bool:
    """Return whether a step is the residual stream, in the shape of the block's output."""
    return step.role == RESIDUAL_STREAM and step.shape == chapter.steps[-1].shape


# Residual stream of a run as lanes: which token is in which lane, and what each chapter did to it.
#
# A lane belongs to a patch, a word, or a token that is neither, such as CLS. Towers that work on the same patches share
# their lanes, so that patches which one of them never sees are missing, and come back.

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
        hosts = (stream for stream in out if tower == fewer and hidden and set(lanes) <= set(stream.lanes))
        host = next(hosts, None)
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
