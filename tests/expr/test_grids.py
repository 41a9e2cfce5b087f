"""Sequence and picture: equations of their parts, printed, shaped, and executed, compared with slicing by hand."""

import pytest
import torch

from tracer.expr import Fold, Grid, Patches, Rows, RowsFrom, ShapeError, Tensor, Unfold, execute, infer, latex
from tracer.shapes import value_of
from tracer.symbols.notation import symbol

B, C, H, W, P, N, T, D, K = map(symbol, "BCHWPNTDK")
SIZES = {"B": 2, "C": 3, "H": 4, "W": 6, "P": 2, "N": 6, "T": 5, "D": 7, "K": 9}
IMAGE = Tensor(r"\mathbf{X}", (B, C, H, W), "image")
SEQUENCE = Tensor(r"\mathbf{X}_f", (B, N + T, D), "sequence")
TOKENS = Tensor(r"\mathbf{X}", (B, H * W / P**2, D), "tokens")
CELLS = Tensor(r"\mathbf{Y}", (B, H / P, W / P, P**2 * K), "cells")
TABLE = Tensor(r"\mathbf{P}_t", (N, D), "table")
VALUES = {
    "image": torch.randn(2, 3, 4, 6),
    "sequence": torch.randn(2, 11, 7),
    "tokens": torch.randn(2, 6, 7),
    "cells": torch.randn(2, 2, 3, 36),
    "table": torch.randn(6, 7),
}


def number(size):
    return value_of(str(size), SIZES)


def patch(values, n, row, column, channel):
    """Return one number of the picture, by its patch and its position there."""
    return values["image"][0, channel, n // 3 * 2 + row, n % 3 * 2 + column]


CASES = {
    "unfold": (
        Unfold(IMAGE, P),
        r"\mathcal{U}^{\mathrm{chw}}_{P}\left(\mathbf{X}\right)",
        (B, H * W / P**2, C * P**2),
        lambda made, v: made[0, 4, 2 * 4 + 1 * 2 + 0] == patch(v, 4, 1, 0, 2),
    ),
    "patches": (
        Patches(IMAGE, P),
        r"\mathcal{U}^{\mathrm{hwc}}_{P}\left(\mathbf{X}\right)",
        (B, H * W / P**2, C * P**2),
        lambda made, v: made[0, 4, (1 * 2 + 0) * 3 + 2] == patch(v, 4, 1, 0, 2),
    ),
    "rows from": (
        RowsFrom(SEQUENCE, N),
        r"{\mathbf{X}_f}_{[N:]}",
        (B, T, D),
        lambda made, v: torch.equal(made, v["sequence"][:, 6:]),
    ),
    "rows": (
        Rows(TABLE, T),
        r"{\mathbf{P}_t}_{[:T]}",
        (T, D),
        lambda made, v: torch.equal(made, v["table"][:5]),
    ),
    "grid": (
        Grid(TOKENS, H / P, W / P),
        r"\operatorname{grid}_{\frac{H}{P} \times \frac{W}{P}}\left(\mathbf{X}\right)",
        (B, H / P, W / P, D),
        lambda made, v: torch.equal(made[:, 1, 2], v["tokens"][:, 1 * 3 + 2]),
    ),
    "fold": (
        Fold(CELLS, P),
        r"\operatorname{fold}_{P}\left(\mathbf{Y}\right)",
        (B, H, W, K),
        lambda made, v: torch.equal(made[:, 3, 4], v["cells"][:, 1, 2, (1 * 2 + 0) * 9 :][:, :9]),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_object_is_printed_shaped_and_executed(name):
    equation, printed, shape, right = CASES[name]
    assert latex(equation) == printed
    assert infer(equation) == shape
    made = execute(equation, lambda tensor: VALUES[tensor.key], number)
    assert tuple(made.shape) == tuple(int(number(size)) for size in shape)
    assert right(made, VALUES)


def test_fold_undoes_patches():
    cells = Grid(Patches(IMAGE, P), H / P, W / P)
    made = execute(Fold(cells, P), lambda tensor: VALUES[tensor.key], number)
    assert torch.equal(made, VALUES["image"].permute(0, 2, 3, 1))


@pytest.mark.parametrize(
    ("equation", "words"),
    [
        (Unfold(Tensor("x", (N, D), "x"), P), "is not an image"),
        (Grid(Tensor("x", (B, N + 1, D), "x"), H / P, W / P), r"N \+ 1 is not H\*W/P\*\*2"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(equation, words):
    with pytest.raises(ShapeError, match=words):
        infer(equation)
