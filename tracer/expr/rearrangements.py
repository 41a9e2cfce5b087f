"""Nodes that move numbers without changing them: layouts, heads, and the axes of projections."""

from __future__ import annotations

from math import prod

import sympy
import torch

from tracer.expr.function_call import _FunctionCall, _WithFields, call_latex, tight, whole
from tracer.expr.index_sets import (
    Copies,
    Indexing,
    IndexSet,
    Layout,
    Linear,
    Slices,
    through_factors,
)
from tracer.expr.node import Node, Shape, ShapeError, with_subscript
from tracer.symbols.notation import symbol

# Layouts as patterns of einops: axes split, permuted, merged, repeated, nothing computed (Rogozhnikov 2022).


def atoms(sizes, printer) -> list[str]:
    """Return the text of each factor: its size, in brackets if that is a sum or a product, with a prime for each
    earlier factor of the same text; a factor of size 1 is always 1."""
    texts: list[str] = []
    for size in sizes:
        text = printer._print(size)
        texts.append(text if size.is_Symbol or size.is_Integer else rf"\left({text}\right)")
    return [text + "'" * (texts[:i].count(text) if text != "1" else 0) for i, text in enumerate(texts)]


class Rearrange(Copies, _WithFields):
    r"""`{\mathbf{X}}_{[B\,S\,(h\,d_k) \to B\,h\,S\,d_k]}`.

    `Rearrange(x, sizes, left, right, repeated=())`: `sizes` are the atoms; `left[k]` are the atoms of input axis k,
    outer to inner, by their places in `sizes`, `right[k]` those of output axis k. An atom of `right` alone is listed
    in `repeated`: all its cells are the same. Atoms of size 1 may be left out on either side.
    """

    fields = ("sizes", "left", "right", "repeated")

    def __new__(cls, x, sizes, left, right, repeated=()):
        values = map(_plain, (sizes, left, right, repeated))
        return super().__new__(cls, x, **dict(zip(cls.fields, values, strict=True)))

    @property
    def sizes(self) -> tuple:
        return tuple(self.args[1])

    def _latex(self, printer) -> str:
        names = atoms(self.sizes, printer)

        def side(axes):
            return r"\,".join(names[axis[0]] if len(axis) == 1 else _group(names, axis) for axis in axes)

        left, right = side(self.get("left")), side(self.get("right"))
        return rf"{{{tight(self.args[0], printer)}}}_{{[{left} \to {right}]}}"

    def infer(self, same, shape) -> Shape:
        left = [sympy.prod(self.sizes[atom] for atom in axis) for axis in self.get("left")]
        if len(left) != len(shape) or not all(map(same, left, shape)):
            raise ShapeError(f"{shape} is not laid out as {tuple(left)}")
        return tuple(sympy.prod(self.sizes[atom] for atom in axis) for axis in self.get("right"))

    def run(self, size, x) -> torch.Tensor:
        counts = self.counts(size)
        left = [atom for axis in self.get("left") for atom in axis]
        right = [atom for axis in self.get("right") for atom in axis]
        x = x.reshape([counts[atom] for atom in left])
        for place in reversed([i for i, atom in enumerate(left) if atom not in right]):
            x = x.squeeze(place)
            del left[place]
        for atom in right:
            if atom not in left:
                x, left = x[None].expand(counts[atom], *x.shape), [atom, *left]
        x = x.permute([left.index(atom) for atom in right]) if right else x
        return torch.reshape(x, [prod(counts[atom] for atom in axis) for axis in self.get("right")])

    def counts(self, size) -> list[int]:
        """Return the sizes of the factors."""
        return [round(float(size(length))) if length.free_symbols else int(length) for length in self.sizes]

    def _dependencies(self, size, cells, x) -> tuple[IndexSet, ...]:
        sizes = dict(enumerate(self.counts(size)))
        return through_factors(cells, [self.get("left")], self.get("right"), sizes, [x])


def _group(names, axis) -> str:
    return "(" + r"\,".join(names[atom] for atom in axis) + ")" if axis else "1"


def _plain(value):
    """Return tuples of tuples, from lists or from sympy's containers."""
    return tuple(map(_plain, value)) if isinstance(value, (tuple, list, sympy.Tuple)) else value


# Splitting the width into heads, and joining the heads again (Vaswani et al. 2017, section 3.2.2).


class Operator(Layout):
    """A layout that is printed as an operator with its sizes below, such as `grid` with 4 × 6."""

    NAME = ""
    args: tuple[sympy.Basic, ...]

    def _latex(self, printer) -> str:
        tensor, *sizes = map(printer._print, self.args)
        return call_latex(rf"\operatorname{{{self.NAME}}}", [r" \times ".join(sizes)] if sizes else [], [tensor])


class SplitHeads(Operator, Node):
    """`[B, S, h·d_k]` to `[B, h, S, d_k]`: head i takes columns i·d_k to (i+1)·d_k."""

    NAME = "heads"

    def infer(self, same, shape) -> Shape:
        if len(shape) < 2:
            raise ShapeError(f"{shape} has no sequence and width to split into heads")
        return (*shape[:-2], self.args[1], shape[-2], sympy.cancel(shape[-1] / self.args[1]))

    def run(self, size, tensor) -> torch.Tensor:
        return tensor.unflatten(-1, (int(size(self.args[1])), -1)).transpose(-3, -2)

    def pattern(self, size, shape) -> tuple[str, dict[str, int]]:
        return "... s (h d) -> ... h s d", {"h": int(size(self.args[1]))}


class MergeHeads(Operator, Node):
    """`[B, h, S, d_k]` to `[B, S, h·d_k]`: the heads side by side, h of them or as many as `heads` says."""

    NAME = "concat"
    reads = "... h s d -> ... s (h d)"

    def __new__(cls, tensor, heads="h"):
        return super().__new__(cls, tensor, symbol(heads) if isinstance(heads, str) else sympy.sympify(heads))

    def infer(self, same, shape) -> Shape:
        return (*shape[:-3], shape[-2], shape[-3] * shape[-1])

    def run(self, size, tensor) -> torch.Tensor:
        return tensor.transpose(-3, -2).flatten(-2)


# Factories: counted numbers, evenly spaced ones, and the identity.


class Arange(Node):
    """Numbers `[T]` from 0 up to T - 1."""

    def _latex(self, printer) -> str:
        return rf"\left(0, 1, \ldots, {printer._print(sympy.expand(self.args[0] - 1))}\right)"

    def infer(self, same) -> Shape:
        return (self.args[0],)

    def run(self, size) -> torch.Tensor:
        return torch.arange(int(size(self.args[0])))


MAX_PRINTED = 3
"""Counted numbers that are all printed, at most."""


class ArangeFrom(Node):
    """Numbers `[n]` from a first one on, with a constant step: `ArangeFrom(n, 1, 1)` is
    1, 2, … n."""

    def _latex(self, printer) -> str:
        length, first, step = self.args
        few = length.is_Integer and length <= MAX_PRINTED
        terms = [printer._print(sympy.expand(first + n * step)) for n in (range(length) if few else (0, 1, length - 1))]
        return r"\left({}\right)".format(", ".join(terms if few else (*terms[:2], r"\ldots", terms[2])))

    def infer(self, same) -> Shape:
        return (self.args[0],)

    def run(self, size) -> torch.Tensor:
        length, first, step = (int(size(bound)) for bound in self.args)
        return first + step * torch.arange(length)


class Identity(Node):
    r"""Matrix `[n, m]` with 1 on the diagonal, 0 elsewhere: `\mathbb{I}_{T}`, `\mathbb{I}_{S \times T}`."""

    def _latex(self, printer) -> str:
        sides = self.args[:1] if self.args[0] == self.args[1] else self.args
        return r"\mathbb{I}_{" + r" \times ".join(map(printer._print, sides)) + "}"

    def infer(self, same) -> Shape:
        return self.args

    def run(self, size) -> torch.Tensor:
        return torch.eye(*(int(size(side)) for side in self.args), dtype=torch.float64)


class Linspace(Linear, _FunctionCall):
    """Evenly spaced numbers `[n]` from a first one to a last one: `Linspace(first, last, count=n)`."""

    reads = "... -> ..."

    word = r"\operatorname{linspace}"
    fields = ("count",)
    counted, alone = None, False

    def infer(self, same, first, last) -> Shape:
        return (sympy.sympify(self.get("count")),)

    def run(self, size, first, last) -> torch.Tensor:
        return first + (last - first) * torch.linspace(0, 1, whole(self.get("count"), size), dtype=torch.float64)


class Nonzero(_FunctionCall):
    """Places `[n, rank]` of all numbers but 0, row by row; `Nonzero(x, count=n)`."""

    word = r"\operatorname{nonzero}"
    fields = ("count",)

    def subscripts(self, printer) -> list[str]:
        return []  # the count follows from the numbers

    def infer(self, same, shape) -> Shape:
        return sympy.sympify(self.get("count")), sympy.Integer(len(shape))

    def run(self, size, x) -> torch.Tensor:
        return x.nonzero()


# Layouts of the libraries: kernels as matrices, parts of packed products, and sequences with the batch as second
# axis.


class FlattenKernel(Operator, Node):
    """Kernels of a strided convolution as the matrix that patches are multiplied by: `[D, C, P, P]` to
    `[CP², D]`, in the order of `Unfold`."""

    NAME = "unroll"
    reads = "k c p q -> (c p q) k"

    def infer(self, same, shape) -> Shape:
        if len(shape) != 4:
            raise ShapeError(f"{shape} are not kernels, expected [D, C, P, P]")
        return (sympy.prod(shape[1:]), shape[0])

    def run(self, size, kernels) -> torch.Tensor:
        return kernels.flatten(1).T


class Columns(Indexing, Node):
    """Columns from `start` up to `stop` of the last axis, counted from 0: the part Q of a packed `QKV`."""

    def _latex(self, printer) -> str:
        start, stop = map(printer._print, self.args[1:])
        return rf"{{{tight(self.args[0], printer)}}}_{{[\ldots,\,{start}:{stop}]}}"

    def infer(self, same, shape) -> Shape:
        return (*shape[:-1], self.args[2] - self.args[1])

    def slices(self, size, shape) -> Slices:
        return (*[slice(None)] * (len(shape) - 1), slice(*(int(size(end)) for end in self.args[1:])))


class TransposeBatchSeq(Layout, Node):
    """First two axes exchanged: `TransposeBatchSeq(X, B, S)` makes `[B, S, D]` to `[S, B, D]`, the layout inside
    `nn.MultiheadAttention`."""

    reads = "a b ... -> b a ..."

    def _latex(self, printer) -> str:
        first, second = map(printer._print, self.args[1:])
        return rf"{{{tight(self.args[0], printer)}}}^{{{first} \leftrightarrow {second}}}"

    def infer(self, same, shape) -> Shape:
        if not all(map(same, shape[:2], self.args[1:])):
            raise ShapeError(f"{shape} has no axes {self.args[1]} and {self.args[2]} in front")
        return (shape[1], shape[0], *shape[2:])

    def run(self, size, tensor) -> torch.Tensor:
        return tensor.transpose(0, 1)


class Squeeze(Indexing, Node):
    """A parameter without its axes of size 1 in front: `[1, 1, D]` to `[D]`."""

    def _latex(self, printer) -> str:
        return printer._print(self.args[0])

    def infer(self, same, shape) -> Shape:
        return shape[int(self.args[1]) :]

    def slices(self, size, shape) -> Slices:
        axes = int(self.args[1])
        return (*[0] * axes, *[slice(None)] * (len(shape) - axes))


class ExpandLeading(Copies, Node):
    """Repetition of a tensor for each of a batch: `ExpandLeading(x, B, 1)` makes `[T, T]` to `[B, 1, T, T]`."""

    reads = "... -> ..."

    @property
    def cells(self) -> str:
        return self.args[0].cells

    def _latex(self, printer) -> str:
        return printer._print(self.args[0])

    def infer(self, same, shape) -> Shape:
        return (*self.args[1:], *shape)

    def run(self, size, tensor) -> torch.Tensor:
        return tensor.expand(*(int(size(argument)) for argument in self.args[1:]), *tensor.shape)


class PositionIds(Node):
    """Position numbers, `[1, T]`: 0, 1, … T - 1."""

    _latex = Arange._latex

    def infer(self, same) -> Shape:
        return (sympy.Integer(1), self.args[0])

    def run(self, size) -> torch.Tensor:
        return torch.arange(int(size(self.args[0])))[None]


class IsContiguous(Node):
    """1 if the position numbers increase by one throughout, so that the row holds one text, else 0; no axes."""

    def _latex(self, printer) -> str:
        place = printer._print(self.args[0])
        current, before = with_subscript(place, "j"), with_subscript(place, "j - 1")
        return rf"\left[\,{current} - {before} = 1 \text{{ for all }} j\,\right]"

    def infer(self, same, shape) -> Shape:
        return ()

    def run(self, size, places) -> torch.Tensor:
        return (places.diff() == 1).all().double()
