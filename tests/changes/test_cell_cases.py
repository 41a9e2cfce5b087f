"""Changes of heads and windows, written by the indices of a cell, as they are printed and as they are read again."""

import numpy as np
import pytest
import sympy
import torch

import tracer
from tests.support.loaded_models import load
from tracer.expr import Tensor
from tracer.expr.arithmetic import And, Compare, Or, Where
from tracer.expr.function_call import Scalar
from tracer.expr.indexing import CellCases, by_cells
from tracer.expr.rearrangements import Arange, Rearrange
from tracer.latex_reader.evaluator import evaluate
from tracer.latex_reader.parser import UnreadableLatex, read

A, S = r"\mathbf{A}^{(3)}", r"\mathbf{S}^{(3)}"
CHANGES = [
    (
        "weights",
        "drop_heads(1)",
        A,
        "kij",
        rf"0 & k = \text{{head }}2 \\ {A}_{{kij}} & \text{{else}}",
        ("head }2", "head }3"),
    ),
    (
        "weights",
        "drop_heads(0,1,3)",
        A,
        "kij",
        rf"0 & k = \text{{head }}1 \text{{ or }} k = \text{{head }}2 \text{{ or }} k = \text{{head }}4 \\ "
        rf"{A}_{{kij}} & \text{{else}}",
        ("head }4", "head }3"),
    ),
    (
        "weights",
        "keep_heads(0)",
        A,
        "kij",
        rf"{A}_{{kij}} & k = \text{{head }}1 \\ 0 & \text{{else}}",
        ("head }1", "head }2"),
    ),
    (
        "weights",
        "keep_heads(0,2)",
        A,
        "kij",
        rf"{A}_{{kij}} & k = \text{{head }}1 \text{{ or }} k = \text{{head }}3 \\ 0 & \text{{else}}",
        ("head }3", "head }4"),
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
    ending = "Heads count from 1." if "heads" in change else "from 0."
    assert changed.why.endswith(ending)
    values = {letter: run.value(before).numpy(), name: np.nan}
    cells = run.value(changed).numpy()

    def value(latex):
        return evaluate(read(latex, values), values.__getitem__, cells.shape)

    assert np.array_equal(value(changed.latex), cells)
    assert not np.array_equal(value(changed.latex.replace(*mistake)), cells)


def test_heads_inside_of_an_axis_count_from_1_and_other_numbers_from_0():
    class Merged(torch.nn.Module):
        def forward(self, x):
            q = x.view(*x.shape[:2], 3, 4).transpose(1, 2)
            return ((q @ q.transpose(2, 3)).softmax(-1) @ q).transpose(1, 2).reshape(x.shape)

    x = torch.randn(2, 5, 12)
    context = tracer.trace(Merged(), x, change={"attention.context": tracer.changes.drop_heads([1])})
    changed = context.step("attention.context.changed")
    name = r"\check{\mathbf{H}}"
    assert changed.latex == (
        rf"{name}_{{j}} = \begin{{cases}} 0 & \left\lfloor \frac{{j}}{{4}} \right\rfloor = \text{{head }}2 \\ "
        r"\mathbf{H}_{j} & \text{else} \end{cases}"
    )
    values = {r"\mathbf{H}": context.value(context.step("attention.context")).numpy(), name: np.nan}
    cells = context.value(changed).numpy()
    assert not cells[..., 4:8].any() and cells[..., :4].any()
    line = read(changed.latex, values)
    assert np.array_equal(evaluate(line, values.__getitem__, cells.shape), cells)

    rows = tracer.trace(Merged(), x, change={"attention.weights": lambda a: a * (torch.arange(5) != 1)[:, None]})
    assert "head" not in rows.step("attention.weights.changed").latex
    with pytest.raises(UnreadableLatex, match="number of a head, from 1"):
        read(changed.latex.replace("head }2", "head }0"), values)


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
