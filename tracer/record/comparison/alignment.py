"""Alignment of the lines of two runs: by id, else by their role in the block, else by their position."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence

from tracer.record.steps import CHANGED_SUFFIX, Step

StepPair = tuple[Step | None, Step | None]
"""A line of each run; None where the other run has none."""


def align(first: Sequence[Step], second: Sequence[Step]) -> list[StepPair]:
    """Return the lines of two runs in pairs, in the order of the first run; an unpaired line comes after its
    predecessor in its own run.

    Two models name their modules as they like, so lines without an equal id are the same where layer, stage and symbol
    are, or layer, stage and title; what is left between two aligned lines is paired by its shape. A line of a change is
    aligned by its id alone.
    """
    partner: dict[str, str] = {}
    for key in (_id, _symbol, _title):
        _pair(partner, first, second, key, key)
    _pair(partner, first, second, *_place_keys(partner, first, second))
    return list(_in_order(partner, first, second))


Key = Callable[[Step], Hashable]


def _id(step: Step) -> Hashable:
    return step.id


def _symbol(step: Step) -> Hashable:
    return step.layer, step.stage, step.symbol


def _title(step: Step) -> Hashable:
    return step.layer, step.stage, step.title


def _pair(partner: dict[str, str], first: Sequence[Step], second: Sequence[Step], key: Key, second_key: Key) -> None:
    """Add the lines with equal keys that have no partner yet, several of one key in their order."""
    taken, waiting = set(partner.values()), defaultdict(list)
    for step in second:
        if step.id not in taken and (key is _id or not step.id.endswith(CHANGED_SUFFIX)):
            waiting[second_key(step)].append(step.id)
    for step in first:
        if step.id not in partner and (key is _id or not step.id.endswith(CHANGED_SUFFIX)) and waiting.get(key(step)):
            partner[step.id] = waiting[key(step)].pop(0)


def _place_keys(partner: dict[str, str], first: Sequence[Step], second: Sequence[Step]) -> tuple[Key, Key]:
    """Return keys of lines without a partner: the pair before them, their layer, stage and shape."""
    before = _line_before(first, partner)
    after = _line_before(second, {theirs: ours for ours, theirs in partner.items()})
    return (
        lambda step: (partner.get(before[step.id]), step.layer, step.stage, step.symbolic),
        lambda step: (after[step.id] or None, step.layer, step.stage, step.symbolic),
    )


def _line_before(steps: Sequence[Step], partner: dict[str, str]) -> dict[str, str]:
    """Return the last line with a partner before each line, "" where there is none."""
    before, last = {}, ""
    for step in steps:
        before[step.id] = last
        last = step.id if step.id in partner else last
    return before


def _in_order(partner: dict[str, str], first: Sequence[Step], second: Sequence[Step]) -> Iterator[StepPair]:
    theirs = {step.id: step for step in second}
    taken, alone, last = set(partner.values()), defaultdict(list), ""
    for step in second:
        if step.id in taken:
            last = step.id
        else:
            alone[last].append(step)
    yield from ((None, step) for step in alone[""])
    for step in first:
        partner_id = partner.get(step.id, "")
        yield step, theirs.get(partner_id)
        yield from ((None, step) for step in alone[partner_id] if partner_id)
