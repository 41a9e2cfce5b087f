"""Nodes of an equation: sympy objects that print themselves, infer their shape, and run on tensors.

A node is a sympy `Expr` whose arguments are nodes and sizes. Three methods define it: `_latex` (its notation), `infer`
(its shape, from the shapes of its operands) and `run` (its value, from their values). Two more trace provenance:
`reads` (the axes of its operands that a cell is computed from; `_dependencies` where no pattern says it) and
`contributions` (the share of each).
sympy's own sums and products reorder their terms and accept shapes that don't fit; these nodes keep reading order and
raise ShapeError. Batch and head axes come before the last two.
"""

from __future__ import annotations

import atexit
from functools import lru_cache
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import sympy
import torch
from sympy.core.symbol import Str

from tracer.expr.index_sets import IndexSet, Term, list_terms, shape_of, through_pattern
from tracer.symbols.notation import SizePrinter

_nodes: WeakValueDictionary[tuple, Node] = WeakValueDictionary()
atexit.register(_nodes.clear)  # nodes that die while Python shuts down would be looked up in it, which prints errors

Shape = tuple[sympy.Expr, ...]
"""A symbolic shape: a size for each axis."""


class ShapeError(ValueError):
    """Operands whose shapes don't fit together."""


class Node(sympy.Expr):
    """A tensor-valued expression. Subclasses define `_latex(printer)`, `infer(same, *shapes)`, `run(size, *tensors)`.

    `same(a, b)` says whether two sizes are one; `size(expr)` is the value of a size at this run.
    """

    is_commutative = False
    needs_parens = False
    """True if the node needs brackets inside a product."""
    needs_parens_in_script = False
    """True if it needs brackets under a superscript or subscript; all that need parentheses do."""
    channel_broadcast = False
    """True if it is printed as a sum with vectors along channels, not along the last axis."""
    operators: ClassVar[dict[str, type[Node]]] = {}
    """The nodes that `+`, `@`, `/` and `.T` make, by their names; `algebra`, which has them, puts them here."""
    multilinear = 0
    """The number of leading operands in each term, if the result is a sum of products of them; later operands are
    added. 0 for other nodes."""
    additive = False
    """True if the result is the sum of the operands."""
    analysed = False
    """True if `errors` bounds the rounding of each cell."""
    reads = ""
    """The axes of the operands that a cell reads, as a pattern: "... i k, ... k j -> ... i j"; "" for all."""
    cells = ""
    """The indices below the name of the result, if the equation is of one cell or one row: "ij", or "[j]"."""

    def __new__(cls, *args, **settings):
        """Return a node of these operands and sizes; `settings` are for the subclasses that have them.

        Equal nodes are one object as long as one is in use, so that caches compare them by identity.
        """
        node = super().__new__(cls, *map(sympy.sympify, args), **settings)
        return _nodes.setdefault((cls, node.args), node)

    @property
    def operands(self) -> tuple[Node, ...]:
        return tuple(argument for argument in self.args if isinstance(argument, Node))

    def _sympystr(self, printer) -> str:
        return f"{type(self).__name__}({', '.join(map(printer._print, self.args))})"

    @property
    def dtype(self) -> Any:
        """Dtype that the node casts to; None where it is that of its operands."""
        return None

    def infer(self, same, *shapes) -> tuple:
        """Return the shape of the result from those of the operands: by default that of a function cell by cell."""
        return broadcast(same, *shapes)

    def errors(self, output, *operands) -> torch.Tensor:
        """Return a bound on each cell's rounding error for exact operands, in units of the unit roundoff."""
        raise NotImplementedError

    def run(self, size, *tensors) -> torch.Tensor:
        raise NotImplementedError

    def dependencies(self, size, cells: IndexSet, *operands) -> tuple[IndexSet, ...]:
        """Return the cells of each operand that these cells of the result depend on, or a superset.

        `operands` are tensors, or shapes where the numbers don't matter or are not at hand.
        """
        if cells.axes is None:
            return tuple(IndexSet.none(shape_of(operand)) for operand in operands)
        return self._dependencies(size, cells, *operands)

    def _dependencies(self, size, cells: IndexSet, *operands) -> tuple[IndexSet, ...]:
        """Return the same for at least one cell, by the node's pattern; without one, all cells of each operand."""
        pattern, sizes = self.pattern(size, *map(shape_of, operands))
        if not pattern:
            return tuple(IndexSet.all(shape_of(operand)) for operand in operands)
        return through_pattern(cells, pattern, operands, sizes)

    def pattern(self, size, *shapes) -> tuple[str, dict[str, int]]:
        """Return what a cell reads as a pattern (`through_pattern`), and the sizes of factors that it leaves open."""
        return self.reads, {}

    def ties(self, computed, traced, value) -> torch.Tensor | None:
        """Return `computed` with the cells of `traced` that are right as well, where several answers are right, such as
        indices of equal numbers; None where one is. `value(operand)` returns an operand's value."""
        return None

    def contributions(self, size, cell: tuple[int, ...], *tensors) -> list[Term]:
        """Return the numbers that one cell depends on, and the contribution of each; None unless a subclass computes
        it. Raise TooMany for more than `MOST`."""
        return list_terms(self.dependencies(size, IndexSet.single([i + 1 for i in cell], cell), *tensors), tensors)

    def factor_latex(self, printer) -> str:
        """Return this node's LaTeX as a factor."""
        text = printer._print(self)
        return rf"\left({text}\right)" if self.needs_parens else text

    def summand(self, printer, first: bool) -> str:
        """Return this node's LaTeX as a term of a sum."""
        text = printer._print(self)
        return rf"\left({text}\right)" if self.channel_broadcast or (not first and text.startswith("-")) else text

    def __add__(self, term):
        return self.operators["Plus"](self, term)

    def __matmul__(self, right):
        return self.operators["Product"](self, right)

    def __truediv__(self, divisor):
        return self.operators["Over"](self, sympy.sympify(divisor))

    @property
    def T(self) -> Node:
        return self.operators["Transposed"](self)


class Tensor(Node):
    """A named tensor: `Tensor(r"\\mathbf{Q}", (B, h, S, d_k), "block1.attention.query")`.

    `key` says where its value is found: the id of the step that made it, `input NAME` or `parameter PATH`, read
    transposed if `transposed` (PyTorch keeps weights as [out, in], equations as [in, out]).
    """

    def __new__(cls, latex: str, shape: tuple, key: str, transposed: bool = False):
        latex, key = (text if isinstance(text, Str) else Str(text) for text in (latex, key))
        return super().__new__(cls, latex, sympy.Tuple(*shape), key, sympy.Integer(bool(transposed)))

    @property
    def name(self) -> str:
        return self.args[0].name

    @property
    def shape(self) -> tuple:
        return tuple(self.args[1])

    @property
    def key(self) -> str:
        return self.args[2].name

    @property
    def transposed(self) -> bool:
        return bool(self.args[3])

    def _latex(self, printer) -> str:
        return self.name

    def _sympystr(self, printer):
        return self.key

    def infer(self, same) -> Shape:
        return self.shape


def weight(latex: str, shape: tuple, path: str) -> Tensor:
    """Return the matrix of an `nn.Linear`, `[in, out]`, by the path of its parameter."""
    return Tensor(latex, shape, f"parameter {path}", transposed=True)


def parameter(latex: str, shape: tuple, path: str) -> Tensor:
    """Return a parameter in the layout of its module, by its path."""
    return Tensor(latex, shape, f"parameter {path}")


@lru_cache(maxsize=4096)
def latex(node: sympy.Basic) -> str:
    """LaTeX of a node or an equation, in reading order."""
    return SizePrinter().doprint(node)


def statement(tensor: Tensor, node: Node) -> str:
    """Return the LaTeX of the whole line `made = node`, with the indices of its cells."""
    return f"{with_subscript(tensor.name, node.cells) if node.cells else tensor.name} = {latex(node)}"


def with_subscript(name: str, indices: str) -> str:
    r"""Return a name with a subscript: `\mathbf{M}_{ij}`; in braces if it has a subscript already, or for a row,
    `{\mathbf{Y}}_{[\,j\,]}`."""
    if indices.startswith("["):
        return rf"{{{name}}}_{{[\,{indices[1:-1]}\,]}}"
    return rf"{{{name}}}_{{{indices}}}" if "_" in name else rf"{name}_{{{indices}}}"


def vanishes(size: sympy.Expr) -> bool:
    """Return whether a difference of sizes is 0 at any sizes. Most that are not are refuted at prime sizes. sympy's
    own simplification is the last resort: it is slow, and its first call imports for seconds."""
    size = sympy.expand(size)
    if size == 0 or size.is_polynomial():
        return size == 0
    letters = sorted(size.free_symbols, key=str)
    if size.xreplace({letter: sympy.Integer(sympy.prime(30 + i)) for i, letter in enumerate(letters)}).is_nonzero:
        return False
    size = sympy.cancel(size)
    return size == 0 or (bool(size.atoms(sympy.Function)) and sympy.simplify(size) == 0)


def equal(a: sympy.Expr, b: sympy.Expr) -> bool:
    """Return whether two sizes are equal, with derived sizes as symbols of their own."""
    return a == b or vanishes(a - b)


@lru_cache(maxsize=4096)
def infer(node: Node, same=equal) -> tuple:
    """Return the symbolic shape of an expression. Raise ShapeError if the operands' shapes don't fit."""
    return node.infer(same, *(infer(operand, same) for operand in node.operands))


def execute(node: Node, value, size) -> torch.Tensor:
    """Return the value of an expression: `value(tensor)` returns each named tensor, `size(expr)` each size."""
    if isinstance(node, Tensor):
        result = value(node)
        return result.transpose(-2, -1) if node.transposed else result
    return node.run(size, *(execute(operand, value, size) for operand in node.operands))


@lru_cache(maxsize=8192)
def tensors(node: Node) -> tuple[Tensor, ...]:
    """Return the named tensors of an expression, in reading order."""
    if isinstance(node, Tensor):
        return (node,)
    return tuple(dict.fromkeys(t for operand in node.operands for t in tensors(operand)))


def broadcast(same, *shapes) -> tuple:
    """Shape of an element-wise operation, aligned at the last axis. ShapeError quotes shapes that don't fit."""
    rank = max(map(len, shapes))
    padded = [(sympy.Integer(1),) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    result = []
    for sizes in zip(*padded, strict=True):
        large = [size for size in sizes if size != 1]
        if any(not same(large[0], size) for size in large[1:]):
            raise ShapeError(f"shapes {' and '.join(map(str, shapes))} don't broadcast: {large[0]} is not {large[1]}")
        result.append(large[0] if large else sympy.Integer(1))
    return tuple(result)
