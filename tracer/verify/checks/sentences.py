"""The numbers in the sentences beside steps, each measured on this run or computed again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import erf, pi, sqrt

import numpy as np

from tracer.verify.checks.plain import Run, array


def problems(run: Run) -> Iterator[str]:
    """Looks for every fact of the table in the texts of the run's steps."""
    for text in dict.fromkeys(text for step in run.trace.steps for text in (step.why, step.note)):
        for pattern, holds in FACTS.items():
            for found in re.finditer(pattern, text):
                if not holds(run, *found.groups()):
                    yield f"“{found[0]}” does not hold"


X = np.linspace(-8, 0, 8001)


def _exact(run: Run, bound: str) -> bool:
    """The least value of `x · ½(1 + erf(x/√2))`."""
    return _rounded(min(x * (1 + erf(x / sqrt(2))) / 2 for x in X), bound)


def _tanh(run: Run, bound: str) -> bool:
    return _rounded((X * (1 + np.tanh(sqrt(2 / pi) * (X + 0.044715 * X**3))) / 2).min(), bound)


def _rounded(least: float, bound: str) -> bool:
    """Whether no value lies below the bound, which is given to two decimals."""
    return 0 <= least - float(bound) < 0.01


def _weights(run: Run, factor: str, times: str) -> bool:
    """The weights of an MLP that is `factor` times wider over those of attention: `2 · factor · D²` over `4 · D²`."""
    return 2 * int(factor) == 4 * {"twice": 2, "three times": 3, "half": 0.5}[times]


def _sums(run: Run, total: str) -> bool:
    return all(abs(rows.sum(axis=-1) - int(total)).max() < 1e-5 for rows in run.softmaxes)


def _cosines(run: Run, least: str, most: str) -> bool:
    values = array(run.trace.value("cosines"))
    return float(least) <= values.min() and values.max() <= float(most) and float(most) - float(least) <= 2


FACTS: dict[str, Callable[..., bool]] = {
    r"^GELU keeps [^.]*? every negative one to between (-[\d.]*\d) and 0": _exact,
    r"by tanh [^.]*\. [^.]*? every negative one to between (-[\d.]*\d) and 0": _tanh,
    r"Where d_ff is (\d+) · D, the two products of the MLP hold ([a-z ]+?) as many weights as the four": _weights,
    r"row of scores becomes shares that sum to (\d+)": _sums,
    r"Cosines lie between (-?\d+) and (-?\d+)": _cosines,
}
"""What stands in a sentence, and what measures the numbers in it."""
