"""Steps of a run in the letters of a text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tracer.export import rows
from tracer.export.rows import NOTE_TITLES
from tracer.record import Operand, Step, Symbol, Trace
from tracer.record.steps import Repeat, at_any
from tracer.symbols.letters import OURS, OWN, TEXTS, Letters, PrintedNames
from tracer.utils.errors import quote

TITLES = {
    OURS: "ours",
    **{note: f"as in “{title}”" for note, title in NOTE_TITLES.items()},
    "2017": "as in Vaswani et al. 2017",
    "2021": "as in Dosovitskiy et al. 2021",
}
"""Name of each choice of letters on screen."""


def names_of(trace: Trace) -> PrintedNames:
    """Return all that the lines of a run name, in each block and in any block."""
    tensors = {name.symbol: "" for step in trace.steps for name in step.names}
    tensors |= {step.symbol: step.role for step in trace.steps}
    for repeat in trace.repeats:
        tensors = {at_any(symbol, repeat.blocks[0]): role for symbol, role in tensors.items()} | tensors
    return PrintedNames(tuple(size.name for size in trace.symbols), tensors, tuple(step.latex for step in trace.steps))


def letters_of(run: Trace | PrintedNames, text: str) -> Letters:
    """Return the letters of a text for a run. Raise ValueError for a text that has none."""
    check_text(text)
    if text == OURS:
        return OWN
    return Letters(text, run if isinstance(run, PrintedNames) else names_of(run))


def check_text(text: str) -> None:
    """Raise ValueError, which quotes it, for a text that has no letters."""
    if text not in TEXTS:
        raise ValueError(f"there are no letters {quote(text)}, expected one of {', '.join(TEXTS)}")


def with_letters(step: Step, letters: Letters) -> Step:
    """Return a step with its symbol, its equation and its shape in other letters."""
    if not letters.differences:
        return step
    product = step.product
    if product is not None:
        left, right, result = (_operand(operand, letters) for operand in product)
        product = left, right, result
    return replace(
        step,
        symbol=letters.line(step.symbol),
        latex=letters.line(step.latex),
        symbolic=letters.shape(step.symbolic),
        names=tuple(replace(name, symbol=letters.line(name.symbol)) for name in step.names),
        unseen=tuple(map(letters.line, step.unseen)),
        product=product,
    )


def as_printed(trace: Trace, letters: Letters) -> Iterator[tuple[Repeat | None, list[Step]]]:
    """Yield the printed book in other letters; see `rows.as_printed`."""
    for repeat, steps in rows.as_printed(trace):
        yield repeat, [with_letters(step, letters) for step in steps]


def _operand(operand: Operand, letters: Letters) -> Operand:
    rows, columns = map(letters.formula, operand.symbolic)
    return replace(operand, symbol=letters.line(operand.symbol), symbolic=(rows, columns))


def sizes_with_letters(trace: Trace, letters: Letters) -> tuple[Symbol, ...]:
    """Return the sizes of a run in other letters."""
    return tuple(
        replace(size, name=letters.size.get(size.name, size.name), equals=size.equals and letters.formula(size.equals))
        for size in trace.symbols
    )
