"""Sizes at which a comparison of a forward has another outcome, chosen among those that it depends on."""

import operator

import pytest

from tracer.capture.logged_sizes import Read
from tracer.shapes import Vocabulary
from tracer.shapes.variation import Guard, Trials

DERIVED_SIZES = {"N": "H/P", "S": "N + 1"}
RUNS = ({"H": 32, "P": 4, "D": 48, "K": 10}, {"H": 16, "P": 4, "D": 96, "K": 7})


def trials() -> Trials:
    vocabulary = Vocabulary(tuple(RUNS[0]), DERIVED_SIZES, build=lambda sizes: ())
    return Trials(map(vocabulary.complete, RUNS), RUNS[0], vocabulary.complete, DERIVED_SIZES)


@pytest.mark.parametrize(
    ("formula", "limit", "at"),
    [
        ("D", 100, {"H": 16, "P": 4, "D": 144, "K": 7}),
        ("S", 12, {"H": 48, "P": 4, "D": 96, "K": 7}),  # S is 1 + H/P, and no size that can be chosen
        ("S*K", 7, {"H": 16, "P": 4, "D": 96, "K": 1}),
        ("H", 10_000, None),
    ],
)
def test_a_comparison_comes_out_otherwise_at_the_nearest_size_that_it_depends_on(formula, limit, at):
    guard = Guard(operator.gt, Read(formula), limit)
    assert trials().sizes(guard) == at


def test_only_the_sizes_behind_a_comparison_are_tried(monkeypatch):
    board, tried = trials(), set()
    numbers = board._numbers
    monkeypatch.setattr(board, "_numbers", lambda name, guard: tried.add(name) or numbers(name, guard))
    board.sizes(Guard(operator.gt, Read("S"), 12))
    assert tried == {"H", "P"}
