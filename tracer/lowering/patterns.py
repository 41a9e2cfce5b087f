"""Formulas with gaps: the arguments of a call fill them, and an equation is matched with them.

`Div(Scalar(1), Root(Wild("x")))` is the node of `rsqrt`, once `x` is filled, and matches each equation of that form. A
pattern of axes, `"b h s d -> b s h d"`, says the same of a rearrangement, in the notation of einops.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import sympy
from sympy.core.symbol import Str

from tracer.expr import Node
from tracer.expr.function_call import decode, encode
from tracer.lowering.call_arguments import BoundCall, node_of


class Wild(Node):
    """A gap in a formula, by its name: gaps of one name hold the same, one without a name holds anything.

    It matches any node, size or setting; with `kinds`, only nodes of these classes.
    """

    def __new__(cls, name="", *kinds):
        names = (kind.__name__ if isinstance(kind, type) else kind for kind in (name, *kinds))
        return super().__new__(cls, *(Str(name) if isinstance(name, str) else name for name in names))

    @property
    def name(self) -> str:
        return self.args[0].name

    def fits(self, value: sympy.Basic) -> bool:
        """Return whether the gap can hold a value."""
        kinds = {kind.name for kind in self.args[1:]}
        return not kinds or any(base.__name__ in kinds for base in type(value).__mro__)


class OneOf(Node):
    """A pattern that matches what one of several patterns does; the first of them counts."""


LEFT_OUT = encode(None)
"""A setting that a pattern leaves out."""


# Lowering: a formula is filled from a call.

Settings = Callable[[BoundCall], Mapping[str, Any] | None]
"""Computes settings of a node from a call, such as axes and their labels; None if the call has no formula."""


def lower(formula: Node, settings: Settings, call: BoundCall) -> Node | None:
    """Return a formula filled with the arguments of a call; `settings` computes those of the outermost node."""
    computed = settings(call)
    return None if computed is None else fill(formula, call, **computed)


def fill(formula: Node, call: BoundCall, **settings) -> Node:
    """Return a formula with the arguments of a call in its gaps: nodes in the place of operands, values in that of
    settings. `settings` replace those of the outermost node."""
    if isinstance(formula, Wild):
        return node_of(call[formula.name])
    fields = getattr(formula, "fields", ())
    count = len(formula.args) - len(fields)
    operands = [fill(inner, call) if isinstance(inner, Node) else inner for inner in formula.args[:count]]
    values: dict[str, sympy.Basic] = {
        field: encode(call[value.name]) if isinstance(value, Wild) else value
        for field, value in zip(fields, formula.args[count:], strict=True)
    }
    return formula.func(*operands, **values | settings)


# Rewriting: an equation that a formula matches is replaced.


class Rule(NamedTuple):
    """A rewrite of an equation: `replace` takes what the gaps of the pattern hold, by their names, and returns the node
    that stands for the whole; None if it does not after all."""

    pattern: Node
    replace: Callable[..., Node | None]


def rewrite(rules: Sequence[Rule], node: Node) -> Node | None:
    """Return the replacement of a node by the first rule that has one; None if none has."""
    for rule in rules:
        captures = match(rule.pattern, node)
        if captures is not None and (replacement := rule.replace(**captures)) is not None:
            return replacement
    return None


def match(pattern: Node, node: Node) -> dict[str, Any] | None:
    """Return what the gaps of a pattern hold in a node, by their names; None if it does not match.

    Nodes and sizes are sympy expressions, settings Python values. A setting that a pattern leaves out may be anything.
    """
    captures = _match(pattern, node, {})
    if captures is None:
        return None
    return {name: value if isinstance(value, sympy.Expr) else decode(value) for name, value in captures.items()}


def _match(pattern, value, captures: dict[str, Any]) -> dict[str, Any] | None:
    if isinstance(pattern, Wild):
        if not pattern.fits(value) or captures.get(pattern.name, value) != value:
            return None
        return captures | {pattern.name: value} if pattern.name else captures
    if isinstance(pattern, OneOf):
        matches = (_match(alternative, value, captures) for alternative in pattern.args)
        return next((found for found in matches if found is not None), None)
    if not isinstance(pattern, (Node, sympy.Tuple)):
        return captures if pattern == value else None
    if not isinstance(value, type(pattern)) or len(value.args) != len(pattern.args):
        return None
    count = len(pattern.args) - len(getattr(pattern, "fields", ()))
    for place, (inner, part) in enumerate(zip(pattern.args, value.args, strict=True)):
        if place < count or inner != LEFT_OUT:
            if (found := _match(inner, part, captures)) is None:
                return None
            captures = found
    return captures


# Rearrangements of axes.


@lru_cache(maxsize=64)
def _axis_names(side: str) -> tuple[bool, list[str]]:
    """Return whether any axes may be in front, and the names of the others."""
    names = re.findall(r"\([^)]*\)|\w+", side)
    return side.startswith("..."), names


def match_axes(pattern: str, left: Sequence, right: Sequence) -> dict[str, Any] | None:
    """Return what the names of a pattern of axes, `"... S (h d) -> ... h S d"`, stand for in a rearrangement, or None.

    `left` and `right` hold the factors of each axis. A small letter stands for one factor, a capital for all of an
    axis, and dots for any axes in front.
    """
    captures: dict[str, Any] = {}
    for side, axes in zip(pattern.split(" -> "), (tuple(left), tuple(right)), strict=True):
        dots, names = _axis_names(side)
        count = len(axes) - len(names)
        if count < 0 or (count and not dots):
            return None
        found: list[tuple[str, Any]] = [("...", axes[:count])] if dots else []
        for name, axis in zip(names, axes[count:], strict=True):
            letters = name.strip("()").split()
            if not name.isupper() and len(letters) != len(axis):
                return None
            found += [(name, axis)] if name.isupper() else zip(letters, axis, strict=True)
        if any(captures.setdefault(name, part) != part for name, part in found):
            return None
    return captures
