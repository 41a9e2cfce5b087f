"""One number of a run, traced back: its operands, and the contribution of each."""

from __future__ import annotations

from tracer.expr import Node, tensors
from tracer.expr.index_sets import TooMany, plain
from tracer.record.trace import Cell, Number, Trace, operand_cell
from tracer.tracing.provenance.numeric_equation import fill
from tracer.tracing.provenance.walk import Leaf, ProvenanceWalk, RecomputedValues
from tracer.utils.error_text import quote

GONE_PROBLEM = (
    "the equations of this run are not at hand, so no cell can be followed: it was opened from a file, copied or made "
    "with prove=False; run the model again"
)
ENDS = ("input ", "parameter ", "constant ")


def cell(trace: Trace, id: str, index) -> Cell:
    """Return the cell at `index` of the tensor of step `id`, or of an `input x` or `parameter w`, with its operands.

    Places count from 0, or from the end where they are negative. KeyError quotes an unknown id; ValueError quotes an
    index that the tensor does not have, and says so where the equations of the run are not at hand.
    """
    step = None if isinstance(id, str) and id.startswith(ENDS) else trace.step(id)
    if trace.later is None:
        raise ValueError(GONE_PROBLEM)
    value = trace.later.values(RecomputedValues)
    if step is None:
        tensor = value(id)
        if tensor is None:
            raise KeyError(f"no {quote(id)} in this run: {value.why(id)}")
        at = _check_index(id, index, tuple(tensor.shape))
        return Cell(id, at, plain(tensor[at]), trace=trace)
    at = _check_index(id, index, step.shape)
    notes = []
    tensor = trace.value(step)
    if tensor is None and (tensor := value(id)) is not None:
        why = "A fused op never held" if step.recomputed else "The run did not keep"
        notes.append(f"{why} this tensor: its number is computed again, from the equations.")
    equation = value.equations[id]
    missing = _missing(equation, value, trace.later.rewritten())
    if tensor is None:
        raise ValueError(f"{quote(id)} was not kept, and can't be computed again: {missing}")
    number = plain(tensor[at])
    if missing:
        return Cell(id, at, number, None, step.latex, {}, " ".join([*notes, f"Not followed: {missing}."]), trace=trace)
    walk = ProvenanceWalk(equation, value)
    try:
        parts = walk.numbers(equation, at)
    except TooMany as error:
        parts = walk.read(equation, at)
        notes.append(f"What each number contributed is not listed: {error}.")
        if parts is None:
            parts = []
    return Cell(
        id,
        at,
        number,
        walk.compute(at),
        step.latex,
        _group(parts),
        " ".join(notes),
        numeric_latex=fill(walk, at),
        symbols={tensor.key: tensor.name for tensor in tensors(equation)},
        trace=trace,
    )


def _check_index(id: str, index, shape: tuple[int, ...]) -> tuple[int, ...]:
    at = operand_cell(index)
    if at is None or len(at) != len(shape) or any(not -n <= i < n for i, n in zip(at, shape, strict=True)):
        last = tuple(n - 1 for n in shape)
        raise ValueError(
            f"{quote(index)} is not a cell of {quote(id)}, expected {len(shape)} whole numbers up to {last}"
        )
    return tuple(i % n for i, n in zip(at, shape, strict=True))


def _missing(equation: Node, value: RecomputedValues, rewritten: set[str]) -> str:
    """Return why an equation can't be executed on the numbers of the run, in a sentence without its full stop."""
    keys = [tensor.key for tensor in tensors(equation)]
    if changed := sorted(rewritten & value.sources(keys)):
        return f"{quote(changed[0])} has changed since the run"
    lost = next((key for key in keys if value(key) is None), None)
    return value.why(lost) if lost else ""


def _group(leaves: list[Leaf]) -> dict[str, tuple[Number, ...]]:
    """Group the numbers by their tensors; add up the contributions of a repeated one."""
    groups: dict[str, dict[tuple[int, ...], Number]] = {}
    for leaf in leaves:
        numbers = groups.setdefault(leaf.key, {})
        number = Number(leaf.index, leaf.value, leaf.share, leaf.counted)
        numbers[leaf.index] = _both(numbers[leaf.index], number) if leaf.index in numbers else number
    return {key: tuple(numbers[at] for at in sorted(numbers)) for key, numbers in groups.items()}


def _both(a: Number, b: Number) -> Number:
    if a.counted != b.counted:
        return a if a.counted else b
    if a.share is None or b.share is None:
        return a._replace(share=None)
    return a._replace(share=a.share + b.share)
