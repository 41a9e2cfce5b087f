"""Titles of formulas that no op of PyTorch computes, read from the equation of a line and of those that it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tracer.expr import Compare, Div, Einsum, Maximum, Node, Not, Rearrange, Scalar, Scaled, Sigmoid, Sum, Tensor, Times
from tracer.expr.arithmetic import Where

QUICK_GELU_SLOPE = 1.702
"""What a sigmoid takes its argument times for it to be near that of GELU."""
UNIFORM = "rand", "rand_like"
"""Calls that draw numbers from 0 to 1."""
LESS = "<", r"\le"
"""Comparisons that hold for small numbers."""
NEAR = 1e-4
"""How near two numbers of the code are that count as one."""


class Earlier(NamedTuple):
    """A line before: the name of the call that computed it, and its equation."""

    call: str
    equation: Node


class Formula(NamedTuple):
    """An equation, and the lines before it by the keys of their tensors."""

    equation: Node
    before: Mapping[str, Earlier]


Check = Callable[[Formula], bool]
TITLES: list[tuple[str, Check]] = []
"""All formulas that have a title, each with its check."""


def formula(title: str) -> Callable[[Check], Check]:
    """Register the check of a formula by its title."""

    def register(check: Check) -> Check:
        TITLES.append((title, check))
        return check

    return register


def formula_title(equation: Node, before: Mapping[str, Earlier]) -> str:
    """Return the title of an equation that is a known formula; "" for any other."""
    known = Formula(equation, before)
    return next((title for title, check in TITLES if check(known)), "")


def _number(node: Node) -> float | None:
    """Return a number of the code; None for anything else."""
    value = node.args[0] if isinstance(node, Scalar) else None
    return float(value) if value is not None and value.is_number and value.is_real else None


def _is_near(number: float | None, other: float) -> bool:
    return number is not None and abs(number - other) < NEAR


@formula("QuickGELU")
def is_quick_gelu(known: Formula) -> bool:
    """Return whether it is x σ(1.702 x)."""
    if not isinstance(known.equation, Times) or len(known.equation.args) != 2:
        return False
    for x, gate in (known.equation.args, known.equation.args[::-1]):
        inner = gate.args[0] if isinstance(gate, Sigmoid) else None
        if isinstance(inner, Scaled) and inner.args[1] == x:
            return _is_near(_number(inner.args[0]), QUICK_GELU_SLOPE)
    return False


@formula("Dropout")
def is_dropout(known: Formula) -> bool:
    """Return whether it is a value times random flags, divided by the share of them that is 1."""
    equation, kept = known.equation, None
    if isinstance(equation, Div):
        equation, kept = equation.args[0], _number(equation.args[1])
    elif isinstance(equation, Scaled) and (factor := _number(equation.args[0])):
        equation, kept = equation.args[1], 1 / factor
    if kept is None or not isinstance(equation, Times):
        return False
    return any(_is_near(share, kept) for factor in equation.args for share in _shares_of_flags(known, factor))


def _shares_of_flags(known: Formula, node: Node) -> Iterator[float]:
    """Yield the share of random flags that is 1; none of a value that holds no such flags."""
    line = known.before.get(node.key) if isinstance(node, Tensor) else None
    if line is not None and line.call == "bernoulli":
        for tensor in line.equation.atoms(Tensor):
            numbers = known.before[tensor.key].equation.atoms(Scalar) if tensor.key in known.before else ()
            yield from (share for number in numbers if (share := _number(number)) is not None)
    flags = node if line is None else line.equation
    if not isinstance(flags, Compare) or not isinstance(drawn := flags.args[0], Tensor):
        return
    limit, source = _number(flags.args[1]), known.before.get(drawn.key)
    if limit is not None and source is not None and source.call in UNIFORM:
        yield limit if flags.get("sign") in LESS else 1 - limit


def _without_new_axes(node: Node) -> Node:
    """Return a value without the axes of length 1 that are added to it."""
    while isinstance(node, Rearrange):
        before, after = ([axes for axes in side if axes] for side in node.args[2:4])
        if before != after:
            return node
        node = node.args[0]
    return node


def _weight_of_mean(known: Formula) -> Node | None:
    """Return the weights of a mean, Σ w x / Σ w; None for another formula."""
    if not isinstance(known.equation, Div):
        return None
    total, whole = known.equation.args[0], _without_new_axes(known.equation.args[1])
    whole = whole.args[0] if isinstance(whole, Maximum) and _number(whole.args[1]) is not None else whole
    if not isinstance(whole, Sum):
        return None
    weights, axes = _without_new_axes(whole.args[0]), whole.args[1]
    if isinstance(total, Einsum):
        return weights if weights in total.args[:-1] and len(total.args) == 3 and total.contracts else None
    if not isinstance(total, Sum) or total.args[1] != axes:
        return None
    inner = total.args[0]
    if isinstance(inner, Where):
        condition, closed, _ = inner.args
        hides = isinstance(condition, Not) and _without_new_axes(condition.args[0]) == weights
        return weights if hides and _number(closed) == 0 else None
    factors = [*map(_without_new_axes, inner.args)] if isinstance(inner, Times) else []
    return weights if len(factors) == 2 and weights in factors else None


@formula("Masked mean")
def is_masked_mean(known: Formula) -> bool:
    """Return whether it is the mean of what the flags of a comparison choose."""
    weights = _weight_of_mean(known)
    line = known.before.get(weights.key) if isinstance(weights, Tensor) else None
    flags = weights if line is None else line.equation
    return flags is not None and isinstance(_without_new_axes(flags), Compare)


@formula("Weighted mean")
def is_weighted_mean(known: Formula) -> bool:
    """Return whether it is Σ w x / Σ w."""
    return _weight_of_mean(known) is not None
