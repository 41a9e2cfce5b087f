r"""Gathering cells by their indices, and writing into them: `{\mathbf{X}}_{[:,\,\mathbf{t},\,:]}`, counted from 0."""

from __future__ import annotations

from typing import Any

import sympy
import torch

from tracer.expr.function_call import _FunctionCall, _WithFields, encode, setting_latex, tight
from tracer.expr.index_sets import IndexSet, Term, align_axes, indices_in, replace_axes, shape_of
from tracer.expr.math.comparisons import condition, holds
from tracer.expr.math.reductions import along
from tracer.expr.node import Node, Shape, ShapeError, broadcast
from tracer.expr.provenance_rules import Copies, Indexing, Slices

FULL_SLICE = (None, None, None)


def pattern(entries, printer) -> str:
    r"""Return the indices along each axis as LaTeX: `:,\,0,\,a:b`; axes in front that are taken whole are `\ldots`
    where there are several, or where a single entry would be read as a row."""
    texts = []
    for entry in entries:
        if not isinstance(entry, tuple):
            texts.append(entry if isinstance(entry, str) else setting_latex(entry, printer))
            continue
        start, stop, step = entry
        text = ":".join("" if end is None else setting_latex(end, printer) for end in (start, stop))
        texts.append(text if step in (None, 1) else f"{text}:{step}")
    whole = next((i for i, text in enumerate(texts) if text != ":"), len(texts))
    if whole > 1 or len(texts) == 1:
        texts = [r"\ldots", *texts[whole:]]
    return r",\,".join(texts)


def _int(value, size) -> Any:
    return value if value is None or isinstance(value, int) else round(float(size(value)))


def _length(n, start, stop, step):
    """Return the length of a slice of an axis of n, in sizes; negative ends count from the end."""
    first = 0 if start is None else start + n if sympy.sympify(start).is_negative else start
    last = n if stop is None else stop + n if sympy.sympify(stop).is_negative else stop
    return sympy.sympify(last - first) if step in (None, 1) else sympy.ceiling(sympy.sympify(last - first) / step)


class Slice(Indexing, _WithFields):
    r"""Some cells of each axis: `Slice(X, ((None, None, None), 0, (a, b, None)))` is `X[:, 0, a:b]`.

    One entry for each axis: a place, which takes the axis away, or (start, stop, step), None where nothing is said.
    """

    fields = ("entries",)

    def __new__(cls, x, entries):
        return super().__new__(cls, x, entries if isinstance(entries, sympy.Tuple) else encode(entries))

    @property
    def entries(self) -> tuple:
        return self.get("entries")

    def _latex(self, printer) -> str:
        return rf"{{{tight(self.args[0], printer)}}}_{{[{pattern(self.entries, printer)}]}}"

    def infer(self, same, shape) -> Shape:
        if len(shape) != len(self.entries):
            raise ShapeError(f"{shape} has {len(shape)} axes, expected {len(self.entries)}")
        picked = zip(shape, self.entries, strict=True)
        return tuple(
            n if entry == FULL_SLICE else _length(n, *entry) for n, entry in picked if isinstance(entry, tuple)
        )

    def run(self, size, x) -> torch.Tensor:
        return x[tuple(self.slices(size, x.shape))]

    def slices(self, size, shape) -> Slices:
        return [
            slice(*(_int(bound, size) for bound in entry)) if isinstance(entry, tuple) else _int(entry, size)
            for entry in self.entries
        ]


class _Indexing(_WithFields):
    """`…(x, *values, *places)`: entries of the pattern are None where an axis is taken whole, `"t"` where the next of
    the places stands, `"m"` where the next of them is a mask (of one axis or several), or as in `Slice`."""

    def entries_said(self, places, printer) -> list:
        places, texts = list(places), []
        for entry in self.get("entries"):
            if entry in ("t", "m"):
                place = places.pop(0)
                texts.append(printer._print(place) if entry == "t" else condition(place, printer))
            else:
                texts.append(FULL_SLICE if entry is None else entry)
        return texts

    def where(self, size, places) -> tuple:
        places, indices = list(places), []
        for entry in self.get("entries"):
            if entry == "t":
                indices.append(places.pop(0).long())
            elif entry == "m":
                indices.append(holds(places.pop(0)))
            elif isinstance(entry, tuple):
                indices.append(slice(*(_int(bound, size) for bound in entry)))
            else:
                indices.append(slice(None) if entry is None else _int(entry, size))
        return tuple(indices)


class Index(Copies, _Indexing):
    """Cells at places that tensors say: `Index(X, t, entries=(None, "t", None))` is `X[:, t]`; several tensors of
    places run together. `result` is the shape that is made, where masks choose."""

    fields = ("entries", "result")

    def _latex(self, printer) -> str:
        x, *places = self.operands
        return rf"{{{tight(x, printer)}}}_{{[{pattern(self.entries_said(places, printer), printer)}]}}"

    def infer(self, same, x, *places) -> Shape:
        if "m" in self.get("entries") or any(isinstance(entry, tuple) for entry in self.get("entries")):
            return tuple(map(sympy.sympify, self.get("result")))
        kinds = [entry == "t" for entry in self.get("entries")]
        run, first = broadcast(same, *places), kinds.index(True)
        together = all(kinds[first : first + sum(kinds)])
        rest = [n for n, chosen in zip(x, kinds, strict=True) if not chosen]
        return (*rest[:first], *run, *rest[first:]) if together else (*run, *rest)

    def run(self, size, x, *places) -> torch.Tensor:
        return x[self.where(size, places)]

    def contributions(self, size, cell, x, *places) -> list[Term]:
        copied = Copies if "m" not in self.get("entries") else Node
        return copied.contributions(self, size, cell, x, *places)

    def _dependencies(self, size, cells, x, *places) -> tuple[IndexSet, ...]:
        """Return all cells where a mask chooses: the result's cells do not determine where they were."""
        entries = self.get("entries")
        if "m" in entries:
            return super()._dependencies(size, cells, x, *places)
        shape, index_shapes = shape_of(x), [shape_of(place) for place in places]
        said_by = [entry for entry in entries if entry is None or entry == "t" or isinstance(entry, tuple)]
        kinds = [entry == "t" for entry in said_by]
        first, count = kinds.index(True), sum(kinds)
        rank = max(map(len, index_shapes))
        start = first if all(kinds[first : first + count]) else 0
        run = cells.axes[start : start + rank]
        rest = iter((*cells.axes[:start], *cells.axes[start + rank :]))
        where = [IndexSet.of(n, align_axes(run, n)) for n in index_shapes]
        operand_sets: list = []
        numbers = iter(zip(where, places, strict=True))
        for entry, n in zip(entries, shape, strict=True):
            if entry == "t":
                index_set, place = next(numbers)
                operand_sets.append(indices_in(index_set, place, n))
            elif isinstance(entry, tuple):
                begin, _, step = slice(*(_int(index_set, size) for index_set in entry)).indices(n)
                operand_sets.append([begin + step * i for i in next(rest)])
            else:
                operand_sets.append(next(rest) if entry is None else (_int(entry, size) % n,))
        return IndexSet.of(shape, operand_sets), *where


class IndexPut(_Indexing):
    r"""x with other numbers at some places, `{\mathbf{X}}_{[:,\,\mathbf{t}] \gets \mathbf{V}}`; with `add` they are
    added. `IndexPut(x, values, *places, entries=…)`."""

    fields = ("entries", "add")

    def _latex(self, printer) -> str:
        x, values, *places = self.operands
        sign = "+" if self.get("add") else ""
        chosen = pattern(self.entries_said(places, printer), printer)
        return rf"{{{tight(x, printer)}}}_{{[{chosen}] \gets {sign}{printer._print(values)}}}"

    def infer(self, same, x, values, *places) -> Shape:
        return x

    def run(self, size, x, values, *places) -> torch.Tensor:
        result, where = _room(x, values), self.where(size, places)
        values = values.to(result.dtype)
        if not self.get("add"):
            result[where] = values
            return result
        return result + _totals(result, where, values)


def _room(x, values):
    """Return a copy of x in a dtype that holds the values."""
    return x.to(torch.promote_types(x.dtype, values.dtype), copy=True)


class _Along(_FunctionCall):
    fields: tuple[str, ...] = ("axes", "labels")

    def subscripts(self, printer) -> list[str]:
        return along(self.get("labels"), self.get("axes"), printer)

    @property
    def axis(self) -> int:
        return self.get("axes")[0]


def _totals(like, where, values):
    """Return the sums of `values` at these indices, accumulated one by one."""
    cells = torch.arange(like.numel()).reshape(like.shape)[where]
    values = values.expand(cells.shape).flatten().double()
    return torch.bincount(cells.flatten(), values, like.numel()).reshape(like.shape).to(like.dtype)


def _grid(index, axis: int):
    """Return the indices of all cells of `index` along each axis, with its values along one."""
    places = [torch.arange(n).reshape(-1, *(1,) * (index.dim() - 1 - i)) for i, n in enumerate(index.shape)]
    places[axis] = index.long()
    return tuple(places)


class Gather(Copies, _Along):
    """Cell by cell, the number of x at the place along one axis that an index says; `Gather(x, index, …)`."""

    word = r"\operatorname{gather}"

    def infer(self, same, x, index) -> Shape:
        return index

    def run(self, size, x, index) -> torch.Tensor:
        if index.dim() == 0:
            return x[index.long()] if x.dim() else x
        return x[_grid(index, self.axis)]

    def _dependencies(self, size, cells, x, index) -> tuple[IndexSet, ...]:
        shape, index_shape = shape_of(x), shape_of(index)
        if not shape or not index_shape:
            return super()._dependencies(size, cells, x, index)
        where = IndexSet.of(index_shape, cells.axes)
        return replace_axes(cells, shape, {self.axis: indices_in(where, index, shape[self.axis])}), where


class Scatter(_Along):
    """x with each number of `values` at the place along one axis that an index says; `Scatter(x, index, values)`.

    `how`: None writes it, "add" adds it, "amax", "amin" and "prod" take the extreme or the product.
    """

    word = r"\operatorname{scatter}"
    fields = ("how", "axes", "labels")

    def subscripts(self, printer) -> list[str]:
        how = self.get("how")
        return [*([rf"\text{{{how}}}"] if how else []), *super().subscripts(printer)]

    def infer(self, same, x, index, values) -> Shape:
        return x

    def run(self, size, x, index, values) -> torch.Tensor:
        result, how = _room(x, values), self.get("how")
        values = values.expand(index.shape) if not values.dim() else values[tuple(slice(0, n) for n in index.shape)]
        where, values = _grid(index, self.axis), values.to(result.dtype)
        if not how:
            result[where] = values
            return result
        if how == "add":
            return result + _totals(result, where, values)
        join = {"prod": torch.mul, "amax": torch.maximum, "amin": torch.minimum}[how]
        places = [place.expand(index.shape).flatten().tolist() for place in where]
        for *place, value in zip(*places, values.flatten(), strict=True):
            result[tuple(place)] = join(result[tuple(place)], value)
        return result


class MaskedScatter(_FunctionCall):
    """x with the numbers of `values`, one after the other, where a mask is 1; `MaskedScatter(x, mask, values)`."""

    word = r"\operatorname{fill}"

    def infer(self, same, x, mask, values) -> Shape:
        return broadcast(same, x, mask)

    def run(self, size, x, mask, values) -> torch.Tensor:
        x, mask = torch.broadcast_tensors(x, holds(mask))
        place = (mask.flatten().double().cumsum(0) - 1).clamp(min=0).long()
        return torch.where(mask, values.flatten()[place].reshape(x.shape), x)


class OneHot(_FunctionCall):
    """1 at the place that a number says, 0 elsewhere, along a new last axis; `OneHot(x, classes=K)`."""

    word = r"\operatorname{onehot}"
    fields = ("classes",)

    def subscripts(self, printer) -> list[str]:
        return [setting_latex(self.get("classes"), printer)]

    def infer(self, same, shape) -> Shape:
        return (*shape, sympy.sympify(self.get("classes")))

    def run(self, size, x) -> torch.Tensor:
        return (x[..., None] == torch.arange(_int(self.get("classes"), size))).long()

    def _dependencies(self, size, cells, x) -> tuple[IndexSet, ...]:
        shape = shape_of(x)
        return (IndexSet.of(shape, cells.axes[:-1]),)
