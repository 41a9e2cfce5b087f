"""One number of a run, traced back: its operands, and the contribution of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import index as whole
from typing import TYPE_CHECKING, NamedTuple

from tracer.expr import Node, tensors
from tracer.expr.index_sets import TooMany, plain
from tracer.tracing.provenance_walk import Chain, Leaf, Walk
from tracer.utils.error_text import quoted

if TYPE_CHECKING:
    from tracer.record import Trace

GONE = (
    "the equations of this run are not at hand, so no cell can be followed: it was opened from a file, copied or made "
    "with prove=False; run the model again"
)
ENDS = ("input ", "parameter ", "constant ")


class Number(NamedTuple):
    """An operand of a cell, by its index in its tensor.

    `share` is what it contributed, None where that can't be said in one number. The shares of those that are `counted`
    add up to the cell; the others are the second factors of products, the rest of a softmax's row, and the like.
    Behind a function that is no sum, shares are in proportion to what they were before it.
    """

    index: tuple[int, ...]  # type: ignore[assignment]
    value: float | complex
    share: float | complex | None
    counted: bool = True


@dataclass(frozen=True)
class Cell:
    """One cell of a step's tensor: its number as traced, and as computed from its terms, in float64.

    `terms` are the numbers that it was made of, by what they are cells of: the id of a step, `input x`, `parameter w`,
    `constant 0` (a tensor that nothing of the run made), or `number …`, written in the equation. The cells of all but
    steps have none: the way ends there. `note` says what is missing.
    """

    id: str
    index: tuple[int, ...]  # type: ignore[assignment]
    value: float | complex
    computed: float | complex | None = None
    latex: str = ""
    terms: Mapping[str, tuple[Number, ...]] = field(default_factory=dict, repr=False)
    note: str = ""
    trace: Trace = field(kw_only=True, repr=False, compare=False)

    def back(self, operand: str, index=None) -> Cell:
        """Return the cell of one of the operands, by its key in `terms`; without an index the largest contribution.

        ValueError quotes an operand that the cell was not made of, and an index that is none of its terms.
        """
        if operand not in self.terms:
            made = f"it was made of {', '.join(map(repr, self.terms))}" if self.terms else "the way ends there"
            raise ValueError(f"cell {self.index} of {quoted(self.id)} was not made of {quoted(operand)}: {made}")
        numbers = self.terms[operand]
        if index is None:
            index = max(numbers, key=lambda one: (one.counted, abs(one.share or 0), abs(one.value))).index
        elif operand_cell(index) not in {one.index for one in numbers}:
            raise ValueError(
                f"cell {self.index} of {quoted(self.id)} was not made of {quoted(index)} of {quoted(operand)}; "
                f"the first that it was made of is {numbers[0].index}"
            )
        if operand.startswith("number "):
            found = next(one for one in numbers if one.index == operand_cell(index))
            return Cell(operand, found.index, found.value, trace=self.trace)
        return cell(self.trace, operand, index)


def operand_cell(index) -> tuple[int, ...] | None:
    """Return an index as a tuple of whole numbers, None if it is none."""
    try:
        return tuple(whole(i) for i in index) if not isinstance(index, str) else None
    except TypeError:
        return None


def cell(trace: Trace, id: str, index) -> Cell:
    """Return the cell at `index` of the tensor of step `id`, or of an `input x` or `parameter w`, with its operands.

    Places count from 0, or from the end where they are negative. KeyError quotes an unknown id; ValueError quotes an
    index that the tensor does not have, and says so where the equations of the run are not at hand.
    """
    step = None if isinstance(id, str) and id.startswith(ENDS) else trace.step(id)
    if trace.later is None:
        raise ValueError(GONE)
    value = trace.later.values(Chain)
    if step is None:
        found = value(id)
        if found is None:
            raise KeyError(f"no {quoted(id)} in this run: {value.why(id)}")
        at = _check_index(id, index, tuple(found.shape))
        return Cell(id, at, plain(found[at]), trace=trace)
    at = _check_index(id, index, step.shape)
    notes = []
    found = trace.value(step)
    if found is None and (found := value(id)) is not None:
        why = "A fused op never held" if step.recomputed else "The run did not keep"
        notes.append(f"{why} this tensor: its number is computed again, from the equations.")
    equation = value.equations[id]
    missing = _missing(equation, value, trace.later.rewritten())
    if found is None:
        raise ValueError(f"{quoted(id)} was not kept, and can't be computed again: {missing}")
    number = plain(found[at])
    if missing:
        return Cell(id, at, number, None, step.latex, {}, " ".join([*notes, f"Not followed: {missing}."]), trace=trace)
    walk = Walk(equation, value)
    try:
        parts = walk.numbers(equation, at)
    except TooMany as error:
        parts = walk.read(equation, at)
        notes.append(f"What each number contributed is not listed: {error}.")
        if parts is None:
            return Cell(id, at, number, walk.compute(at), step.latex, {}, " ".join(notes), trace=trace)
    return Cell(id, at, number, walk.compute(at), step.latex, _group(parts), " ".join(notes), trace=trace)


def _check_index(id: str, index, shape: tuple[int, ...]) -> tuple[int, ...]:
    at = operand_cell(index)
    if at is None or len(at) != len(shape) or any(not -n <= i < n for i, n in zip(at, shape, strict=True)):
        last = tuple(n - 1 for n in shape)
        raise ValueError(
            f"{quoted(index)} is no cell of {quoted(id)}: {len(shape)} whole numbers up to {last} were expected"
        )
    return tuple(i % n for i, n in zip(at, shape, strict=True))


def _missing(equation: Node, value: Chain, rewritten: set[str]) -> str:
    """Return why an equation can't be executed on the numbers of the run, in a sentence without its full stop."""
    keys = [tensor.key for tensor in tensors(equation)]
    if changed := sorted(rewritten & value.sources(keys)):
        return f"{quoted(changed[0])} has changed since the run"
    lost = next((key for key in keys if value(key) is None), None)
    return value.why(lost) if lost else ""


def _group(leaves: list[Leaf]) -> dict[str, tuple[Number, ...]]:
    """Group the numbers by their tensors; add up the contributions of a repeated one."""
    groups: dict[str, dict[tuple[int, ...], Number]] = {}
    for leaf in leaves:
        numbers = groups.setdefault(leaf.key, {})
        one = Number(leaf.index, leaf.value, leaf.share, leaf.counted)
        numbers[leaf.index] = _both(numbers[leaf.index], one) if leaf.index in numbers else one
    return {key: tuple(numbers[at] for at in sorted(numbers)) for key, numbers in groups.items()}


def _both(one: Number, other: Number) -> Number:
    if one.counted != other.counted:
        return one if one.counted else other
    if one.share is None or other.share is None:
        return one._replace(share=None)
    return one._replace(share=one.share + other.share)
