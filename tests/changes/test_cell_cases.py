"""Changes of heads and windows, written by the indices of a cell, as they are printed and as they are read again."""

import numpy as np
import pytest
import sympy

from tests.support.loaded_models import load
from tracer.expr import Tensor
from tracer.expr.arithmetic import And, Compare, Or, Where
from tracer.expr.function_call import Scalar
from tracer.expr.indexing import CellCases, by_cells
from tracer.expr.rearrangements import Arange, Rearrange
from tracer.latex_reader.evaluator import evaluate
from tracer.latex_reader.parser import read

A, S = r"\mathbf{A}^{(3)}", r"\mathbf{S}^{(3)}"
CHANGES = [
    ("weights", "drop_heads(1)", A, "kij", rf"0 & k = 1 \\ {A}_{{kij}} & \text{{else}}", ("k = 1", "k = 2")),
    (
        "weights",
        "drop_heads(0,1,3)",
        A,
        "kij",
        rf"0 & k = 0 \text{{ or }} k = 1 \text{{ or }} k = 3 \\ {A}_{{kij}} & \text{{else}}",
        ("k = 3", "k = 2"),
    ),
    ("weights", "keep_heads(0)", A, "kij", rf"{A}_{{kij}} & k = 0 \\ 0 & \text{{else}}", ("k = 0", "k = 1")),
    (
        "weights",
        "keep_heads(0,2)",
        A,
        "kij",
        rf"{A}_{{kij}} & k = 0 \text{{ or }} k = 2 \\ 0 & \text{{else}}",
        ("k = 2", "k = 3"),
    ),
    (
        "scores",
        "window(3)",
        S,
        "ij",
        rf"{S}_{{ij}} & \left|i - j\right| < 3 \\ -\infty & \text{{else}}",
        ("< 3", r"\le 3"),
    ),
]


@pytest.mark.parametrize(("line", "change", "letter", "indices", "cases", "mistake"), CHANGES)
def test_a_change_by_places_is_printed_by_indices_and_read_again(line, change, letter, indices, cases, mistake):
    id = f"block3.attention.{line}"
    run = load("vit").trace(change={id: change})
    before, changed = run.step(id), run.step(f"{id}.changed")
    name = letter.replace(r"\mathbf", r"\check{\mathbf", 1).replace("}^", "}}^", 1)
    assert changed.latex == rf"{name}_{{{indices}}} = \begin{{cases}} {cases} \end{{cases}}"
    assert changed.why.endswith("from 0.")
    values = {letter: run.value(before).numpy(), name: np.nan}
    cells = run.value(changed).numpy()

    def value(latex):
        return evaluate(read(latex, values), values.__getitem__, cells.shape)

    assert np.array_equal(value(changed.latex), cells)
    assert not np.array_equal(value(changed.latex.replace(*mistake)), cells)


h, T = sympy.symbols("h T")
X = Tensor("X", (h, T, T), "x")


def heads(*signs, kind=None):
    """Return a mask `[h, 1, 1]` of comparisons of the head with 1, 2, …"""
    comparisons = [Compare(Arange(h), Scalar(n), sign=sign) for n, sign in enumerate(signs, start=1)]
    mask = kind(*comparisons) if kind else comparisons[0]
    return Rearrange(mask, (h,), ((0,),), ((0,), (), ()))


def test_conditions_on_anything_else_stay_as_they_are():
    rows = Rearrange(Arange(T), (T,), ((0,),), ((0,), ()))
    for mask in (
        Tensor("M", (T, T), "m"),
        Compare(Tensor("n", (T,), "n"), Arange(T), sign="<"),
        Compare(X, Scalar(0), sign=">"),
        heads("=", "=", kind=lambda a, b: And(Or(a, b), a)),
        Rearrange(Arange(T), (T,), ((0,),), ((0,), (), (), ())),
        Rearrange(Compare(Arange(T), rows, sign="<"), (T, T), ((0,), (1,)), ((1,), (0,))),
    ):
        assert type(by_cells(Where(mask, X, Scalar(0)))) is Where
    for branch in (Tensor("b", (T,), "b"), Tensor("X", (h, 1, T), "x")):  # cells of the result are no cells of these
        assert type(by_cells(Where(heads("="), X, branch))) is Where
    for mask in (heads("="), heads(r"\ne", r"\ne", kind=And), Compare(Arange(T), rows, sign="<")):
        assert type(by_cells(Where(mask, X, Scalar(0)))) is CellCases
    assert by_cells(X) is X
