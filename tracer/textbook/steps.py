"""Steps: the lines of the textbook, laid over the ops of a run.

A step covers the ops that lead from the tensors of earlier steps to its own, so that every computing op belongs to
exactly one step or shows up as not covered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tracer.expr import Node, Tensor
from tracer.expr.function_call import Opaque


class Place(NamedTuple):
    """Where a step's tensor is made: the path of the module, and which of the tensors that the op gives."""

    module: str
    output: int = 0


@dataclass(frozen=True)
class Line:
    """One line of a model's textbook: `tensor = equation`, made at `place`; `why` is for a student, `facts` are the
    sentences of it that state something of the run, and `refuted` claims that were made of the line and do not hold.

    Without a place the tensor never was in memory: a fused op, that of the next line with a place, went through it on
    the way. Such a step is recomputed from its equation. `outside` are the keys of tensors in it that came from outside
    of PyTorch; a line `of_input` holds a number that the code computed from the values of this input.
    An `idiom` has the name of what a group of calls computes, as near as the digits of the code's numbers are.
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
    facts: tuple[str, ...] = ()
    refuted: tuple[str, ...] = ()
    outside: frozenset[str] = frozenset()
    of_input: bool = False
    idiom: bool = False


def opaque(line: Line) -> bool:
    """Whether no equation could be written for a line."""
    return isinstance(line.equation, Opaque)


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


def owners(found: Sequence[Found], seen: Sequence) -> dict[int, str]:
    """The step of each covered op. ValueError if a computing op belongs to two steps."""
    owner: dict[int, str] = {}
    for step in found:
        for op in step.ops:
            if op in owner and not seen[op].layout:
                raise ValueError(f"op {op} ({seen[op].name}) belongs to both {owner[op]!r} and {step.line.id!r}")
            owner.setdefault(op, step.line.id)
    return owner
