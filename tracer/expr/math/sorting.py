"""Sorted numbers, the largest of each row, and their original indices."""

from __future__ import annotations

import sympy
import torch

from tracer.expr.function_call import setting_latex
from tracer.expr.math.cumulative import _AlongAxis
from tracer.expr.node import Shape
from tracer.expr.provenance_rules import ArgSelect, OfAll


class Sort(ArgSelect, _AlongAxis):
    """Numbers of each row in order; `down` has the largest first."""

    word = r"\operatorname{sort}"
    fields: tuple[str, ...] = ("down", "axes", "labels")

    def subscripts(self, printer) -> list[str]:
        return [r"\downarrow"] * bool(self.get("down")) + super().subscripts(printer)

    def along_last(self, x) -> torch.Tensor:
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

    def along_last(self, x) -> torch.Tensor:
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
        k = self.get("k")
        ordered = self.along_last(x.movedim(axis, -1))[..., : k if isinstance(k, int) else int(size(k))]
        return ordered.movedim(-1, axis)


class ArgTopK(_SortIndices, TopK):
    """Indices of the k largest numbers of each row, from 0."""

    word = r"\operatorname{argtop}"
