"""Formulas with gaps, which the arguments of a call fill."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sympy
from sympy.core.symbol import Str

from tracer.expr import Node
from tracer.expr.function_call import encode
from tracer.lowering.call_arguments import BoundCall, node_of


class Wild(Node):
    """A gap in a formula, by its name: `Div(Scalar(1), Root(Wild("self")))`. Gaps of one name hold the same."""

    def __new__(cls, name: str):
        return super().__new__(cls, name if isinstance(name, Str) else Str(name))

    @property
    def name(self) -> str:
        return self.args[0].name


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
