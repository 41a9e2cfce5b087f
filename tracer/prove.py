"""The proof of a step: its equation executed on the traced operands, compared with the traced tensor."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import sympy
import torch

from tracer.difference import relative_difference
from tracer.equations import Node, ShapeError, Tensor, execute, infer, tensors
from tracer.notation import parse
from tracer.probe import UNKNOWN, base_form, value_of
from tracer.steps import Found, Line

TOLERANCE = 1e-5
"""Largest error of a proven equation in float32, as a share of the largest value."""


class Proof(NamedTuple):
    """What executing an equation gave: the error, or None and a note on why it was not executed."""

    error: float | None
    note: str = ""


def relative_error(computed: torch.Tensor, traced: torch.Tensor) -> float:
    """max|computed - traced| / max|traced| over finite values; equal infinities count 0, 0 against 0 is 0."""
    if computed.shape != traced.shape:
        raise ShapeError(f"the equation gives shape {tuple(computed.shape)}, the run {tuple(traced.shape)}")
    return relative_difference(computed, traced)


def prove(step: Found, value: Callable[[str], torch.Tensor | None], sizes: dict[str, int]) -> Proof:
    """Executes the step's equation in float64 on traced operands; `value(key)` gives those, or None if not kept."""
    line = step.line
    missing = [t.key for t in (line.tensor, *tensors(line.equation)) if value(t.key) is None]
    if missing:
        return Proof(None, f"not executed: {missing[0]!r} was not kept (the cap on kept values was reached)")

    return Proof(relative_error(_executed(line.equation, value, sizes), value(line.tensor.key)))


def recomputed(equation: Node, value, sizes: dict[str, int]) -> torch.Tensor | None:
    """What an equation gives in float64, or None where an operand was not kept."""
    if any(value(tensor.key) is None for tensor in tensors(equation)):
        return None
    return _executed(equation, value, sizes)


def _executed(equation: Node, value, sizes: dict[str, int]) -> torch.Tensor:
    def exact(tensor: Tensor) -> torch.Tensor:
        found = value(tensor.key)
        return found.double() if found.is_floating_point() else found

    def size(expression: sympy.Expr) -> float:
        return value_of(str(expression), sizes)

    with torch.no_grad():
        return execute(equation, exact, size)


@lru_cache(maxsize=64)
def same_size(derived: tuple[tuple[str, str], ...]):
    """Whether two symbolic sizes are one, given what derived sizes equal: `same(D, h*d_k)`."""
    pairs = tuple((parse(name), parse(text)) for name, text in derived)

    @lru_cache(maxsize=4096)
    def same(a, b) -> bool:
        return a == b or sympy.simplify(base_form(str(a), pairs) - base_form(str(b), pairs)) == 0

    return same


@lru_cache(maxsize=8192)
def proven_shape(line: Line, solved: tuple[str, ...] | None, same) -> tuple[tuple[str, ...], str]:
    """A step's symbolic shape as its equation names it, each size proven against the probed one.

    Returns the shape and a note. A size that the probes don't confirm is `"?"`.
    """
    named, stated = infer(line.equation, same), line.tensor.shape
    if len(named) != len(stated) or not all(map(same, named, stated)):
        raise ShapeError(f"step {line.id!r}: the equation gives {named}, its symbol is {stated}")
    if solved is None:
        return tuple(map(str, stated)), "the shape's symbols were not probed in this run"
    if len(solved) != len(stated):
        raise ShapeError(f"step {line.id!r}: the run's tensor has {len(solved)} axes, the equation {len(stated)}")
    confirmed = [probed != UNKNOWN and same(size, parse(probed)) for size, probed in zip(stated, solved, strict=True)]
    return tuple(str(size) if ok else UNKNOWN for size, ok in zip(stated, confirmed, strict=True)), ""
