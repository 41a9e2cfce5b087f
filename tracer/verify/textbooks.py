"""Whether the textbook of a model of the zoo is that of the model, and not of one run: the same at other sizes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import NamedTuple

import torch

from tracer.common.quoting import quoted, reason
from tracer.models.shared.model import Model
from tracer.record import Trace
from tracer.tracing import LATER
from tracer.verify import seeded_run, small
from tracer.verify.zoo import KEPT, moved

SIZES = ((2, 9), (1, 4), (4, 16), (3, 5))
"""Batch and length: a usual one, with which the others are compared, one of one input, and squares, whose roots are
numbers that code has in it."""
SIDES = (1.0, 0.5, 0.75, 1.25)
"""At these, the sides of a photo as shares of the model's own, where a run may choose them."""
ENOUGH = 0.01
"""Share of lines that may differ."""

Line = tuple[str, str, tuple[str, ...], str]


class Compared(NamedTuple):
    """What came of one model: how many lines it has, at how many sizes it ran, those lines that do not read the same at
    all of them, the seconds, and why it could not be compared, or ""."""

    name: str
    lines: int = 0
    runs: int = 0
    differing: tuple[str, ...] = ()
    seconds: float = 0.0
    reason: str = ""


def lines_of(trace: Trace) -> list[Line]:
    """What is printed of each step: its title, equation, symbolic shape and note."""
    return [(step.title, step.latex, step.symbolic, step.note) for step in trace.steps]


def compare(name: str) -> Compared:
    """Derive the textbook of a model anew at each of the sizes, and compare them line by line."""
    began, textbooks, failed = time.perf_counter(), {}, ""
    for number in range(len(SIZES)):
        try:
            label, lines = _textbook(name, number)
        except Exception as error:  # whatever a library says of its own model at that size
            failed = failed or reason(error)
            continue
        textbooks.setdefault(label, lines)
    if len(textbooks) < 2:
        return Compared(name, reason=failed or "it runs at one size alone", seconds=time.perf_counter() - began)
    (first, reference), *others = textbooks.items()
    differing: dict[int, str] = {}
    for label, lines in others:
        for place, said in _differences(reference, lines):
            differing.setdefault(place, f"{first} and {label}: {said}")
    return Compared(name, len(reference), len(textbooks), tuple(differing.values()), time.perf_counter() - began)


def _textbook(name: str, number: int) -> tuple[str, list[Line]]:
    """The textbook of a model at one of the sizes, as it is derived from that run alone, and the sizes in words."""
    model = small(name)
    moved(model.net)
    at = _sizes(model, number)
    try:
        trace = _traced(model, at)
    except Exception:  # a length that the model does not take
        at = {"B": at["B"]}
        trace = _traced(model, at)
    return ", ".join(f"{symbol} = {size}" for symbol, size in at.items()), lines_of(trace)


def _traced(model: Model, at: dict[str, int]) -> Trace:
    with torch.no_grad():
        return seeded_run(model.trace, keep=KEPT, prove=LATER, **at)


def _sizes(model: Model, number: int) -> dict[str, int]:
    """Those of `SIZES` and `SIDES` that an input of the model decides."""
    (batch, length), own = SIZES[number], model.inputs().sizes
    sizes = {"B": batch, "T": length, "T_d": length}
    sizes |= {side: round(own[side] * SIDES[number]) for side in ("H", "W") if side in own}
    return {symbol: sizes[symbol] for symbol in model.spec.runs if symbol in sizes and symbol in own}


def _differences(ours: list[Line], theirs: list[Line]) -> Iterator[tuple[int, str]]:
    """The lines of one textbook that another one has not, each by its place, and what stands there instead."""
    matcher = SequenceMatcher(a=ours, b=theirs, autojunk=False)
    for kind, start, stop, begin, end in matcher.get_opcodes():
        if kind == "equal":
            continue
        for i, (left, right) in enumerate(zip_longest(ours[start:stop], theirs[begin:end])):
            parts = zip_longest(left or (), right or ())
            said = [f"{quoted(a)} / {quoted(b)}" for a, b in parts if a != b] if left and right else []
            whole = left or right
            yield (
                start + i if left else len(ours) + begin + i,
                "; ".join(said) or f"only {'there' if right else 'here'}: {whole[1]}",
            )


def compared(names: Iterable[str]) -> Iterator[Compared]:
    """The models, one after the other."""
    yield from map(compare, names)


def line(found: Compared) -> str:
    """One model in one line, and the lines that differ below it."""
    if found.reason:
        return f"{found.name}: {found.reason}"
    said = f"{found.name}: {len(found.differing)} of {found.lines} lines differ at {found.runs} sizes"
    return "\n".join([f"{said}, {found.seconds:.0f} s", *(f"    {one}" for one in found.differing)])


def summary(found: list[Compared]) -> tuple[list[str], bool]:
    """The share of lines that differ, and whether that is within the bar."""
    ran = [one for one in found if not one.reason]
    total, differing = sum(one.lines for one in ran), sum(len(one.differing) for one in ran)
    share = differing / total if total else 1.0
    said = f"{differing:,} of {total:,} lines of {len(ran)} of {len(found)} models differ at other sizes"
    return [f"{said}: {share:.2%} (expected {ENOUGH:.0%} at most)"], share <= ENOUGH
