"""Steps: the lines of the textbook, mapped to the ops of a run.

A step covers the ops that lead from the tensors of earlier steps to its own. So every computing op belongs to exactly
one step, or is reported as not covered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tracer.expr import Node, Tensor
from tracer.expr.function_call import Opaque


class StepOrigin(NamedTuple):
    """Source of a step's tensor: the path of the module, and the op's output position."""

    module: str
    output: int = 0


@dataclass(frozen=True)
class Line:
    """One line of a textbook: `tensor = equation`, computed at `place`.

    `why` is the explanation for a student, `facts` are its sentences on the run, and `refuted` are claims that do not
    hold. A line without a place has a tensor that was never in memory, inside the fused op of the next line with a
    place. Such a step is recomputed from its equation. `outside` are the keys of tensors from outside PyTorch. A line
    `of_input` has a number that depends on the values of the input. An `idiom` has the name of the function that a
    group of calls computes, up to the digits of the code's constants.
    """

    id: str
    stage: str
    title: str
    tensor: Tensor
    equation: Node
    place: StepOrigin | None
    why: str
    layer: int | None = None
    note: str = ""
    facts: tuple[str, ...] = ()
    refuted: tuple[str, ...] = ()
    outside: frozenset[str] = frozenset()
    of_input: bool = False
    idiom: bool = False


def opaque(line: Line) -> bool:
    """Return whether a line has no equation."""
    return isinstance(line.equation, Opaque)


class DerivedStep(NamedTuple):
    """A line mapped to a run: the op that computes its tensor, and all ops that it covers, in order.

    A line without a place covers none; its op is the fused one. A derived line has the key of its traced tensor, with
    shape, dtype and solved shape, since an in-place write can have computed it.
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
        """Output position of its tensor in its op."""
        return self.line.place.output if self.line.place else 0

    @property
    def value(self) -> str:
        """Key of its traced tensor."""
        return self.key or f"{self.op}.{self.output}"


def owners(steps: Sequence[DerivedStep], ops: Sequence) -> dict[int, str]:
    """Return the step of each covered op. Raise ValueError if a computing op belongs to two steps."""
    owner: dict[int, str] = {}
    for step in steps:
        for op in step.ops:
            if op in owner and not ops[op].layout:
                raise ValueError(f"op {op} ({ops[op].name}) belongs to both {owner[op]!r} and {step.line.id!r}")
            owner.setdefault(op, step.line.id)
    return owner
