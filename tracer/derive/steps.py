"""Steps: the lines of the textbook, laid over the ops of a run.

A model lists its lines (symbol, equation, where in the code the tensor is made). A step covers the ops that lead
from the tensors of earlier steps to its own: a backward slice through the run, so that every computing op
belongs to exactly one step or shows up as not covered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tracer.equations import Node, Tensor


class Place(NamedTuple):
    """Where a step's tensor is made: the `nth` call of `call` (`"matmul"`, `"softmax"` …) directly in `module`.

    Where one call runs many ops, `op` names the op instead: the `nth` op of that name directly in `module`. A negative
    `nth` counts from the last. Without either: the last op inside `module` or its children, which is what the module
    returns. `output` says which of the tensors that the op gives.
    """

    module: str
    call: str = ""
    nth: int = 0
    op: str = ""
    output: int = 0


@dataclass(frozen=True)
class Line:
    """One line of a model's textbook: `tensor = equation`, made at `place`; `why` is for a student.

    Without a place the tensor never was in memory: a fused op, that of the next line with a place or of the line
    whose id `within` is, went through it on the way. Such a step is recomputed from its equation.
    """

    id: str
    stage: str
    title: str
    tensor: Tensor
    equation: Node
    place: Place | None
    why: str
    layer: int | None = None
    note: str = ""
    within: str = ""


class Found(NamedTuple):
    """A line laid over a run: the op that makes its tensor, and all ops that it covers, in order.

    A line without a place covers none; its op is the fused one that went through its tensor: the last that computes.
    A derived line brings the key of its traced tensor, with shape, dtype and solved shape, since a write may have made
    it that gives another one back.
    """

    line: Line
    op: int
    ops: tuple[int, ...]
    key: str = ""
    shape: tuple[int, ...] = ()
    dtype: object = None
    solved: tuple[str, ...] | None = None

    @property
    def output(self) -> int:
        """Which of the op's tensors it is."""
        return self.line.place.output if self.line.place else 0

    @property
    def value(self) -> str:
        """The key of its traced tensor."""
        return self.key or f"{self.op}.{self.output}"


def match(lines: Sequence[Line], seen: Sequence) -> list[Found]:
    """Finds each line in the run. ValueError names a line whose place the run does not have."""
    if not lines:
        return []
    calls: dict[tuple[str, str], list[int]] = {}
    ops: dict[tuple[str, str], list[int]] = {}
    last: dict[str, int] = {}
    for i, op in enumerate(seen):
        parts = op.module.split(".")
        for depth in range(len(parts) + 1):
            last[".".join(parts[:depth])] = i
        ops.setdefault((op.module, op.name), []).append(i)
        ends = calls.setdefault((op.module, op.function), [])
        if ends and seen[ends[-1]].number == op.number:
            ends[-1] = i
        else:
            ends.append(i)

    def made(line: Line) -> int:
        place = line.place
        if place.op:
            found, what = ops.get((place.module, place.op), []), f"op {place.nth} named {place.op!r}"
        elif place.call:
            found, what = calls.get((place.module, place.call), []), f"call {place.nth} of {place.call!r}"
        else:
            found, what = [last[place.module]] if place.module in last else [], "op"
        if not -len(found) <= place.nth < len(found):
            raise ValueError(f"step {line.id!r}: the run has no {what} in {place.module!r}")
        return found[place.nth]

    at = {line.id: made(line) for line in lines if line.place is not None}
    ends, found, covering = set(at.values()), [], ""
    covered = {id: _slice(op, ends, seen) for id, op in at.items()}
    for line in reversed(lines):
        if line.place is not None:
            covering = line.id
            found.append(Found(line, at[line.id], covered[line.id]))
        else:
            through = covered[line.within or covering]
            found.append(Found(line, next((op for op in reversed(through) if not seen[op].layout), through[-1]), ()))
    return found[::-1]


def _slice(end: int, ends: set[int], seen: Sequence) -> tuple[int, ...]:
    """The ops that lead to `end` from the tensors of other steps, inputs and parameters."""
    covered, open_ops = {end}, [end]
    while open_ops:
        for _, _, maker in seen[open_ops.pop()].inputs:
            if isinstance(maker, int) and maker not in covered and maker not in ends:
                covered.add(maker)
                open_ops.append(maker)
    return tuple(sorted(covered))


def owners(found: Sequence[Found], seen: Sequence) -> dict[int, str]:
    """The step of each covered op. ValueError if a computing op belongs to two steps."""
    owner: dict[int, str] = {}
    for step in found:
        for op in step.ops:
            if op in owner and not seen[op].layout:
                raise ValueError(f"op {op} ({seen[op].name}) belongs to both {owner[op]!r} and {step.line.id!r}")
            owner.setdefault(op, step.line.id)
    return owner
