"""Lines of the textbook: a symbol, an equation, a shape, and the outcome of its proof."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING

from tracer.record.ops import Source

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Operand:
    """One factor or the result of a matrix product: its symbol and its last two dimensions."""

    symbol: str
    symbolic: tuple[str, str]
    shape: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Name:
    """A letter of an equation that no step computes: `of` is "input image" or "parameter block1.norm1.weight", which
    the equation reads as it is, or with its last two axes exchanged if `transposed`. A "constant 0" from `outside` of
    PyTorch is another for other values of the input."""

    symbol: str
    of: str
    transposed: bool = False
    outside: bool = False


CHANGED_SUFFIX = ".changed"
"""The end of the id of a line that changes the value of the line before it."""


def split_id(id: str) -> tuple[str, str, str]:
    """Split an id into the location of a line, its name there, and its number among lines of that name, "" for the
    first: ("block1.attention", "scores", "2") for `block1.attention.scores2`, whether it was changed or not."""
    around, _, end = id.removesuffix(CHANGED_SUFFIX).rpartition(".")
    name = end.rstrip("0123456789")
    return around, name, end[len(name) :]


TOLERANCES = {"float64": 1e-11, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""By the dtype in which the model computed, the largest difference of two tensors that are called the same where
nothing is known of how each cell came about, as a share of the largest value. Proofs have a bound for each cell."""


@lru_cache(maxsize=64)
def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name in records: "float32"."""
    return str(dtype).removeprefix("torch.")


def tolerance(dtype: str) -> float:
    """Return the largest difference of two equal tensors of that dtype, as a share of the largest value."""
    return TOLERANCES.get(dtype, 0.0)


def verdict(margin: float | None) -> str:
    """Return the verdict for the largest share of the allowed error: "proven" up to 1, "disproven" beyond it or if it
    is undefined, "not executed" without anything to compare with."""
    if margin is None:
        return "not executed"
    return "proven" if margin <= 1 else "disproven"


def verdict_within(error: float | None, dtype: str) -> str:
    """Return the verdict for an error of tensors of a dtype, as a share of the largest value, by `tolerance`."""
    return verdict(error if error is None or error == 0 else error / tolerance(dtype) if tolerance(dtype) else inf)


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the textbook: a symbol, an equation, a shape, and the proof.

    Attributes:
        error: max|equation - traced| / max|traced|, or None if the equation was not executed (`note` says why).
        margin: The largest error of a cell, as a share of the error that is allowed in that cell. The allowed error
            follows from the rounding of the cell's own terms in the dtype of the run. Up to 1, the equation is proven.
        wrong: The index of the first cell whose error is larger than allowed.
        value: The key of the traced tensor in `Trace.values`.
        product: The matrix product of the line: its left operand, its right operand, and its result.
        names: The letters of the equation that no step computes: inputs and parameters.
        pending: True if the proof is still to come (`Trace.prove`).
        inside: The fused op that computes a recomputed tensor on the way; None for any other tensor.
        checked: The number of other runs whose tensors the printed line gave.
        refuted: True if the printed line contradicts another run.
        replayed: Which run refutes it, and how; or why fewer than three other runs were made (`Trace.check`).
        unseen: The operands, as they are printed, that could be left out or reordered without the proof or one of those
            runs noticing.
        recorded: True if the line stands in a file that was opened, whose tensors do not suffice to prove it again.
        of_input: True if the line has a number that the code computed from the values of this input, so that it holds
            for this input only.
    """

    id: str
    stage: str
    layer: int | None
    title: str
    symbol: str
    latex: str
    symbolic: tuple[str, ...]
    shape: tuple[int, ...]
    error: float | None
    recomputed: bool
    source: Source | None
    ops: tuple[int, ...]
    why: str
    note: str = ""
    value: str = ""
    product: tuple[Operand, Operand, Operand] | None = None
    dtype: str = "float32"
    wrong: tuple[int, ...] | None = None
    names: tuple[Name, ...] = ()
    pending: bool = False
    inside: int | None = None
    margin: float | None = None
    checked: int = 0
    refuted: bool = False
    replayed: str = ""
    unseen: tuple[str, ...] = ()
    recorded: bool = False
    of_input: bool = False

    @property
    def verdict(self) -> str:
        """Verdict on the equation; it alone decides which lines are displayed as proven.

        It is "recomputed" for a tensor that a fused op never stored, "recorded" for what a file states and nobody has
        proven, "pending" for a proof that is still to come, and otherwise that of `verdict`.
        """
        if self.recomputed:
            return "recomputed"
        if self.refuted:
            return "disproven"
        if self.recorded:
            return "recorded"
        return "pending" if self.pending else verdict(self.margin)


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size of the notation: its meaning, its value at this run, and, for derived sizes, what it equals."""

    name: str
    meaning: str
    value: int
    equals: str = ""
