"""Textbook of a model of the zoo, compared at several sizes: it must not depend on one run."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any, NamedTuple

import torch

import tracer
from tracer.capture import record
from tracer.models.shared.spec import Model
from tracer.record import Trace
from tracer.tracing import PROVE_LATER
from tracer.utils.error_text import quote, reason
from tracer.utils.internals.torch_internals import tree_leaves
from tracer.verify import seeded_run, small
from tracer.verify.survey_zoo import KEPT_BYTES, perturb_parameters

SIZES = ((2, 9), (1, 4), (4, 16), (3, 5))
"""Batch and length: a usual one, with which the others are compared, one of one input, and squares, whose roots are
numbers that code has in it."""
SIDES = (1.0, 1.5, 2.0, 2.5)
"""At these, the sides of a photo as shares of the model's own, where a run may choose them: none leaves a map of one
cell, in which no axis can be told from another."""
MAX_UNEXPLAINED_SHARE = 0.01
"""Share of lines that may differ for no reason that is listed."""
IN_A_LIST = "B is how many photos forward goes through, one by one, and no size of a tensor"
"""Why a model that takes a list of photos is run with one, and at other sides where it is built for them."""


class Reason(NamedTuple):
    """Reason why lines of a model differ between sizes: a pattern of the message of such a line."""

    model: str
    pattern: str
    why: str


REASONS = (
    Reason(
        "hf:time_series_transformer",
        r"^B = 2 and B = 1: .*scaler",
        "At B = 1 two axes have one place, so the line says by its number which of them is summed over.",
    ),
    Reason(
        "torchvision:ssdlite320_mobilenet_v3_large",
        "It holds at the sizes of this run: ",
        "How many boxes there are is a sum over six maps that has no symbol, and the lines say so.",
    ),
)

Line = tuple[str, str, tuple[str, ...], str]
HELD_REASONS = (
    Reason(
        "torchvision:swin_t",
        "",
        "At another side its code takes another way: it pads a map that 7 does not divide, and shifts no windows where"
        " one covers the map.",
    ),
)
"""Models that are compared at one side of a photo, their own: at others forward runs other ops."""


class TextbookComparison(NamedTuple):
    """Outcome of one model: its number of lines, the number of sizes at which it ran, the lines that differ between
    them without a listed reason, the seconds, the reason why it could not be compared, or "", and the reasons of the
    other differing lines, each once."""

    name: str
    lines: int = 0
    runs: int = 0
    differing: tuple[str, ...] = ()
    seconds: float = 0.0
    reason: str = ""
    reasons: tuple[Reason, ...] = ()


def lines_of(trace: Trace) -> list[Line]:
    """Return the printed parts of each step: its title, equation, symbolic shape and note."""
    return [(step.title, step.latex, step.symbolic, step.note) for step in trace.steps]


def compare(name: str) -> TextbookComparison:
    """Derive the textbook of a model anew at each of the sizes, and compare them line by line."""
    began, textbooks, failed = time.perf_counter(), {}, ""
    for number in range(len(SIZES)):
        try:
            label, lines = _textbook(name, number)
        except Exception as error:  # whatever a library says of its own model at that size
            failed = failed or reason(error)
            continue
        textbooks.setdefault(label, lines)
        if not label:
            failed = failed or IN_A_LIST
            break
    seconds = time.perf_counter() - began
    if len(textbooks) < 2:
        return TextbookComparison(name, reason=failed or "it runs at one size alone", seconds=seconds)
    (first, reference), *others = textbooks.items()
    differing: dict[int, str] = {}
    for label, lines in others:
        for place, difference in _differences(reference, lines):
            differing.setdefault(place, f"{first} and {label}: {difference}")
    left, known = sorted_out(name, differing.values())
    known += tuple(held_out for held_out in HELD_REASONS if held_out.model == name and another_way(small(name)))
    return TextbookComparison(name, len(reference), len(textbooks), left, seconds, reasons=known)


def sorted_out(name: str, differing: Iterable[str]) -> tuple[tuple[str, ...], tuple[Reason, ...]]:
    """Return the messages of lines that differ without a reason, and the reasons of the others."""
    left, known = [], []
    for difference in differing:
        reason = next(
            (
                candidate
                for candidate in REASONS
                if candidate.model == name and re.search(candidate.pattern, difference)
            ),
            None,
        )
        if reason is None:
            left.append(difference)
        else:
            known.append(reason)
    return tuple(left), tuple(known)


def another_way(model: Model) -> bool:
    """Return whether forward runs other ops at another side of a photo than at the model's own."""
    names = []
    for share in SIDES[:2]:
        sides: dict[str, Any] = {side: round(size * share) for side, size in _own_sides(model).items()}
        inputs = model.inputs(**sides)
        with torch.no_grad():
            names.append([op.name for op in record(model.net, tuple(inputs), inputs.named, cap=0).ops])
    return names[0] != names[1]


def _own_sides(model: Model) -> dict[str, int]:
    """Return height and width of the model's photo if a run may choose them."""
    own = model.inputs().sizes
    return {side: own[side] for side in ("H", "W") if side in own and side in model.spec.runs}


def _textbook(name: str, number: int) -> tuple[str, list[Line]]:
    """Return the textbook of a model at one of the sizes, derived from that run alone, and the sizes in words."""
    model = small(name)
    at = _sizes(model, number)
    if own := {symbol: size for symbol, size in at.items() if symbol not in model.spec.runs}:
        model = tracer.load(name, **{**model.sizes, **own})
    perturb_parameters(model.net)
    chosen = {symbol: size for symbol, size in at.items() if symbol not in own}
    try:
        trace = _trace(model, chosen)
    except Exception:  # a length that the model does not take
        at = {"B": at.get("B", 1)}
        trace = _trace(model, at)
    return ", ".join(f"{symbol} = {size}" for symbol, size in at.items()), lines_of(trace)


def _trace(model: Model, at: dict[str, int]) -> Trace:
    with torch.no_grad():
        return seeded_run(model.trace, keep=KEPT_BYTES, prove=PROVE_LATER, **at)


def _sizes(model: Model, number: int) -> dict[str, Any]:
    """Return those of `SIZES` and `SIDES` that an input of the model decides; for a list of photos, the sides that it
    is built for."""
    (batch, length), own = SIZES[number], model.inputs().sizes
    if len(tree_leaves(tuple(model.inputs(B=2)))) > len(tree_leaves(tuple(model.inputs(B=1)))):
        return {side: round(model.sizes[side] * SIDES[number]) for side in ("H", "W") if side in model.sizes}
    sizes = {"B": batch, "T": length, "T_d": length}
    if not any(held_out.model == model.name for held_out in HELD_REASONS):
        sizes |= {side: round(size * SIDES[number]) for side, size in _own_sides(model).items()}
    return {symbol: sizes[symbol] for symbol in model.spec.runs if symbol in sizes and symbol in own}


def _differences(ours: list[Line], theirs: list[Line]) -> Iterator[tuple[int, str]]:
    """Yield the lines of one textbook that another one lacks, each by its position, and the other's line there."""
    matcher = SequenceMatcher(a=ours, b=theirs, autojunk=False)
    for kind, start, stop, begin, end in matcher.get_opcodes():
        if kind == "equal":
            continue
        for i, (left, right) in enumerate(zip_longest(ours[start:stop], theirs[begin:end])):
            parts = zip_longest(left or (), right or ())
            pairs_text = [f"{quote(a)} / {quote(b)}" for a, b in parts if a != b] if left and right else []
            whole = left or right
            yield (
                start + i if left else len(ours) + begin + i,
                "; ".join(pairs_text) or f"only {'there' if right else 'here'}: {whole[1]}",
            )


def compare_models(names: Iterable[str]) -> Iterator[TextbookComparison]:
    """Yield the outcomes of the models, in order."""
    yield from map(compare, names)


def line(comparison: TextbookComparison) -> str:
    """Format one model as one line, with the lines that differ below it."""
    if comparison.reason:
        return f"{comparison.name}: {comparison.reason}"
    text = (
        f"{comparison.name}: {len(comparison.differing)} of {comparison.lines} lines differ at {comparison.runs} sizes"
    )
    return "\n".join(
        [f"{text}, {comparison.seconds:.0f} s", *(f"    {difference}" for difference in comparison.differing)]
    )


def stale(comparisons: list[TextbookComparison]) -> list[Reason]:
    """Return the listed reasons that no line of their models has any more."""
    ran = {entry.name for entry in comparisons if not entry.reason}
    had = {known for entry in comparisons for known in entry.reasons}
    return [entry for entry in (*REASONS, *HELD_REASONS) if entry.model in ran and entry not in had]


def summary(comparisons: list[TextbookComparison]) -> tuple[list[str], bool]:
    """Return the share of lines that differ without a listed reason, the reasons of the others, and whether that is
    within the bar; a listed reason that no line has any more is not."""
    ran = [comparison for comparison in comparisons if not comparison.reason]
    total, differing = sum(comparison.lines for comparison in ran), sum(len(comparison.differing) for comparison in ran)
    share, old = differing / total if total else 1.0, stale(comparisons)
    text = f"{differing:,} of {total:,} lines of {len(ran)} of {len(comparisons)} models differ at other sizes"
    lines = [f"{text}: {share:.2%} (expected {MAX_UNEXPLAINED_SHARE:.0%} at most)"]
    for known, count in Counter(known for comparison in ran for known in comparison.reasons).items():
        what = "compared at its own side alone" if known in HELD_REASONS else f"{count} more, for a reason"
        lines.append(f"{known.model}: {what}: {known.why}")
    lines += [
        f"{comparison.name}: not compared: {comparison.reason}" for comparison in comparisons if comparison.reason
    ]
    lines += [f"{comparison.model}: stale reason, no line differs so: {comparison.why}" for comparison in old]
    return lines, share <= MAX_UNEXPLAINED_SHARE and not old
