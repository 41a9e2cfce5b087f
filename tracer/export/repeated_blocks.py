"""Book as it is printed: the steps of repeated blocks once, × L."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tracer.record import Step, Trace
from tracer.record.repeats import Repeat, at_any


def as_printed(trace: Trace) -> Iterator[tuple[Repeat | None, list[Step]]]:
    """Yield the printed book: runs of single steps, with None, and the steps of each repeat once, at any ℓ.

    A step of a repeat has the largest error of all its iterations.
    """
    at = 0
    for repeat in trace.repeats:
        if at < repeat.start:
            yield None, list(trace.steps[at : repeat.start])
        at = repeat.start + repeat.times * repeat.length
        yield repeat, [_merge(trace.steps, repeat, place) for place in range(repeat.length)]
    if at < len(trace.steps):
        yield None, list(trace.steps[at:])


def repeat_of(trace: Trace, step: Step) -> Repeat | None:
    """Return the repeat that a step is in, or None."""
    at = trace.steps.index(step)
    return next(
        (repeat for repeat in trace.repeats if repeat.start <= at < repeat.start + repeat.times * repeat.length), None
    )


def _merge(steps: Sequence[Step], repeat: Repeat, place: int) -> Step:
    """Return one line for all iterations of a repeat."""
    several = steps[repeat.start + place : repeat.start + repeat.times * repeat.length : repeat.length]
    order = ("disproven", "not executed", "recorded", "pending", "proven", "recomputed")
    worst = min(several, key=lambda step: (order.index(step.verdict), -(step.error or 0)))
    number, first = repeat.blocks[0], several[0]
    latex, symbol = at_any(first.latex, number), at_any(first.symbol, number)
    return replace(worst, id=_star_numbers([step.id for step in several]), latex=latex, symbol=symbol, layer=None)


def _star_numbers(ids: Sequence[str]) -> str:
    """Return ids that differ in numbers alone as one, with a star for them: `block*.attention.query`."""
    parts = [re.split(r"(\d+)", id) for id in ids]
    if len({len(parts_at) for parts_at in parts}) > 1:
        return ids[0]
    return "".join(parts_at[0] if len(set(parts_at)) == 1 else "*" for parts_at in zip(*parts, strict=True))
