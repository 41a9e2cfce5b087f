"""Sums, products and quotients of tensors."""

from __future__ import annotations

import torch

from tracer.expr.index_sets import IndexSet, align_axes, real, shape_of
from tracer.expr.node import Node, Shape, ShapeError, broadcast
from tracer.expr.provenance_rules import ElementwiseProduct, Indexing, Layout, Linear, LinearSum, Slices


def beside(factors, printer) -> str:
    """Return factors side by side: `a ⊙ b` in brackets, and those with square brackets, which behind a name would be
    its rows."""
    texts = []
    for factor in factors:
        text = factor.factor_latex(printer)
        apart = isinstance(factor, Times) or (texts and text.startswith(r"\left["))
        texts.append(rf"\left({text}\right)" if apart else text)
    return r"\,".join(texts)


class Plus(LinearSum, Node):
    """`a + b`, element by element, broadcast from the last axis."""

    needs_parens = True
    additive = True

    def _latex(self, printer) -> str:
        return " + ".join(argument.summand(printer, place == 0) for place, argument in enumerate(self.args))

    def infer(self, same, *shapes) -> Shape:
        return broadcast(same, *shapes)

    def run(self, size, first, *rest) -> torch.Tensor:
        for term in rest:
            first = first + term
        return first


class Product(Linear, Node):
    """Matrix product of the last two axes; leading axes are batched."""

    needs_parens_in_script = True
    multilinear = 2

    def _latex(self, printer) -> str:
        return beside(self.args, printer)

    def infer(self, same, left, right) -> Shape:
        if min(len(left), len(right)) < 2:
            raise ShapeError(f"{left} times {right}: expected matrices")
        if not same(left[-1], right[-2]):
            raise ShapeError(f"{left} times {right}: the inner sizes {left[-1]} and {right[-2]} differ")
        return (*broadcast(same, left[:-2], right[:-2]), left[-2], right[-1])

    def run(self, size, left, right) -> torch.Tensor:
        kind = torch.promote_types(left.dtype, right.dtype)
        return left.to(kind) @ right.to(kind) if left.dtype != right.dtype else left @ right

    def _dependencies(self, size, cells, left, right) -> tuple[IndexSet, ...]:
        left, right = shape_of(left), shape_of(right)
        *lead, row, column = cells.axes
        return (
            IndexSet.of(left, (*align_axes(lead, left[:-2]), row, None)),
            IndexSet.of(right, (*align_axes(lead, right[:-2]), None, column)),
        )


class Over(LinearSum, Node):
    r"""A tensor over a number made of sizes: `QKᵀ / √d_k`."""

    needs_parens_in_script = True

    def _latex(self, printer) -> str:
        return rf"\frac{{{printer._print(self.args[0])}}}{{{printer._print(self.args[1])}}}"

    def infer(self, same, shape) -> Shape:
        return shape

    def run(self, size, tensor) -> torch.Tensor:
        return real(tensor) / float(size(self.args[1]))


class Transposed(Layout, Node):
    """Last two axes exchanged."""

    def _latex(self, printer) -> str:
        return rf"{{{self.args[0].factor_latex(printer)}}}^{{\top}}"

    def infer(self, same, shape) -> Shape:
        return (*shape[:-2], shape[-1], shape[-2])

    def run(self, size, tensor) -> torch.Tensor:
        return tensor.transpose(-2, -1)

    def pattern(self, size, shape) -> tuple[str, dict[str, int]]:
        return "... i j -> ... j i", {}


class Row(Indexing, Node):
    """One token of the sequence: `Row(X, 0)` is the CLS token, without the sequence axis."""

    def _latex(self, printer) -> str:
        return rf"{{{self.args[0].factor_latex(printer)}}}_{{[\,{printer._print(self.args[1])}\,]}}"

    def infer(self, same, shape) -> Shape:
        return (*shape[:-2], shape[-1])

    def run(self, size, tensor) -> torch.Tensor:
        return tensor[..., int(size(self.args[1])), :]

    def slices(self, size, shape) -> Slices:
        return (*[slice(None)] * (len(shape) - 2), int(size(self.args[1])), slice(None))


class Times(ElementwiseProduct, Node):
    """`a ⊙ b`, element by element."""

    needs_parens_in_script = True

    def _latex(self, printer) -> str:
        first, *rest = self.args
        return r" \odot ".join([first.factor_latex(printer), *(self._factor(argument, printer) for argument in rest)])

    def _factor(self, argument, printer):
        """Print a product behind the sign in brackets: `a ⊙ (b c)` is not `(a ⊙ b) c`."""
        text = printer._print(argument)
        closed = not argument.needs_parens and (
            isinstance(argument, Times) or not argument.needs_parens_in_script or text.startswith(r"\frac")
        )
        return text if closed else rf"\left({text}\right)"

    def infer(self, same, *shapes) -> Shape:
        return broadcast(same, *shapes)

    def run(self, size, left, right) -> torch.Tensor:
        return left * right


Node.operators.update({node.__name__: node for node in (Plus, Product, Over, Transposed)})
