"""The lines of the textbook: a symbol, an equation, a shape, and what its proof says."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
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
    """A letter of an equation that no step makes: `of` is "input image" or "parameter block1.norm1.weight", which the
    equation takes as it is, or with its last two axes exchanged if `transposed`."""

    symbol: str
    of: str
    transposed: bool = False


TOLERANCES = {"float64": 1e-11, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""Largest error of what is called proven, by the dtype in which the model computed, as a share of the largest value;
other numbers have to be the same."""


@lru_cache(maxsize=64)
def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as records name it: "float32"."""
    return str(dtype).removeprefix("torch.")


def tolerance(dtype: str) -> float:
    """Largest error of a proven equation between tensors of that dtype, as a share of the largest value."""
    return TOLERANCES.get(dtype, 0.0)


def verdict(error: float | None, dtype: str) -> str:
    """What an error says of numbers of a dtype: "proven" within the tolerance, "disproven" beyond it or where it is
    undefined, "not executed" where there was nothing to compare with."""
    if error is None:
        return "not executed"
    return "proven" if error <= tolerance(dtype) else "disproven"


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the textbook: a symbol, an equation, a shape, and the proof.

    `error` is max|equation - traced| / max|traced|, or None where the equation was not executed (`note` says
    why). `wrong` is the first cell, by its index, that is further off than `tolerance`, of a tensor of this `dtype`.
    `value` is the key of the traced tensor in `Trace.values`; `product` holds (left, right, result). `names` says what
    the letters of the equation are that no step makes: inputs and parameters. `pending` says that the proof is still to
    come (`Trace.prove`). `inside` is the fused op that went through a recomputed tensor, None for any other.
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

    @property
    def tolerance(self) -> float:
        """Largest error of a proven equation, from the dtype in which the model computed."""
        return tolerance(self.dtype)

    @property
    def verdict(self) -> str:
        """What the run says of the equation; it alone decides what is shown as proven.

        "recomputed" for a tensor that a fused op never held, "pending" for a proof that is still to come, else as in
        `verdict`.
        """
        if self.recomputed:
            return "recomputed"
        return "pending" if self.pending else verdict(self.error, self.dtype)


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size of the notation: its meaning, its value at this run, and, for derived sizes, what it equals."""

    name: str
    meaning: str
    value: int
    equals: str = ""
