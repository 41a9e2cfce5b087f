"""Steps of a run in chapters: each step in one of them, in the order in which the film shows them.

A chapter has a kind, which follows from stages, roles, layers and shapes: "patches", "tokens", "sequence" (tokens
joined into a longer sequence), "position", "norm" (of what enters the blocks), "visible" (some tokens left out),
"block", "cross" (the rest of a block, from its attention to another tower on), "return" (tokens put back), "read" (what
is taken from the last block), "project" (what a tower returns), "answer". What fits none of them is "modules", never
left out: steps of stages that no film knows, and ops without a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from tracer.ops import is_layout
from tracer.record import (
    ATTENTION_WEIGHTS,
    INPUT,
    RESIDUAL_STREAM,
    SELECTED_TOKENS,
    SEQUENCE,
    AttentionRecord,
    Op,
    Step,
    Trace,
)

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
    names: Mapping[str, list[Op]] = {
        name: list(run) for name, run in groupby(loose, key=lambda op: op.module.partition(".")[0])
    }
    yield from (Chapter("modules", ops=tuple(run), start=run[0].index) for run in names.values())


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
