"""Which op of one run is which op of another, run at other sizes: by module, source line and op."""

from __future__ import annotations

from difflib import SequenceMatcher

from tracer.recorder.ops import VIEWS

COPIES = frozenset(("clone", "contiguous"))


def align(run, probe) -> list[int | None]:
    """For each op of `run`, the index of the same op in `probe`, or None where `probe` has none.

    Op lists of one model differ with the batch: at B = 1 a reshape is a `view`, else a `clone` and an
    `_unsafe_view`. So reshapes count as one op, and copies are only matched where both runs have them.
    """
    if [_key(op) for op in run] == [_key(op) for op in probe]:
        return list(range(len(run)))
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
    for i, op in enumerate(run):  # a copy belongs to the reshape after it
        if op.name in COPIES and i + 1 < len(run) and result[i + 1]:
            before = result[i + 1] - 1
            result[i] = before if _key(probe[before]) == _key(op) else None
    return [j if j is not None and _fits(run[i], probe[j]) else None for i, j in enumerate(result)]


def _key(op) -> tuple:
    axis = op.settings[1] % len(op.inputs[0][0]) if op.name == "slice" else None  # one of `[:H, :W]` may be left out
    return op.module, op.line, spelled(op.name), axis


def spelled(name: str) -> str:
    """An op's name; reshapes have one, however they are spelled."""
    return "view" if name in VIEWS and name not in COPIES else name


def _fits(one, other) -> bool:
    def ranks(tensors):
        return [len(shape) for shape, *_ in tensors]

    return ranks(one.inputs) == ranks(other.inputs) and ranks(one.outputs) == ranks(other.outputs)
