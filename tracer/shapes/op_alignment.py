"""Alignment of the ops of two runs at different sizes: by module, source line and op."""

from __future__ import annotations

from difflib import SequenceMatcher

from tracer.capture.op_schema import VIEWS
from tracer.ops import CONCATENATIONS, having

JOINS = CONCATENATIONS
"""Ops with as many operands as a loop has iterations."""
DEALS = having("split") | {"unbind"}
"""Ops with as many results as a loop has iterations."""

LONGEST = 2000
"""Largest number of ops in one iteration of a loop."""

GENERATED = "<"
"""Prefix of the file name of generated code; the name differs in each copy."""

COPIES = having("copy")


def align(run, probe) -> list[int | None]:
    """Return for each op of `run` the index of the same op in `probe`, or None if `probe` has none.

    Op lists of one model differ with the batch: at B = 1 a reshape is a `view`, else a `clone` and an `_unsafe_view`.
    So reshapes count as one op, and copies are matched only if both runs have them.
    """
    if [_key(op) for op in run] == [_key(op) for op in probe]:
        return [i if _fits(op, other) else None for i, (op, other) in enumerate(zip(run, probe, strict=True))]
    left = [i for i, op in enumerate(run) if op.name not in COPIES]
    right = [i for i, op in enumerate(probe) if op.name not in COPIES]
    result: list[int | None] = [None] * len(run)
    keys = [_key(run[i]) for i in left], [_key(probe[i]) for i in right]
    if keys[0] == keys[1]:
        blocks = [(0, 0, len(left))]
    else:
        blocks = SequenceMatcher(a=keys[0], b=keys[1], autojunk=False).get_matching_blocks()
    for a, b, length in blocks:
        for offset in range(length):
            result[left[a + offset]] = right[b + offset]
    _match_iterations(keys[0], left, result)
    for i, op in enumerate(run):  # a copy belongs to the reshape after it
        if op.name in COPIES and i + 1 < len(run) and (after := result[i + 1]):
            result[i] = after - 1 if _key(probe[after - 1]) == _key(op) else None
    return [j if j is not None and _fits(run[i], probe[j]) else None for i, j in enumerate(result)]


def _match_iterations(keys: list[tuple], left: list[int], result: list[int | None]) -> None:
    """Match the iterations of a loop that the probe has fewer of with the iteration before, or after."""
    missing = [place for place, i in enumerate(left) if result[i] is None]
    for places, step in ((missing, -1), (missing[::-1], 1)):
        start = 0
        while start < len(places):
            stop = start + 1
            while stop < len(places) and places[stop] - places[stop - 1] == -step:
                stop += 1
            stretch = places[start:stop]
            period = _period(keys, stretch, step, lambda place: result[left[place]] is not None)
            if period is not None:
                for place in stretch:
                    result[left[place]] = result[left[place + step * period]]
            start = stop


def _period(keys: list[tuple], stretch: list[int], step: int, known) -> int | None:
    """Return the number of ops in one iteration, if a stretch repeats the matched iteration beside it; else None."""
    first = stretch[0]
    for period in range(1, min(len(stretch), LONGEST) + 1):
        beside = range(first + step, first + step * (period + 1), step)
        if not 0 <= beside[-1] < len(keys) or not all(map(known, beside)):
            return None
        if all(keys[place] == keys[place + step * period] for place in stretch):
            return period
    return None


def _key(op) -> tuple:
    axis = op.settings[1] % len(op.inputs[0][0]) if op.name == "slice" else None  # one of `[:H, :W]` may be left out
    line = (GENERATED, op.line[1]) if op.line and op.line[0].startswith(GENERATED) else op.line
    return op.module, line, canonical_name(op.name), axis


def canonical_name(name: str) -> str:
    """Return the name of an op, the same one for all reshapes."""
    return "view" if name in VIEWS and name not in COPIES else name


def _fits(one, other) -> bool:
    def ranks(tensors):
        return [len(shape) for shape, *_ in tensors]

    joins = one.name in JOINS and len(set(ranks(one.inputs) + ranks(other.inputs))) == 1
    deals = one.name in DEALS and len(set(ranks(one.outputs) + ranks(other.outputs))) == 1
    return (joins or ranks(one.inputs) == ranks(other.inputs)) and (deals or ranks(one.outputs) == ranks(other.outputs))
