"""Python numbers that are solved from their values in some runs: a formula has to match exactly, not nearly."""

from __future__ import annotations

from math import log, sqrt

import pytest

from tracer.shapes import Solver
from tracer.shapes.solver import UNKNOWN, solve_number

LENGTHS = (7, 11, 19, 31, 46)
"""The token counts of four runs, and of one that the formula has to predict."""

FORMULAS = {
    "1/(T)": lambda length: 1 / length,
    "sqrt(T)": sqrt,
    "1/sqrt(T)": lambda length: 1 / sqrt(length),
    "log(T)": log,
}


@pytest.fixture(scope="module")
def solver() -> Solver:
    *used, fresh = ({"T": length} for length in LENGTHS)
    return Solver(("T",), {}, used, fresh)


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_number_that_a_formula_has_in_every_run_is_that_formula(solver, formula):
    assert solve_number(solver, tuple(map(FORMULAS[formula], LENGTHS))) == formula


@pytest.mark.parametrize("error", [4e-7, -4e-7, 1.3e-5])
@pytest.mark.parametrize("formula", FORMULAS)
def test_a_number_near_a_formula_is_not_that_formula(solver, formula, error):
    near = tuple(FORMULAS[formula](length) * (1 + error) for length in LENGTHS)
    assert solve_number(solver, near) == UNKNOWN


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_formula_that_misses_the_last_run_is_none(solver, formula):
    *used, last = map(FORMULAS[formula], LENGTHS)
    assert solve_number(solver, (*used, last * 1.001)) == UNKNOWN
