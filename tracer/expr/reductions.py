"""Nodes that reduce an axis or order it: sums, means, cumulative sums, sorting, contractions and losses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from math import exp
from operator import mul

import sympy
import torch

from tracer.expr.arithmetic import Transposed, beside, function, softmax
from tracer.expr.function_call import COMMA, _FunctionCall, _WithFields, decimal, setting_latex, tight, whole
from tracer.expr.index_sets import AlongAxes, ArgSelect, AxisReads, IndexSet, Linear, OfAll, SoftmaxShares, shape_of
from tracer.expr.node import Node, Shape, ShapeError, with_subscript
from tracer.symbols.axes import name_axes

# Functions along named axes that become one number: sums, means, extremes, lengths.


def along(labels, axes, printer) -> list[str]:
    r"""Return axes by their sizes, `H` and `W`; where that would be ambiguous, `\text{axis }1`, from 0."""
    if labels:
        return [setting_latex(label, printer) for label in labels]
    return [rf"\text{{axis }}{axis}" for axis in axes]


class _Reduction(OfAll, _FunctionCall):
    """Base of reductions over some axes: these vanish, or stay as axes of size 1, which is printed as `D → 1`."""

    fields: tuple[str, ...] = ("axes", "labels", "keep")
    compute: Callable
    """Reduces the last axis."""

    def subscripts(self, printer) -> list[str]:
        *first, last = along(self.get("labels"), self.get("axes"), printer) or [""]
        return [*first, rf"{last} \to 1"] if self.get("keep") else [*first, last] if last else []

    def infer(self, same, shape) -> Shape:
        axes = self.get("axes")
        if self.get("keep"):
            return tuple(sympy.Integer(1) if i in axes else size for i, size in enumerate(shape))
        return tuple(size for i, size in enumerate(shape) if i not in axes)

    def run(self, size, x) -> torch.Tensor:
        axes = self.get("axes")
        stay = [i for i in range(x.dim()) if i not in axes]
        reduced = self.compute(x.permute([*stay, *axes]).reshape(*(x.shape[i] for i in stay), -1))
        return reduced.reshape([1 if i in axes else n for i, n in enumerate(x.shape)]) if self.get("keep") else reduced

    def pattern(self, size, shape) -> tuple[str, dict[str, int]]:
        rank, axes = len(shape), self.get("axes")
        return f"{name_axes(rank, axes, 'k')} -> {name_axes(rank, axes, '()' if self.get('keep') else '')}", {}


class _LinearReduction(Linear, _Reduction):
    """Base of reductions in which each number has a share."""


Mean = function("Mean", r"\operatorname{mean}", lambda x: x.sum(-1) / x.shape[-1], "The mean.", _LinearReduction)
Sum = function("Sum", r"\operatorname{sum}", lambda x: x.sum(-1), "The sum.", _LinearReduction)


class Prod(_Reduction):
    """The product of all numbers."""

    word = r"\operatorname{prod}"
    compute = staticmethod(lambda x: reduce(mul, x.unbind(-1)))


class Max(ArgSelect, _Reduction):
    """Largest number."""

    word = r"\max"
    compute = staticmethod(lambda x: x.sort(-1).values[..., -1])


class Min(ArgSelect, _Reduction):
    """Smallest number."""

    word = r"\min"
    compute = staticmethod(lambda x: x.sort(-1).values[..., 0])

    def choose(self, cell, numbers) -> float:
        return min(numbers)


class ArgMax(_Reduction):
    """The index of the largest number, counted from 0; the first of several."""

    word = r"\operatorname{argmax}"
    compute = staticmethod(lambda x: (x == x.amax(-1, keepdim=True)).double().argmax(-1))


class ArgMin(_Reduction):
    """The index of the smallest number, counted from 0; the first of several."""

    word = r"\operatorname{argmin}"
    compute = staticmethod(lambda x: (x == x.amin(-1, keepdim=True)).double().argmax(-1))


class AnyOf(_Reduction):
    """1 where any number is not 0."""

    word = r"\operatorname{any}"
    compute = staticmethod(lambda x: ((x != 0).sum(-1) > 0).double())


class AllOf(_Reduction):
    """1 where no number is 0."""

    word = r"\operatorname{all}"
    compute = staticmethod(lambda x: ((x == 0).sum(-1) == 0).double())


class CountNonzero(_Reduction):
    """How many numbers are not 0."""

    word = r"\operatorname{count}"
    compute = staticmethod(lambda x: (x != 0).sum(-1))


class LogSumExp(_Reduction):
    """`log Σ eˣ`."""

    word = r"\operatorname{logsumexp}"

    def compute(self, x) -> torch.Tensor:
        largest = x.amax(-1, keepdim=True)
        return (x - largest).exp().sum(-1).log() + largest[..., 0]


class Variance(_Reduction):
    """Mean of `(x - μ)²`; with `less` (1: unbiased) the sum is divided by n - less."""

    word = r"\operatorname{var}"
    fields = ("less", "axes", "labels", "keep")

    def subscripts(self, printer) -> list[str]:
        less = self.get("less")
        notes = [] if not less else [r"\text{unbiased}"] if less == 1 else [rf"\text{{less }}{decimal(less)}"]
        return [*notes, *super().subscripts(printer)]

    def compute(self, x) -> torch.Tensor:
        centred = x - x.sum(-1, keepdim=True) / x.shape[-1]
        return (centred * centred).sum(-1) / max(x.shape[-1] - (self.get("less") or 0), 0)


class Std(Variance):
    """Root of the variance."""

    word = r"\operatorname{std}"

    def compute(self, x) -> torch.Tensor:
        return super().compute(x).sqrt()


class Norm(_Reduction):
    """`‖x‖_p = (Σ |x|^p)^{1/p}`; p may be infinite."""

    fields = ("p", "usual", "axes", "labels", "keep")

    def _latex(self, printer) -> str:
        below = [setting_latex(self.get("p"), printer), *([] if self.get("usual") else self.subscripts(printer))]
        return rf"\left\lVert {printer._print(self.args[0])} \right\rVert_{{{COMMA.join(below)}}}".replace("_{2}", "_2")

    def compute(self, x) -> torch.Tensor:
        p = self.get("p")
        if p == float("inf"):
            return x.abs().amax(-1)
        if p == 0:
            return (x != 0).double().sum(-1)
        return (x.abs() ** p).sum(-1) ** (1 / p)


# Functions along one axis that stays: running sums, softmax along any axis, gates.


class _AlongAxis(AlongAxes, OfAll, _FunctionCall):
    """Base of functions along one axis, which keeps its length; the last axis is not named."""

    fields: tuple[str, ...] = ("axes", "labels")
    compute: Callable
    """Computes the result along the last axis."""

    def subscripts(self, printer) -> list[str]:
        return along(self.get("labels"), self.get("axes") or (), printer)

    def run(self, size, x) -> torch.Tensor:
        if not x.dim():
            return self.compute(x[None])[0]
        axis = self.get("axes")[0] if self.get("axes") else -1
        return self.compute(x.movedim(axis, -1)).movedim(-1, axis)

    def axis_of(self, rank: int) -> int:
        """Return the axis, from 0."""
        return self.get("axes")[0] % rank if self.get("axes") else rank - 1

    def dependencies_along(self, outputs, n: int) -> Iterable[int] | None:
        """Return the indices along the axis of length n that these results depend on, None for all."""
        return None

    def read_along(self, size, shape, axes) -> AxisReads:
        axis = self.axis_of(len(shape)) if shape else 0
        return {axis: self.dependencies_along(axes[axis], shape[axis])} if shape else {}


class SoftmaxAlong(SoftmaxShares, _AlongAxis):
    """`eˣ / Σ eˣ` along an axis that is not the last."""

    word = r"\operatorname{softmax}"
    compute = staticmethod(softmax)


class LogSoftmax(_AlongAxis):
    """`x - log Σ eˣ`."""

    word = r"\log\operatorname{softmax}"

    def compute(self, x) -> torch.Tensor:
        x = x - x.amax(-1, keepdim=True)
        return x - x.exp().sum(-1, keepdim=True).log()


class CumProd(_AlongAxis):
    """Running product: of each number and all before it."""

    word = r"\operatorname{cumprod}"
    first = 1

    def compute(self, x) -> torch.Tensor:
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

    def compute(self, x) -> torch.Tensor:
        half = x.shape[-1] // 2
        return x[..., :half] / (1 + (-x[..., half:]).exp())

    def dependencies_along(self, outputs, n) -> Iterable[int]:
        return [*outputs, *(i + n // 2 for i in outputs)]

    def parts(self, cell, indices, numbers) -> list[dict]:
        gate = 1 / (1 + exp(min(-numbers[1], 700.0)))  # beyond that e is not a float, and the gate is 0
        share = numbers[0] * gate
        return [{"share": share, "factor": gate}, {"share": share, "counted": False}]


# Sorted numbers, the largest of each row, and their original indices.


class Sort(ArgSelect, _AlongAxis):
    """Numbers of each row in order; `down` has the largest first."""

    word = r"\operatorname{sort}"
    fields: tuple[str, ...] = ("down", "axes", "labels")

    def subscripts(self, printer) -> list[str]:
        return [r"\downarrow"] * bool(self.get("down")) + super().subscripts(printer)

    def compute(self, x) -> torch.Tensor:
        return x.gather(-1, self.order(x))

    def order(self, x) -> torch.Tensor:
        """Return the indices that sort each row; equal numbers stay from left to right."""
        rows = x.reshape(-1, x.shape[-1]).tolist()
        places = [sorted(range(len(row)), key=row.__getitem__, reverse=bool(self.get("down"))) for row in rows]
        return torch.tensor(places, dtype=torch.int64).reshape(x.shape)

    def choose(self, cell, numbers) -> float:
        place = cell[self.axis_of(len(cell))] if cell else 0
        return sorted(numbers, reverse=bool(self.get("down")))[place]


class _SortIndices(Sort):
    """Indices of sorted numbers. Of several that are equal any may come first."""

    def compute(self, x) -> torch.Tensor:
        return self.order(x)

    contributions = OfAll.contributions

    def ties(self, computed, traced, value) -> torch.Tensor | None:
        axis = self.get("axes")[0] if self.get("axes") else -1
        computed, traced, x = (tensor.movedim(axis, -1) for tensor in (computed, traced, value(self.operands[0])))
        within = bool(((traced >= 0) & (traced < x.shape[-1])).all())
        if not within or (traced.sort(-1).values.diff(dim=-1) == 0).any():  # it names a place twice
            return None
        return torch.where(x.gather(-1, traced) == x.gather(-1, computed), traced, computed).movedim(-1, axis)


class ArgSort(_SortIndices):
    """Indices that sort a row, from 0."""

    word = r"\operatorname{argsort}"


class TopK(Sort):
    """K largest numbers of each row, the largest first; the smallest, if not `down`."""

    word = r"\operatorname{top}"
    fields = ("k", "down", "axes", "labels")

    def subscripts(self, printer) -> list[str]:
        return [
            setting_latex(self.get("k"), printer),
            *([] if self.get("down") else [r"\uparrow"]),
            *_AlongAxis.subscripts(self, printer),
        ]

    def infer(self, same, shape) -> Shape:
        axis = self.get("axes")[0] if self.get("axes") else len(shape) - 1
        return tuple(sympy.sympify(self.get("k")) if i == axis else n for i, n in enumerate(shape))

    def run(self, size, x) -> torch.Tensor:
        axis = self.get("axes")[0] if self.get("axes") else -1
        ordered = self.compute(x.movedim(axis, -1))[..., : whole(self.get("k"), size)]
        return ordered.movedim(-1, axis)


class ArgTopK(_SortIndices, TopK):
    """Indices of the k largest numbers of each row, from 0."""

    word = r"\operatorname{argtop}"


# Sums of products with named axes, as `einsum` says them: `\left[\sum_{k} A_{ik}\,B_{jk}\right]_{ij}`.

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

    @property
    def contracts(self) -> bool:
        """True if it sums over an axis, False for an outer product."""
        inputs, output = self.parts
        return not set("".join(inputs)) <= set(output)

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

    def pattern(self, size, *shapes) -> tuple[str, dict[str, int]]:
        return " ".join(self.get("axes").replace("->", ">")).replace(">", "->"), {}


class Outer(Linear, Node):
    """`a bᵀ` of two vectors: each number of one times each of the other."""

    reads = "i, j -> i j"

    needs_parens_in_script = True

    def _latex(self, printer) -> str:
        left, right = self.operands
        return beside((Transposed(left), right), printer)

    def infer(self, same, left, right) -> Shape:
        return (*left, *right)

    def run(self, size, left, right) -> torch.Tensor:
        return left[:, None] * right


class RowProduct(Linear, Node):
    """A vector, as one row, times a matrix."""

    reads = "k, ... k j -> ... j"

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


class Dot(Linear, Node):
    """`⟨x, y⟩`: the sum over the last axis of two vectors."""

    reads = "... k, k -> ..."

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


# Likelihood of labels: `-\frac{1}{n} \sum_{i} \log\operatorname{softmax}\left(Z\right)_{i,\,y_{i}}`.


class NegativeLogLikelihood(Linear, _WithFields):
    """Minus the log-probability of each label's class, classes along the axis behind the batch; with a third operand
    each is multiplied by the weight of its class.

    `reduction` is "mean" (over the weights, where there are some), "sum" or "none". `ignore` is the label that is left
    out; None where there is no such label. `sizes` are those of the labels.
    """

    linear, alone = (0,), False

    fields = ("reduction", "ignore", "sizes")
    needs_parens = True

    @property
    def rank(self) -> int:
        """Return the rank of the labels."""
        return len(self.get("sizes"))

    def _latex(self, printer) -> str:
        logs, labels, *weights = self.operands
        letters, ignore = LETTERS[: self.rank], self.get("ignore")
        label = self._cell(labels, letters, printer)
        log = printer._print(logs) if isinstance(logs, LogSoftmax) else rf"{{{tight(logs, printer)}}}"
        term = rf"{log}_{{{COMMA.join([*letters[:1], label, *letters[1:]])}}}"
        share = self._cell(weights[0], label, printer) if weights else ""
        term = rf"{share}\,{term}" if share else term
        if self.get("reduction") == "none" or not letters:
            return rf"\left[\,-{term}\,\right]_{{{letters}}}" if letters else f"-{term}"
        condition = "" if ignore is None else rf"{label} \ne {decimal(ignore)}"
        total = rf"\sum_{{{letters}\,:\,{condition}}} {term}" if condition else rf"\sum_{{{letters}}} {term}"
        if self.get("reduction") == "sum":
            return f"-{total}"
        if share:
            count = rf"\sum_{{{letters}\,:\,{condition}}} {share}" if condition else rf"\sum_{{{letters}}} {share}"
        elif condition:
            count = rf"\sum_{{{letters}}} \left[\,{condition}\,\right]"
        else:
            count = printer._print(sympy.Mul(*self.get("sizes")))
        return rf"-\frac{{1}}{{{count}}} {total}"

    @staticmethod
    def _cell(node: Node, indices: str, printer) -> str:
        return with_subscript(tight(node, printer), indices) if indices else printer._print(node)

    def infer(self, same, logs, labels, *weights) -> Shape:
        classes = logs[1] if len(logs) > 1 else logs[0]
        rest = (*logs[:1], *logs[2:]) if len(logs) > 1 else ()
        if len(rest) != len(labels) or not all(map(same, rest, labels)):
            raise ShapeError(f"labels {labels} for log-probabilities {logs}")
        if weights and not same(weights[0][0], classes):
            raise ShapeError(f"weights {weights[0]} for {classes} classes")
        return labels if self.get("reduction") == "none" else ()

    def run(self, size, logs, labels, *weights) -> torch.Tensor:
        ignore = self.get("ignore")
        there = torch.ones_like(labels, dtype=torch.bool) if ignore is None else labels != ignore
        places = torch.where(there, labels, 0)
        axis = min(1, logs.dim() - 1)
        picked = logs.gather(axis, places.unsqueeze(axis)).squeeze(axis)
        shares = torch.where(there, weights[0][places] if weights else 1.0, 0.0)
        losses = torch.where(there, -picked * shares, 0.0) if weights else torch.where(there, -picked, 0.0)
        if self.get("reduction") == "none":
            return losses
        return losses.sum() / shares.sum() if self.get("reduction") == "mean" else losses.sum()

    def _dependencies(self, size, cells, logs, labels, *weights) -> tuple[IndexSet, ...]:
        shapes = [shape_of(operand) for operand in (logs, labels, *weights)]
        whole = self.get("reduction") != "none"
        axes = (None,) * len(shapes[1]) if whole else cells.axes
        chosen = IndexSet.of(shapes[1], axes)
        classes = None
        if hasattr(labels, "flatten"):
            classes = {int(label) for label in chosen.select(labels).flatten() if int(label) != self.get("ignore")}
        lying = IndexSet.of(shapes[0], (*axes[:1], classes, *axes[1:]))
        return lying, chosen, *(IndexSet.of(shape, (classes,)) for shape in shapes[2:])
