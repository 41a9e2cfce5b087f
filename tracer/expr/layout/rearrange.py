r"""Layouts as patterns of einops: axes split, permuted, merged, repeated, nothing computed (Rogozhnikov 2022)."""

from __future__ import annotations

from math import prod

import sympy
import torch

from tracer.expr.function_call import _WithFields, encode, tight
from tracer.expr.index_sets import IndexSet, through_permute
from tracer.expr.node import Shape, ShapeError
from tracer.expr.provenance_rules import Copies


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
        return super().__new__(cls, x, *map(encode, map(_plain, (sizes, left, right, repeated))))

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
        return (through_permute(cells, self.counts(size), self.get("left"), self.get("right")),)


def _group(names, axis) -> str:
    return "(" + r"\,".join(names[atom] for atom in axis) + ")" if axis else "1"


def _plain(value):
    """Return tuples of tuples, from lists or from sympy's containers."""
    return tuple(map(_plain, value)) if isinstance(value, (tuple, list, sympy.Tuple)) else value
