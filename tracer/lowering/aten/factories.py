"""Lowerings of factories: ranges, constant tensors, the identity, and indices."""

from __future__ import annotations

import sympy

from tracer.expr import Full, Node, Transposed, Tril, Triu
from tracer.expr.function_call import Scalar
from tracer.expr.layout.arange import Arange, ArangeFrom, Identity, Linspace, Nonzero
from tracer.expr.layout.rearrange import Rearrange
from tracer.expr.nn.position_encodings import Sinusoids
from tracer.lowering.aten import of
from tracer.lowering.call_arguments import Given
from tracer.lowering.scalar_operands import filled, int_or, operand
from tracer.ops import UNINITIALISED


@of("arange")
def counted(given: Given) -> Node | None:
    """Lower `arange` from 0 in steps of 1, or from another integer or size in other steps; else keep the kernel."""
    start, step = (int_or(given.get(name, usual)) for name, usual in (("start", 0), ("step", 1)))
    if start == 0 and step == 1 and given.result_numeric[0] == given["end"]:
        return Arange(given.result[0])
    whole = all(isinstance(one, (int, sympy.Expr)) for one in (start, step))
    few = given.result_numeric[0] > 1 and given.result[0].is_Integer  # all of them are printed
    return ArangeFrom(given.result[0], start, step) if whole and (few or given.result_numeric[0] > 2) else None


@of("sinusoids")
def sinusoids(given: Given) -> Node:
    """Lower a table of sinusoids, `[T, D]`, with the leading axes of size 1 of the code."""
    length, width = given.result[-2:]
    over = width if given["steps"] == given.result_numeric[-1] // 2 else width - 2
    settings = {name: given[name] for name in ("base", "halves", "first")}
    table, ones = Sinusoids(length, width, over=over, **settings), len(given.result) - 2
    return Rearrange(table, (length, width), [(0,), (1,)], [*[()] * ones, (0,), (1,)]) if ones else table


@of("zeros", "_efficientzerotensor", *UNINITIALISED)
def zeros(given: Given) -> Node:
    """Lower `zeros`, and `empty`, of which every element is written later."""
    return filled(given, Scalar(0))


@of("ones")
def ones(given: Given) -> Node:
    return filled(given, Scalar(1))


@of("full")
def full(given: Given) -> Node:
    return filled(given, Scalar(given["fill_value"]))


@of("eye")
def identity(given: Given) -> Node:
    return Identity(*given.result)


@of("linspace")
def evenly_spaced(given: Given) -> Node:
    return Linspace(operand(given, "start"), operand(given, "end"), count=given.result[0])


@of("nonzero")
def nonzero(given: Given) -> Node:
    return Nonzero(given["self"], count=given.result[0])


@of("triu_indices", "tril_indices")
def triangle(given: Given) -> Node:
    """Lower the indices of a triangle, as two rows: those of the elements that it keeps of a matrix of ones."""
    kind = Triu if "triu" in given.func._schema.name else Tril
    ones = Full(Scalar(1), shape=(given["row"], given["col"]))
    return Transposed(Nonzero(kind(ones, diagonal=given["offset"]), count=given.result[1]))
