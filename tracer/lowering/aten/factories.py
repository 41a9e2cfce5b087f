"""Lowerings of factories: ranges, constant tensors, the identity, and indices."""

from __future__ import annotations

import sympy

from tracer.expr import Full, Node, Transposed, Tril, Triu
from tracer.expr.function_call import Scalar
from tracer.expr.layout.arange import Arange, ArangeFrom, Identity, Linspace, Nonzero
from tracer.expr.layout.rearrange import Rearrange
from tracer.expr.nn.position_encodings import Sinusoids
from tracer.lowering.aten import register_lowering
from tracer.lowering.call_arguments import BoundCall
from tracer.lowering.scalar_operands import fill, int_or, operand
from tracer.ops import UNINITIALISED_OPS


@register_lowering("arange")
def arange(call: BoundCall) -> Node | None:
    """Lower `arange` from 0 in steps of 1, or from another integer or size in other steps; else keep the kernel."""
    start, step = (int_or(call.get(name, usual)) for name, usual in (("start", 0), ("step", 1)))
    if start == 0 and step == 1 and call.result_numeric[0] == call["end"]:
        return Arange(call.result[0])
    whole = all(isinstance(bound, (int, sympy.Expr)) for bound in (start, step))
    few = call.result_numeric[0] > 1 and call.result[0].is_Integer  # all of them are printed
    counted = isinstance(start, sympy.Expr) and not start.is_Integer and step == 1
    return ArangeFrom(call.result[0], start, step) if whole and (few or counted or call.result_numeric[0] > 2) else None


@register_lowering("sinusoids")
def sinusoids(call: BoundCall) -> Node:
    """Lower a table of sinusoids, `[T, D]`, with the leading axes of size 1 of the code."""
    length, width = call.result[-2:]
    over = width if call["steps"] == call.result_numeric[-1] // 2 else width - 2
    settings = {name: call[name] for name in ("base", "halves", "first")}
    table, ones = Sinusoids(length, width, over=over, **settings), len(call.result) - 2
    return Rearrange(table, (length, width), [(0,), (1,)], [*[()] * ones, (0,), (1,)]) if ones else table


@register_lowering("zeros", "_efficientzerotensor", *UNINITIALISED_OPS)
def zeros(call: BoundCall) -> Node:
    """Lower `zeros`, and `empty`, of which every element is written later."""
    return fill(call, Scalar(0))


@register_lowering("ones")
def ones(call: BoundCall) -> Node:
    return fill(call, Scalar(1))


@register_lowering("full")
def full(call: BoundCall) -> Node:
    return fill(call, Scalar(call["fill_value"]))


@register_lowering("eye")
def identity(call: BoundCall) -> Node:
    return Identity(*call.result)


@register_lowering("linspace")
def evenly_spaced(call: BoundCall) -> Node:
    return Linspace(operand(call, "start"), operand(call, "end"), count=call.result[0])


@register_lowering("nonzero")
def nonzero(call: BoundCall) -> Node:
    return Nonzero(call["self"], count=call.result[0])


@register_lowering("triu_indices", "tril_indices")
def triangle(call: BoundCall) -> Node:
    """Lower the indices of a triangle, as two rows: those of the elements that it keeps of a matrix of ones."""
    kind = Triu if "triu" in call.op_name else Tril
    ones = Full(Scalar(1), shape=(call["row"], call["col"]))
    return Transposed(Nonzero(kind(ones, diagonal=call["offset"]), count=call.result[1]))
