"""What a call was given, as the words that write its node ask for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
from sympy import sqrt

from tracer.equations import Node, Plus, ShapeError, Tensor, infer, tensors
from tracer.equations.algebra import Product
from tracer.equations.turns import TURNED
from tracer.symbols.notation import symbol

NEAR = 1e-6
"""How far a number may be from the root that it is taken for, as a share of it: some are rounded to float32."""


class Given:
    """The arguments of one call by the names of the op's schema, with the shapes of those that are tensors.

    `arguments` holds, by name, the Node of a tensor, a list of Nodes (or None) for a list of tensors, and the plain
    value of anything else; what is not there has its default from the schema. `shapes`, `numerics` and `dtypes` are
    those of the tensors by name, lists for lists of tensors. `position` says which output is wanted, `result` its
    symbolic shape, and `result_numeric` the shape that it had in the run. `sizes` are what symbols are worth in it.
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
        sizes: Mapping[str, int] | None = None,
    ):
        self.func, self.position = func, position
        self.tied: frozenset[Tensor] = frozenset()
        """Parameters that are read as they are elsewhere, and so have their name for that."""
        self.result, self.result_numeric = tuple(map(sympy.sympify, result)), tuple(result_numeric)
        self.arguments = dict(arguments)
        self._worth = {symbol(name): value for name, value in (sizes or {}).items()}
        self._shapes, self._numerics, self._dtypes = shapes, numerics, dtypes
        self._defaults = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}

    def __getitem__(self, name: str):
        """An argument. KeyError if the op has none of that name."""
        return self.arguments[name] if name in self.arguments else self._defaults[name]

    def get(self, name: str, default=None):
        """An argument, or `default` where the op has none of that name."""
        return self.arguments.get(name, self._defaults.get(name, default))

    def has(self, name: str) -> bool:
        """Whether an argument is there and is not None."""
        return self.get(name) is not None

    @property
    def first(self) -> str:
        """The name of the op's first argument."""
        return self.func._schema.arguments[0].name

    def shape(self, name: str) -> tuple:
        """The symbolic shape of a tensor; a list of them for a list of tensors."""
        return self._shapes[name]

    def numeric(self, name: str) -> Any:
        """The shape of a tensor in the run; a list of them for a list of tensors."""
        return self._numerics[name]

    def dtype(self, name: str):
        """The torch.dtype of a tensor; a list of them for a list of tensors."""
        return self._dtypes[name]

    def rank(self, name: str) -> int:
        """How many axes a tensor has."""
        return len(self.numeric(name))

    def relaid(self, name: str, shape: Sequence, numeric: Sequence[int]) -> None:
        """Says that a tensor was given in another layout, of these shapes."""
        self._shapes = {**self._shapes, name: tuple(shape)}
        self._numerics = {**self._numerics, name: tuple(numeric)}

    def axes(self, name: str, given: int | Sequence[int] | None) -> tuple[int, ...]:
        """Axes of a tensor, from 0 and in order; all of them where None, or nothing, is given."""
        rank = self.rank(name)
        given = (given,) if isinstance(given, int) else given
        return tuple(sorted(axis % rank for axis in given)) if given and rank else tuple(range(rank))

    def named(self, name: str, axes: Sequence[int]) -> dict:
        """`axes` and `labels` of a node, by the sizes of a tensor's axes. Labels are None where the sizes would say
        other axes: read from the last label to the first, each is the last axis of that size before the next one."""
        symbolic, numeric = self.shape(name), self.numeric(name)
        said = all(_found(shape, axes) == tuple(axes) for shape in (symbolic, numeric))
        known = not any(str(symbolic[axis]) == "?" for axis in axes)
        return {"axes": tuple(axes), "labels": tuple(symbolic[axis] for axis in axes) if said and known else None}

    def root(self, number: object, of: Node | None = None) -> sympy.Expr | None:
        """`√n` or `1/√n` for a float that is that of a symbolic size n, else None: the size that `of`, a matrix
        product, sums over, which makes its spread, before those of operands, last axes first."""
        if not isinstance(number, float) or number <= 0 or number == 1:
            return None
        for symbolic, value in self._sizes(of):
            for found, worth in ((sqrt(symbolic), value**0.5), (1 / sqrt(symbolic), value**-0.5)):
                if abs(worth - number) <= NEAR * worth:
                    plain = found.is_rational and symbolic not in _summed(of)
                    return None if plain else found  # the width of what is scaled: printed as the number that it is
        return None

    def _sizes(self, of: Node | None):
        """Symbolic sizes with what they are worth, of the call's tensors and of those in their expressions; first the
        one that a product sums over."""
        worth: dict[sympy.Expr, int] = {}
        found: dict[sympy.Expr, None] = {}
        for name, shape in self._shapes.items():
            if isinstance(shape, tuple):
                worth.update(zip(shape, self._numerics[name], strict=True))
        summed = _summed(of)
        found.update(dict.fromkeys(summed))
        found.update(dict.fromkeys(map(sympy.Integer, self._widths())))  # a number: that of a head, which is a width
        for symbolic in self._all_shapes():
            found.update(dict.fromkeys(size for size in reversed(symbolic) if not size.is_number))
        for size in found:
            value = worth.get(size, self.worth(size))
            if value is not None and value > 1:
                yield size, value

    def _widths(self) -> list[int]:
        """The last axes of tensors, where they are numbers."""
        lasts = (shape[-1] for shape in self._shapes.values() if isinstance(shape, tuple) and shape)
        return [int(last) for last in lasts if last.is_Integer]

    def worth(self, size: sympy.Expr) -> int | None:
        """What a size is in the run by the sizes that are known; None where one of them is not."""
        value = size.subs(self._worth)
        return int(value) if value.is_Integer else None

    def _all_shapes(self):
        for name, value in self.arguments.items():
            if isinstance(value, Node):
                yield tuple(map(sympy.sympify, self._shapes.get(name, ())))
                yield from (tensor.shape for tensor in tensors(value))

    def weight(self, name: str) -> Node:
        """The matrix `[in, out]` of a weight that PyTorch keeps as `[out, in]`: a parameter by its own name, anything
        else transposed."""
        node = self[name]
        if isinstance(node, Tensor) and node.key.startswith(TURNED):
            return node
        if isinstance(node, Tensor) and node in self.tied:
            return node.T
        if isinstance(node, Tensor) and node.key.startswith("parameter ") and len(node.shape) == 2:
            if not node.transposed:
                return Tensor(node.name, node.shape[::-1], node.key, transposed=True)
            return Tensor(node.name, node.shape[::-1], node.key)
        return node.T


def _summed(node: Node | None) -> tuple:
    """The size that a matrix product sums over, as a shape, also where something is added to it; else ()."""
    while isinstance(node, Plus):
        node = next((one for one in node.operands if isinstance(one, (Plus, Product))), None)
    if not isinstance(node, Product):
        return ()
    try:
        return infer(node.args[0])[-1:]
    except ShapeError:
        return ()


def _found(shape: Sequence, axes: Sequence[int]) -> tuple[int, ...] | None:
    """The axes that a reader takes labels for: right to left, the last that has the size."""
    found, at = [], len(shape)
    for axis in reversed(axes):
        at = next((i for i in range(at - 1, -1, -1) if shape[i] == shape[axis]), None)
        if at is None:
            return None
        found.append(at)
    return tuple(reversed(found))
