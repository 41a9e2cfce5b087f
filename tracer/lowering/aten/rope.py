"""Lowering of rotary position embeddings."""

from __future__ import annotations

from tracer.expr import Concat, Imaginary, Node, Plus, Polar, Real, Rearrange, RotateEveryTwo, RotateHalf, Tensor, infer
from tracer.expr.function_call import Scalar
from tracer.expr.layout.concat_stack_pad import Full
from tracer.expr.math.algebra import Times
from tracer.expr.nn.rope import HALVES, ApplyRotary, Cosine, Sine
from tracer.lowering.aten import register_lowering
from tracer.lowering.call_arguments import BoundCall


@register_lowering("rope")
def rope(call: BoundCall) -> Node:
    """Lower `x ⊙ cos + rotate_half(x) ⊙ sin`; tables with one number for each pair are expanded to both."""
    x, halves = call["x"], call["pairs"] == HALVES
    name = next(name for name in ("cosine", "table", "angles") if name in call.arguments)
    if name == "cosine":
        tables = call["cosine"], call["sine"]
    else:
        tables = _parts(call[name]) if name == "table" else (Cosine(call[name]), Sine(call[name]))
    shapes = [*map(infer, tables)]
    if call.numeric(name)[-1] != call.numeric("x")[-1]:
        tables = [_expand_pairs(operand, shape, halves) for operand, shape in zip(tables, shapes, strict=True)]
    elif (
        halves
        and all(isinstance(operand, Tensor) for operand in (x, *tables))
        and [*map(len, (x.shape, *shapes))] == [4, 3, 3]
    ):
        return ApplyRotary(x, *tables)
    return Plus(Times(x, tables[0]), Times((RotateHalf if halves else RotateEveryTwo)(x), tables[1]))


def _parts(table: Node) -> tuple[Node, Node]:
    """Return the real and the imaginary part: cosine and sine of a table of angles."""
    if isinstance(table, Polar) and isinstance(table.args[0], Full) and table.args[0].args[0] == Scalar(1):
        return Cosine(table.args[1]), Sine(table.args[1])
    return Real(table), Imaginary(table)


def _expand_pairs(table: Node, shape: tuple, halves: bool) -> Node:
    """Return a table with one number for each pair, expanded to both elements."""
    axes, last = [(axis,) for axis in range(len(shape))], len(shape) - 1
    if halves:
        return Concat(table, table, axis=last, rank=last + 1)
    return Rearrange(table, (*shape, 2), axes, [*axes[:-1], (last, last + 1)], (last + 1,))
