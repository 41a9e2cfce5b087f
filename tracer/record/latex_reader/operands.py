"""Meaning of names in printed lines, and the deviation of printed values from those that ran."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain

import numpy as np

from tracer.record.latex_reader.lexer import UnreadableLatex
from tracer.record.latex_reader.parser import Line
from tracer.utils.error_text import quote

INFINITY_THRESHOLD = 1e30
"""Numbers beyond it stand for infinities: some masks have the lowest one of float32 for -∞."""
LEAST_FILL = 1e4
"""Size of the least number that stands for an infinity in a mask."""


def names(steps: Iterable) -> dict[str, list[str]]:
    """Return the referents of each printed name of a tensor, exactly one if the line is sound: `"step logits"`, `"input
    image"`, `"parameter head.weight"`, with `.T` if transposed."""
    operands: dict[str, dict[str, None]] = {}
    steps = list(steps)
    for step in steps:
        operands.setdefault(step.symbol, {})[f"step {step.id}"] = None
    for name in chain.from_iterable(step.names for step in steps):
        operands.setdefault(name.symbol, {})[name.of + ".T" * name.transposed] = None
    return {symbol: list(things) for symbol, things in operands.items()}


class MissingOperand(UnreadableLatex):
    """An operand of a printed line that is not available."""


class Operands:
    """Values of names: `operands(name)`.

    `table` says by which key each name stands, `sizes` has the values of the sizes, and `tensor(key)` an array, or None
    where it is not at hand. `computed` holds what printed lines gave for tensors that were never held, by their names.
    """

    def __init__(
        self, table: Mapping[str, str], sizes: Mapping[str, int], tensor: Callable[[str], np.ndarray | None]
    ) -> None:
        self.names = frozenset(table) | frozenset(sizes)
        self.computed: dict[str, np.ndarray] = {}
        self._table, self._sizes, self._tensor = table, sizes, tensor

    def __call__(self, name: str) -> np.ndarray:
        if name in self._sizes:
            return np.asarray(self._sizes[name])
        if name in self.computed:
            return self.computed[name]
        key = self._table[name]
        array = self._tensor(key.removesuffix(".T"))
        if array is None:
            raise MissingOperand(f"{quote(key)} was not kept")
        return array.swapaxes(-2, -1) if key.endswith(".T") else array


def zero_empty_rows(computed: np.ndarray, ran: np.ndarray, line: Line, operands: Operands) -> np.ndarray:
    """Return the value of a line, with 0 for queries that may attend to nothing: a kernel that held no softmax returns
    0 for them, where a softmax of no numbers is undefined."""
    empty = np.isnan(computed) & (ran == 0)
    return (
        np.where(empty, 0, computed) if empty.any() and _names_in(line.right) & operands.computed.keys() else computed
    )


def _names_in(tree) -> set[str]:
    """Return the names in a tree."""
    if not isinstance(tree, tuple):
        return set()
    own = {tree[1]} if tree[:1] == ("name",) else set()
    return own.union(*map(_names_in, tree))


def deviation(computed: np.ndarray, ran: np.ndarray, lowest: bool = False) -> np.ndarray:
    """Return |computed - ran| of each cell, as a share of the largest |ran|; equal infinities count 0, and so does
    NaN in both. A number beyond `fill_threshold` is compared with itself, and no other with it; with `lowest`, the
    lowest one of another dtype counts as the same. Whole numbers have no infinity: a stand-in for one is not
    compared."""
    whole = ran.dtype.kind in "iu"
    if not (np.iscomplexobj(computed) or np.iscomplexobj(ran)):
        computed, ran = computed.astype(float), ran.astype(float)
    same, size = (computed == ran) | (np.isnan(computed) & np.isnan(ran)), np.abs(ran)
    if lowest and not np.iscomplexobj(ran):
        same |= (computed < -INFINITY_THRESHOLD) & (ran < -INFINITY_THRESHOLD)
    same |= whole & ~np.isfinite(computed)
    threshold = fill_threshold(ran)
    largest = size[size <= threshold].max(initial=0)
    with np.errstate(all="ignore"):
        scale = np.where((size > threshold) & np.isfinite(size), size, largest)
        return np.where(same, 0, np.abs(computed - ran) / scale)


def fill_threshold(values: np.ndarray) -> float:
    """Return the size beyond which numbers stand for infinities: `INFINITY_THRESHOLD`, or less where a mask has a large
    negative number for -∞, such as -10⁹. All others are nothing beside it, a thousandth at most."""
    threshold = INFINITY_THRESHOLD
    while not (np.iscomplexobj(values) or values.min(initial=0) > -LEAST_FILL):
        values = values[np.abs(values) <= threshold]
        lowest = values.min(initial=0)
        others = np.abs(values[values > lowest / 10])
        if lowest > -LEAST_FILL or not others.size or others.max() > -lowest / 1000:
            break
        threshold = float(-lowest / 10)
    return threshold


def shares(computed: np.ndarray, ran: np.ndarray) -> np.ndarray:
    """Return `deviation` where a few large cells hide no others: of numbers a hundred thousand times as large as the
    smallest tenth, such as those of a mask, each is compared with itself, and all others with one another."""
    size = np.abs(ran.astype(complex if np.iscomplexobj(ran) else float))
    finite = size[(size > 0) & (size <= INFINITY_THRESHOLD)]
    edge = INFINITY_THRESHOLD if not finite.size else 1e5 * np.quantile(finite, 0.1)
    far = (size > edge) & (size <= INFINITY_THRESHOLD)
    if not far.any():
        return deviation(computed, ran)
    near = deviation(np.where(far, 0, computed), np.where(far, 0, ran))
    with np.errstate(all="ignore"):
        same = (computed == ran) | ((ran.dtype.kind in "iu") & ~np.isfinite(computed))
        own = np.where(same, 0, np.abs(computed - ran) / size)
    return np.where(far, np.maximum(own, 0), near)
