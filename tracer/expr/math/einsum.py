r"""Sums of products with named axes, as `einsum` says them: `\left[\sum_{k} A_{ik}\,B_{jk}\right]_{ij}`."""

from __future__ import annotations

import sympy
import torch

from tracer.expr.function_call import _FunctionCall, _WithFields, tight
from tracer.expr.index_sets import IndexSet, shape_of
from tracer.expr.math.algebra import Transposed, beside
from tracer.expr.node import Node, Shape, ShapeError
from tracer.expr.provenance_rules import Linear

SPACE = r"\,"
LETTERS = "ijklmnpqrstuv"
"""Letters of axes: none that sizes or constants have."""


class Einsum(Linear, _WithFields):
    """`Einsum(A, B, axes="ik,jk->ij")`: cell ij is the sum over k of A_ik B_jk; letters of `LETTERS`."""

    fields = ("axes",)

    @property
    def multilinear(self) -> int:
        return len(self.operands)

    @property
    def parts(self) -> tuple[list[str], str]:
        inputs, output = self.get("axes").split("->")
        return inputs.split(","), output

    def _latex(self, printer) -> str:
        inputs, output = self.parts
        summed = "".join(dict.fromkeys(letter for letters in inputs for letter in letters if letter not in output))
        cells = [
            rf"{{{tight(x, printer)}}}_{{{letters}}}" if letters else tight(x, printer)
            for x, letters in zip(self.operands, inputs, strict=True)
        ]
        total = rf"\sum_{{{summed}}} " if summed else ""
        return rf"\left[\,{total}{SPACE.join(cells)}\,\right]" + (rf"_{{{output}}}" if output else r"_{\,}")

    def infer(self, same, *shapes) -> Shape:
        sizes: dict[str, sympy.Expr] = {}
        for shape, letters in zip(shapes, self.parts[0], strict=True):
            for n, letter in zip(shape, letters, strict=True):
                if sizes.get(letter, sympy.Integer(1)) == 1:
                    sizes[letter] = n
                elif n != 1 and not same(sizes[letter], n):
                    raise ShapeError(f"{' and '.join(map(str, shapes))}: the index {letter} is {sizes[letter]} and {n}")
        return tuple(sizes[letter] for letter in self.parts[1])

    def run(self, size, *tensors) -> torch.Tensor:
        return torch.einsum(self.get("axes"), *(x.double() if x.dtype == torch.bool else x for x in tensors))

    def _dependencies(self, size, cells, *operands) -> tuple[IndexSet, ...]:
        shapes = [shape_of(operand) for operand in operands]
        inputs, output = self.parts
        axes = dict(zip(output, cells.axes, strict=True))
        return tuple(
            IndexSet.of(
                shape, (range(1) if n == 1 else axes.get(letter) for letter, n in zip(letters, shape, strict=True))
            )
            for letters, shape in zip(inputs, shapes, strict=True)
        )


class Outer(Linear, Node):
    """`a bᵀ` of two vectors: each number of one times each of the other."""

    needs_parens_in_script = True

    def _latex(self, printer) -> str:
        left, right = self.operands
        return beside((Transposed(left), right), printer)

    def infer(self, same, left, right) -> Shape:
        return (*left, *right)

    def run(self, size, left, right) -> torch.Tensor:
        return left[:, None] * right

    def _dependencies(self, size, cells, left, right) -> tuple[IndexSet, ...]:
        left, right = shape_of(left), shape_of(right)
        return IndexSet.of(left, cells.axes[:1]), IndexSet.of(right, cells.axes[1:])


class RowProduct(Linear, Node):
    """A vector, as one row, times a matrix."""

    needs_parens_in_script = True

    def _latex(self, printer) -> str:
        left, right = self.operands
        return beside((left, right), printer)

    def infer(self, same, left, right) -> Shape:
        if len(left) != 1 or not same(left[0], right[-2]):
            raise ShapeError(f"{left} times {right}: the inner sizes differ")
        return (*right[:-2], right[-1])

    def run(self, size, left, right) -> torch.Tensor:
        return (left[:, None] * right).sum(-2)

    def _dependencies(self, size, cells, left, right) -> tuple[IndexSet, ...]:
        left, right = shape_of(left), shape_of(right)
        return IndexSet.all(left), IndexSet.of(right, (*cells.axes[:-1], None, cells.axes[-1]))


class Dot(Linear, Node):
    """`⟨x, y⟩`: the sum over the last axis of two vectors."""

    needs_parens_in_script = True

    def _latex(self, printer) -> str:
        left, right = self.operands
        return rf"\left\langle {printer._print(left)},\, {printer._print(right)} \right\rangle"

    def infer(self, same, left, right) -> Shape:
        if len(right) != 1 or not same(left[-1], right[0]):
            raise ShapeError(f"{left} times {right}: the inner sizes differ")
        return left[:-1]

    def run(self, size, left, right) -> torch.Tensor:
        return (left * right).sum(-1)

    def _dependencies(self, size, cells, left, right) -> tuple[IndexSet, ...]:
        left, right = shape_of(left), shape_of(right)
        return IndexSet.of(left, (*cells.axes, None)), IndexSet.all(right)


class ColumnProduct(Dot):
    """A matrix times a vector, as one column."""

    def _latex(self, printer) -> str:
        return beside(self.operands, printer)


class GroupedProduct(Linear, _FunctionCall):
    """Each group of consecutive rows times its own matrix, as in a mixture of experts: rows from `ends[e - 1]` up to
    `ends[e]` of x times `w[e]`; `[N, D]`, `[E, D, K]` and `[E]` to `[N, K]`. Rows after the last group are 0."""

    linear, alone = (0, 1), False

    word = r"\operatorname{groups}"

    def infer(self, same, x, w, ends) -> Shape:
        if not same(x[1], w[1]) or not same(w[0], ends[0]):
            raise ShapeError(f"{x} by groups that end at {ends} times {w}: the sizes don't fit")
        return (x[0], w[2])

    def run(self, size, x, w, ends) -> torch.Tensor:
        products, start = torch.zeros(len(x), w.shape[-1], dtype=x.dtype), 0
        for matrix, end in zip(w, ends.tolist(), strict=True):
            products[start:end] = x[start:end] @ matrix
            start = end
        return products

    def _dependencies(self, size, cells, x, w, ends) -> tuple[IndexSet, ...]:
        x, w, count = shape_of(x), shape_of(w), shape_of(ends)
        rows, columns = cells.axes
        last = None
        if hasattr(ends, "tolist"):
            after = [sum(end <= row for end in ends.tolist()) for row in rows]
            last = {expert for expert in after if expert < w[0]}
            rows = [row for row, expert in zip(rows, after, strict=True) if expert < w[0]]
        return IndexSet.of(x, (rows, None)), IndexSet.of(w, (last, None, columns)), IndexSet.all(count)
