"""Rounding bounds of each cell of a printed line, from evaluations with every part of it slightly perturbed.

Each part of a line is off by about one rounding of its own, and each operand by what a sum over it loses. So a line is
evaluated with each of them moved by about `TIMES` roundings, a few times; how far a cell moves is how far it may
be off. A mask of -10⁹ moves by much, and nothing beside it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tracer.record.latex_reader.lexer import Tree

DRAWS = 4
UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""How much a number may lose as it is rounded to a dtype, as a share of it."""
SMALLEST_POSITIVES = {"float64": 2.0**-1074, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
"""The least positive number of a dtype."""
TIMES = {"float64": 256, "float32": 256, "float16": 8, "bfloat16": 8}
"""By how many roundings parts are moved: kernels add up in float32, and round to narrower dtypes once."""
CANCELLING_FUNCTIONS = ("GELU", "GELU by tanh")
"""What is off by a share of its operand: where it is next to 0, it is a difference of two numbers next to 1."""


class Perturbations:
    """Perturbations of the values of parts, each cell on its own: normally distributed, since two equal ones would
    cancel."""

    def __init__(self, dtype: str, draw: int) -> None:
        self._size = UNITS[dtype] * TIMES[dtype]
        self._draw = np.random.default_rng(draw)

    def __call__(self, tree: Tree, output: np.ndarray, operand: Callable[[Tree], np.ndarray]) -> np.ndarray:
        """Return the value of a tree, perturbed; numbers without axes and whole ones stay. `operand` evaluates a part
        of it."""
        if not output.ndim or output.dtype.kind not in "fc":
            return output
        scale = np.abs(operand(tree[1])) / 2 if tree[0] in CANCELLING_FUNCTIONS else output
        return output + scale * (self._size * self._draw.standard_normal(output.shape))


def rounding_bounds(evaluate: Callable[[Perturbations], np.ndarray], computed: np.ndarray, dtype: str) -> np.ndarray:
    """Return the rounding bound of each cell of a line. `evaluate` returns its value with parts perturbed, `computed`
    is that without; a cell without a bound may be off by any number."""
    squares = np.zeros(computed.shape)
    for draw in range(DRAWS):
        with np.errstate(all="ignore"):
            squares += np.abs(evaluate(Perturbations(dtype, draw)) - computed) ** 2
    bound = np.sqrt(squares) + TIMES[dtype] * SMALLEST_POSITIVES[dtype]
    return np.where(np.isnan(bound), np.inf, bound)
