"""Rounded quotients of sizes: their values by whole numbers, and their normal form in comparisons."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.drawing import check_name, drawn_alike
from tracer.shapes.solver import floor_divide, normalise_floors, to_ceilings
from tracer.symbols.notation import parse
from tracer.verify.checks.run import at

LONGEST = 24
"""Sizes that are tried, from 1 on."""

EQUAL_FORMULAS = (
    ("ceiling(T/2)", "floor((T + 1)/2)", "floor((T - 1)/2) + 1"),
    ("ceiling(T/3)", "floor((T + 2)/3)", "floor((T - 1)/3) + 1", "ceiling((T + 3)/3) - 1"),
    ("floor(T/2)", "ceiling((T - 1)/2)", "floor((T + 2)/2) - 1", "floor((T - 6)/2) + 3"),
    ("floor(T/4)", "floor(floor(T/2)/2)", "ceiling(T/4 - 3/4)"),
    ("floor((T + 2)/4)", "floor((floor(T/2) + 1)/2)", "floor(floor((T - 2)/2)/2 + 1)"),
    ("floor(T/2 + B/3)", "floor((3*T + 2*B)/6)", "ceiling((3*T + 2*B - 5)/6)"),
    ("2*floor(T/5)", "2*floor((T + 5)/5) - 2", "floor(T/5) + floor((T + 10)/5) - 2"),
    ("B*ceiling(T/2)", "B*floor((T + 1)/2)"),
    ("T + 1", "T + 3 - 2"),
)
"""Formulas of one meaning; none of another line has it."""

PARSED_FORMULAS = {
    "floor((T + 1)/2)": "ceiling(T/2)",
    "floor((T - 1)/2) + 1": "ceiling(T/2)",
    "floor((T + 2)/3)": "ceiling(T/3)",
    "floor((T + 1)/3)": "floor(T/3 + 1/3)",
    "floor((T + 4)/4)": "floor(T/4) + 1",
    "ceiling(T/2 + 1)": "ceiling(T/2) + 1",
    "B*floor(T/2)": "B*floor(T/2)",
    "floor(T/B)": "floor(T/B)",
    "floor((T + 2)/4)": "floor(T/4 + 1/2)",
    "floor((T - 3)/6) + 1": "floor(T/6 + 1/2)",
    "floor((T + 1)/2 + B/3)": "floor(B/3 + T/2 + 1/2)",
    "floor(T/2 + B/3 + 5/6)": "ceiling(B/3 + T/2)",
    "T + 2": "T + 2",
}
"""What is written for a formula."""


def _forms() -> Iterator[str]:
    """Check that formulas of one meaning have one form, others another, and no form another value."""
    lines: dict[str, str] = {}
    for alike in EQUAL_FORMULAS:
        forms = {str(normalise_floors(parse(formula))) for formula in alike}
        if len(forms) > 1:
            yield f"{', '.join(alike)} are one size, and have the forms {', '.join(sorted(forms))}"
        if lines.keys() & forms:
            yield f"{alike[0]} has the form of {lines[min(lines.keys() & forms)]}, which is another size"
        lines |= dict.fromkeys(forms, alike[0])
        for formula in (*alike, "floor(T/B + 1/2)", "ceiling(T/B)"):
            form = str(normalise_floors(parse(formula)))
            sizes = ({"T": t, "B": b} for t in range(1, LONGEST) for b in (2, 5))
            wrong = next((size for size in sizes if at(form, size) != at(formula, size)), None)
            if wrong:
                yield f"the form of {formula}, {form}, is {at(form, wrong)} at {wrong}, expected {at(formula, wrong)}"


def _read() -> Iterator[str]:
    for formula, expected in PARSED_FORMULAS.items():
        if str(to_ceilings(parse(formula))) != expected:
            yield f"{formula} is written {to_ceilings(parse(formula))}, expected {expected}"


def _divisions() -> Iterator[str]:
    """Check ⌊(size + offset)/by⌋ by Python's whole numbers, of a size, an offset of one, and one that was rounded
    before."""
    inner = {"T": lambda t: t, "T + 3": lambda t: t + 3, "floor(T/2)": lambda t: t // 2}
    inner |= {"ceiling(T/3)": lambda t: -(-t // 3), "ceiling(T/2) + 1": lambda t: -(-t // 2) + 1, "7": lambda t: 7}
    for size, value in inner.items():
        for offset, by in ((0, 2), (1, 2), (-3, 2), (5, 3), (-1, 1), (9, 11)):
            said = floor_divide(size, offset, by)
            wrong = next((t for t in range(1, LONGEST) if at(said, {"T": t}) != (value(t) + offset) // by), None)
            if wrong:
                expected = (value(wrong) + offset) // by
                yield f"({size} + {offset})/{by} rounded, {said}, is not {expected} at T = {wrong}"


CHECKS = [_forms, _read, _divisions]


@pytest.mark.parametrize("problems", CHECKS, ids=check_name)
def test_rounded_quotients_are_those_of_whole_numbers(problems):
    with drawn_alike():
        assert list(problems()) == []
