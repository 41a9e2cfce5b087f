"""Functions along one axis that stays: running sums, softmax along any axis, gates."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp

import sympy
import torch

from tracer.expr.function_call import _FunctionCall
from tracer.expr.index_sets import IndexSet, replace_axes, shape_of
from tracer.expr.math.reductions import along
from tracer.expr.node import Shape
from tracer.expr.provenance_rules import Linear, OfAll, SoftmaxShares


class _AlongAxis(OfAll, _FunctionCall):
    """Base of functions along one axis, which keeps its length; the last axis is not named."""

    fields: tuple[str, ...] = ("axes", "labels")

    def subscripts(self, printer) -> list[str]:
        return along(self.get("labels"), self.get("axes") or (), printer)

    def infer(self, same, shape) -> Shape:
        return shape

    def run(self, size, x) -> torch.Tensor:
        if not x.dim():
            return self.along_last(x[None])[0]
        axis = self.get("axes")[0] if self.get("axes") else -1
        return self.along_last(x.movedim(axis, -1)).movedim(-1, axis)

    def along_last(self, x) -> torch.Tensor:
        """Compute the result along the last axis."""
        raise NotImplementedError

    def axis_of(self, rank: int) -> int:
        """Return the axis, from 0."""
        return self.get("axes")[0] % rank if self.get("axes") else rank - 1

    def dependencies_along(self, outputs, n: int) -> Iterable[int] | None:
        """Return the indices along the axis of length n that these results depend on, None for all."""
        return None

    def _dependencies(self, size, cells, x) -> tuple[IndexSet, ...]:
        shape = shape_of(x)
        if not shape:
            return (cells,)
        axis = self.axis_of(len(shape))
        return (replace_axes(cells, shape, {axis: self.dependencies_along(cells.axes[axis], shape[axis])}),)


class SoftmaxAlong(SoftmaxShares, _AlongAxis):
    """`eˣ / Σ eˣ` along an axis that is not the last."""

    word = r"\operatorname{softmax}"

    def along_last(self, x) -> torch.Tensor:
        powers = (x - x.amax(-1, keepdim=True)).exp()
        return powers / powers.sum(-1, keepdim=True)


class LogSoftmax(_AlongAxis):
    """`x - log Σ eˣ`."""

    word = r"\log\operatorname{softmax}"

    def along_last(self, x) -> torch.Tensor:
        x = x - x.amax(-1, keepdim=True)
        return x - x.exp().sum(-1, keepdim=True).log()


class CumProd(_AlongAxis):
    """Running product: of each number and all before it."""

    word = r"\operatorname{cumprod}"
    first = 1

    def along_last(self, x) -> torch.Tensor:
        products, total = [], self.first
        for factor in x.unbind(-1):
            total = self.next(total, factor)
            products.append(total)
        return torch.stack(products, -1) if products else x

    def next(self, total, factor) -> torch.Tensor:
        """Return the number after `total`."""
        return total * factor

    def dependencies_along(self, outputs, n) -> Iterable[int]:
        return range(max(outputs) + 1)


class CumSum(Linear, CumProd):
    """Running sum: of each number and all before it."""

    word = r"\operatorname{cumsum}"
    first = 0

    def next(self, total, term) -> torch.Tensor:
        return total + term * 1


class GLU(_AlongAxis):
    """`a ⊙ σ(b)` of the two halves of an axis (Dauphin et al. 2017)."""

    word = r"\operatorname{GLU}"

    def infer(self, same, shape) -> Shape:
        axis = self.get("axes")[0] if self.get("axes") else len(shape) - 1
        return tuple(sympy.cancel(n / 2) if i == axis else n for i, n in enumerate(shape))

    def along_last(self, x) -> torch.Tensor:
        half = x.shape[-1] // 2
        return x[..., :half] / (1 + (-x[..., half:]).exp())

    def dependencies_along(self, outputs, n) -> Iterable[int]:
        return [*outputs, *(i + n // 2 for i in outputs)]

    def parts(self, cell, indices, numbers) -> list[dict]:
        gate = 1 / (1 + exp(min(-numbers[1], 700.0)))  # beyond that e is not a float, and the gate is 0
        share = numbers[0] * gate
        return [{"share": share, "factor": gate}, {"share": share, "counted": False}]
