"""Bound arguments of one op call, as lowering functions read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import sympy
import torch
from sympy import sqrt

from tracer.expr import (
    AllOf,
    And,
    AnyOf,
    Bool,
    Compare,
    Concat,
    Div,
    Floor,
    Full,
    Index,
    IndexPut,
    Max,
    Min,
    Minus,
    Negative,
    Node,
    Not,
    OneHot,
    Or,
    Over,
    Plus,
    Rearrange,
    Remainder,
    Scalar,
    Scaled,
    Scatter,
    ShapeError,
    Slice,
    Sort,
    Stack,
    Tensor,
    Times,
    TopK,
    Tril,
    Triu,
    Truncated,
    Wrapped,
    Xor,
    infer,
)
from tracer.expr.arithmetic import Product
from tracer.expr.function_call import Kernel
from tracer.expr.index_sets import Copies, SelectOne
from tracer.expr.recurrence import TRANSPOSED_OPERAND
from tracer.expr.reductions import Einsum
from tracer.graph.dataflow import NARROW, holds
from tracer.graph.value_shapes import IS, MOVES, OF_INPUT
from tracer.ops import Op, schema
from tracer.record import dtype_name
from tracer.shapes import UNKNOWN
from tracer.shapes.solver import DATA, TOLERANCE, Where
from tracer.symbols.notation import parse, symbol
from tracer.utils.torch_internals import default_arguments, function_schema

SHOWN_BY_SHAPES = frozenset("end num_classes k normalized_shape size sizes split_size dim N C HxW".split())
"""Arguments that need no formula of their own: the shapes of operands and results show them."""


class BoundCall:
    """Bound arguments of one op call, by the names of the op's schema, with the shapes of tensors.

    `arguments` holds by name the Node of a tensor, a list of Nodes (or None) for a list of tensors, and the plain value
    of anything else. Missing arguments have the schema's default. `shapes`, `numerics` and `dtypes` are those of the
    tensors by name, lists for lists of tensors. `position` is the index of the output, `result` its symbolic shape, and
    `result_numeric` its shape in the run. `numbers` are the numbers that differ between runs, as in `Solution.scalars`;
    `remark` gets a sentence on each without a formula. `sizes` are the values of the symbols in the run.
    """

    def __init__(
        self,
        func,
        arguments: Mapping[str, Any],
        shapes: Mapping[str, Any],
        numerics: Mapping[str, Any],
        dtypes: Mapping[str, Any],
        position: int = 0,
        result: tuple = (),
        result_numeric: tuple[int, ...] = (),
        numbers: Mapping[Where, str] | None = None,
        remark: Callable[[str], None] = lambda text: None,
        sizes: Mapping[str, int] | None = None,
    ):
        self.func, self.position = func, position
        self.tied: frozenset[Tensor] = frozenset()
        """Parameters that are read as they are elsewhere, and so have their name for that."""
        self.unnamed: Mapping[str, frozenset[int]] = {}
        """By tensor, the axes whose sizes are numbers of this run alone."""
        self.result_dtype: torch.dtype | None = None
        """Dtype of the output, where it is known."""
        self.result, self.result_numeric = tuple(map(sympy.sympify, result)), tuple(result_numeric)
        self.arguments = dict(arguments)
        self._numbers, self._remark = numbers or {}, remark
        self._worth = {symbol(name): value for name, value in (sizes or {}).items()}
        self._shapes, self._numerics, self.dtypes = shapes, numerics, dtypes
        self._defaults = default_arguments(func)
        for (name, place), text in self._numbers.items():
            if text == DATA:
                remark(f"{_item(self.number(name), place)} {OF_INPUT}")

    def __getitem__(self, name: str):
        """Return an argument, with numbers replaced by their formulas. Raise KeyError if the op has none of that
        name."""
        return self._with_formulas(name, self.arguments[name] if name in self.arguments else self._defaults[name])

    def get(self, name: str, default: object = None) -> Any:
        """Return an argument, or `default` if the op has none of that name."""
        return self._with_formulas(name, self.arguments.get(name, self._defaults.get(name, default)))

    def _with_formulas(self, name: str, value):
        """Return an argument with numbers replaced by their formulas; add a remark on each without one."""
        mine = {place: text for (argument, place), text in self._numbers.items() if argument == name}
        if not mine:
            return value
        several = isinstance(value, (list, tuple))
        numbers = list(value) if several else [value]
        for place, text in mine.items():
            number = numbers[place]
            if text == DATA:
                continue
            if text != UNKNOWN and name in self.op.formulas:
                numbers[place] = parse(text)
            elif text == UNKNOWN or name not in SHOWN_BY_SHAPES:
                self._say(number, text)
        return numbers if several else numbers[0]

    def _say(self, number: Any, text: str) -> None:
        """Add a remark on a number that moves, or is written without its formula."""
        self._remark(MOVES.format(number) if text == UNKNOWN else IS.format(number, text))

    def number(self, name: str) -> Any:
        """Return an argument as it was in the run, without a remark: anything computed from it holds at any sizes."""
        return self.arguments[name] if name in self.arguments else self._defaults[name]

    def kernel(self) -> dict[str, Any]:
        """Return all arguments with their numbers in the run, for PyTorch's own op."""
        for (name, place), text in self._numbers.items():
            if text != DATA:
                self._say(_item(self.number(name), place), text)
        return self.arguments

    def has(self, name: str) -> bool:
        """Return whether an argument is present and not None."""
        return self.get(name) is not None

    @property
    def op(self) -> Op:
        """The entry of the op in the table of ops."""
        return schema(self.op_name)

    @property
    def op_name(self) -> str:
        """Name of the op, without its overload: `aten::add_`."""
        return function_schema(self.func).name

    @property
    def first(self) -> str:
        """Name of the op's first argument."""
        return function_schema(self.func).arguments[0].name

    def shape(self, name: str) -> tuple:
        """Return the symbolic shape of a tensor; a list of them for a list of tensors."""
        return self._shapes[name]

    def numeric(self, name: str) -> Any:
        """Return the shape of a tensor in the run; a list of them for a list of tensors."""
        return self._numerics[name]

    def dtype(self, name: str) -> Any:
        """Return the torch.dtype of a tensor; a list of them for a list of tensors."""
        return self.dtypes[name]

    def rank(self, name: str) -> int:
        """Return the number of axes of a tensor."""
        return len(self.numeric(name))

    def with_layout(self, name: str, shape: Sequence, numeric: Sequence[int]) -> None:
        """Replace the layout of a tensor by one with these shapes."""
        self._shapes = {**self._shapes, name: tuple(shape)}
        self._numerics = {**self._numerics, name: tuple(numeric)}

    def axes(self, name: str, dims: int | Sequence[int] | None) -> tuple[int, ...]:
        """Return axes of a tensor, sorted and counted from 0; all axes if `dims` is None or empty."""
        rank = self.rank(name)
        dims = (dims,) if isinstance(dims, int) else dims
        return tuple(sorted(axis % rank for axis in dims)) if dims and rank else tuple(range(rank))

    def axis_labels(self, name: str, axes: Sequence[int]) -> dict:
        """Return `axes` and `labels` of a node, by the sizes of a tensor's axes.

        Labels are None where the sizes would name other axes: each label, from the last to the first, is the last axis
        of that size before the next label. They are None, too, where a size is a number of this run alone.
        """
        symbolic, numeric = self.shape(name), self.numeric(name)
        is_labelled = all(_find_labelled(shape, axes) == tuple(axes) for shape in (symbolic, numeric))
        known = not any(str(symbolic[axis]) == "?" for axis in axes)
        known = known and self.unnamed.get(name, frozenset()).isdisjoint(axes)
        return {
            "axes": tuple(axes),
            "labels": tuple(symbolic[axis] for axis in axes) if is_labelled and known else None,
        }

    def unless_last(self) -> dict:
        """Return `axis_labels` of the argument `dim` on the argument `self`; empty for its last axis."""
        rank = self.rank("self")
        axis = self["dim"] % rank if rank else 0
        return {} if axis == rank - 1 or not rank else self.axis_labels("self", (axis,))

    def along(self) -> dict:
        """Return `axis_labels` of the argument `dim` on the argument `self`; empty for a scalar."""
        return self.axis_labels("self", (self["dim"] % self.rank("self"),)) if self.rank("self") else {}

    def reduced_axes(self) -> dict:
        """Return `axis_labels` of the axes that a reduction reduces, and whether they stay with size 1."""
        labels = self.axis_labels("self", self.axes("self", self.get("dim")))
        return labels | {"keep": bool(self.get("keepdim", False))}

    def match_sqrt_of_size(self, number: object, of: Node) -> sympy.Expr | None:
        """Return `√n` or `1/√n` for a float that equals it; else None.

        The float and the width n have to be the same in all runs. n is the width that the matrix product `of`
        contracts, or, if the root is irrational, the last axis of `of`.
        """
        if not isinstance(number, float) or number <= 0 or number == 1:
            return None
        summed, own = _contracted_size(of), _last_size(of)
        for width in (*summed, *own):
            if not width.is_Integer or width < 2:
                continue
            for candidate in (sqrt(width), 1 / sqrt(width)):
                if abs(float(candidate) - number) <= TOLERANCE * number and (
                    width in summed or not candidate.is_rational
                ):
                    return candidate
        return None

    def size_value(self, size: sympy.Expr) -> int | None:
        """Return the value of a size in the run; None if one of its symbols is unknown."""
        value = size.subs(self._worth)
        return int(value) if value.is_Integer else None

    def weight(self, name: str) -> Node:
        """Return the matrix `[in, out]` of a weight that PyTorch keeps as `[out, in]`.

        A parameter keeps its name; anything else is transposed.
        """
        node = self[name]
        if isinstance(node, Tensor) and node.key.startswith(TRANSPOSED_OPERAND):
            return node
        if isinstance(node, Tensor) and node in self.tied:
            return node.T
        if isinstance(node, Tensor) and node.key.startswith("parameter ") and len(node.shape) == 2:
            if not node.transposed:
                return Tensor(node.name, node.shape[::-1], node.key, transposed=True)
            return Tensor(node.name, node.shape[::-1], node.key)
        return node.T


def _item(value: Any, place: int) -> Any:
    """Return one number of an argument."""
    return value[place] if isinstance(value, (list, tuple)) else value


def _contracted_size(node: Node | None) -> tuple:
    """Return the size that a matrix product contracts, as a shape, even if something is added to it; else ()."""
    while isinstance(node, Plus):
        node = next((operand for operand in node.operands if isinstance(operand, (Plus, Product))), None)
    try:
        if isinstance(node, Einsum):
            (first, *_), output = node.parts
            summed = [size for size, letter in zip(infer(node.args[0]), first, strict=True) if letter not in output]
            return tuple(map(sympy.sympify, summed)) if len(summed) == 1 else ()
        return tuple(map(sympy.sympify, infer(node.args[0])[-1:])) if isinstance(node, Product) else ()
    except ShapeError:
        return ()


def _last_size(node: Node) -> tuple:
    """Return the size of the last axis, as a shape; () if it is unknown."""
    try:
        return tuple(map(sympy.sympify, infer(node)[-1:]))
    except ShapeError:
        return ()


def _find_labelled(shape: Sequence, axes: Sequence[int]) -> tuple[int, ...] | None:
    """Return the axes for the labels of a call: right to left, the last axis of that size; None if none fits."""
    positions, at = [], len(shape)
    for axis in reversed(axes):
        at = next((i for i in range(at - 1, -1, -1) if shape[i] == shape[axis]), None)
        if at is None:
            return None
        positions.append(at)
    return tuple(reversed(positions))


# Nodes of operands that can be plain numbers, and products and quotients of tensors and numbers.


def operand(call: BoundCall, name: str) -> Node:
    """Return the node of a tensor or number."""
    return node_of(call[name])


def node_of(value) -> Node:
    """Return a node unchanged, or the node of a number."""
    if isinstance(value, Node):
        return value
    if isinstance(value, sympy.Expr):
        return Scalar(value)
    return Scalar(value if isinstance(value, float) and value != int_or(value) else int_or(value))


ALWAYS_BITS = AllOf, And, AnyOf, Bool, Compare, Not, OneHot, Or, Xor
"""Nodes whose numbers are 0 or 1."""
BITS_OF_FIRST = Full, Index, Rearrange, Slice, Tril, Triu, Truncated, Wrapped
"""Nodes whose numbers are those of their first operand, or 0."""


def is_bit(node: Node) -> bool:
    """Return whether every number of an expression is 0 or 1, whatever its tensors hold."""
    if isinstance(node, Scalar):
        return node.value in (0, 1)
    if isinstance(node, BITS_OF_FIRST):
        return is_bit(node.operands[0])
    if isinstance(node, (Concat, Stack)):
        return all(map(is_bit, node.operands))
    return isinstance(node, ALWAYS_BITS)


def convert(call: BoundCall, name: str, wanted: torch.dtype | None) -> Node:
    """Return an argument as a dtype has it: without decimals as a whole number, `≠ 0` as a bool; as it is in others."""
    x, had = call[name], call.dtype(name)
    if wanted is None or wanted.is_floating_point or wanted.is_complex:
        return x
    if wanted == torch.bool:
        return x if had == torch.bool else Bool(x)
    return Truncated(x) if had.is_floating_point and not is_bit(x) else x


CHOICES = Copies, IndexPut, Kernel, Max, Min, Remainder, Scatter, SelectOne, Sort, Tensor, TopK, Wrapped
"""Nodes whose numbers are among those of their operands, or between these and 0; a kernel wraps by itself."""


def hold(call: BoundCall, x: Node) -> Node:
    """Return the result of a call as its dtype holds it, where that has few bits and numbers may be beyond them."""
    dtype = call.result_dtype
    if dtype not in NARROW or is_bit(x):
        return x
    dtypes = [*chain.from_iterable(item if isinstance(item, list) else [item] for item in call.dtypes.values())]
    if all(item is None or holds(dtype, item) for item in dtypes) and (isinstance(x, CHOICES) or _is_quotient(x)):
        return x
    whole = not any(item is not None and item.is_floating_point for item in dtypes)
    return Wrapped(x if whole or not isinstance(x, Truncated) else x.operands[0], to=dtype_name(dtype), whole=whole)


def _is_quotient(x: Node) -> bool:
    """Return whether an expression is the whole part of a quotient by a positive whole number."""
    if not isinstance(x, (Floor, Truncated)) or not isinstance(x.operands[0], Div):
        return False
    _, divisor = x.operands[0].operands
    return isinstance(divisor, Scalar) and bool(divisor.value >= 1)


def fill(call: BoundCall, value: Node) -> Node:
    """Return a tensor of the result's shape with one value; the value itself if the result is a scalar."""
    return Full(value, shape=call.result) if call.result else value


def int_or(value: Any) -> Any:
    """Return a float that is a whole number as an int: `2.0` is 2."""
    try:
        return int(value) if value == int(value) else value
    except (OverflowError, TypeError, ValueError):  # infinite, complex, NaN
        return value


def scale(call: BoundCall, x: Node, number) -> Node:
    """Return `number · x`, as `x / √d_k` if the number is the inverse root of a size."""
    if isinstance(number, sympy.Expr) and not number.is_number:
        if number.could_extract_minus_sign():
            return Negative(scale(call, x, -number))
        above, below = sympy.fraction(number)
        return _over(x, below) if above == 1 else Scaled(Scalar(number), x)
    if number == 1:
        return x
    if number == -1:
        return Negative(x)
    if root := call.match_sqrt_of_size(number, x):
        above, below = sympy.fraction(root) if root > 1 else (1, 1 / root)
        return Over(x, below) if above == 1 else Scaled(Scalar(root), x)
    return Scaled(node_of(number), x)


def over(call: BoundCall, x: Node, number) -> Node:
    """Return `x / number`, with the root of a size if it is one."""
    if isinstance(number, sympy.Expr) and not number.is_number:
        if number.could_extract_minus_sign():
            return Negative(over(call, x, -number))
        above, below = sympy.fraction(number)
        return Scaled(Scalar(below), x) if above == 1 else _over(x, number)
    if number == 1:
        return x
    if root := call.match_sqrt_of_size(number, x):
        return Over(x, root) if root > 1 else Scaled(Scalar(1 / root), x)
    return Div(x, node_of(number))


def split_factor(node: Node) -> tuple[Node, sympy.Expr]:
    """Return a node without its factor, and the factor, 1 for none."""
    if isinstance(node, Over):
        return node.operands[0], 1 / node.args[1]
    if isinstance(node, Div) and isinstance(node.operands[1], Scalar):
        return node.operands[0], 1 / node.operands[1].value
    if isinstance(node, Scaled) and isinstance(node.operands[0], Scalar):
        return node.operands[1], node.operands[0].value
    return node, sympy.Integer(1)


def _over(x: Node, number: sympy.Expr) -> Node:
    """Return a tensor divided by an expression of sizes."""
    return (
        Over(x, number)
        if any(not power.exp.is_Integer for power in number.atoms(sympy.Pow))
        else Div(x, Scalar(number))
    )


def plus(left: Node, right: Node) -> Node:
    """Return `left + right`, as a difference if the right one is negative; 0 is left out."""
    if right == Scalar(0):
        return left
    if isinstance(right, Negative):
        return Minus(left, right.args[0])
    if isinstance(right, Scalar) and right.value.is_extended_negative and right.value.is_number:
        return Minus(left, Scalar(-right.value))
    if isinstance(right, Scaled) and right.args[0].needs_parens and right.args[0].value.is_number:
        return Minus(left, Scaled(Scalar(-right.args[0].value), right.args[1]))
    return Plus(left, right)


def minus(left: Node, right: Node) -> Node:
    """Return `left - right`, as a sum if the right one is negative."""
    if isinstance(right, Negative):
        return Plus(left, right.args[0])
    if isinstance(right, Scalar) and right.value.is_extended_negative and right.value.is_number:
        return Plus(left, Scalar(-right.value))
    return Minus(left, right)


def times(left: Node, right: Node) -> Node:
    """Return `left ⊙ right`, as a fraction if one of them is a reciprocal."""
    for operand, factor in ((left, right), (right, left)):
        if isinstance(operand, Div) and operand.args[0] == Scalar(1):
            return Div(factor, operand.args[1])
    for operand, factor in ((left, right), (right, left)):
        if isinstance(operand, Scalar):
            return Scaled(operand, factor)
    return Times(left, right)
