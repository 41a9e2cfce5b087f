"""Nodes that select, join and write parts of tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, reduce
from math import inf
from typing import Any, NamedTuple

import sympy
import torch

from tracer.expr.arithmetic import Absolute, And, Compare, Div, Floor, Minus, Or, Remainder, Where, condition, holds
from tracer.expr.embeddings import Lookup
from tracer.expr.function_call import Scalar, _FunctionCall, _WithFields, decimal, encode, setting_latex, tight, whole
from tracer.expr.index_sets import (
    AlongAxes,
    AxisReads,
    Copies,
    Indexing,
    IndexSet,
    Slices,
    Term,
    indices_in,
    replace_axes,
    shape_of,
    through_concat,
)
from tracer.expr.node import Node, Shape, ShapeError, Tensor, broadcast, infer, with_subscript
from tracer.expr.rearrangements import Arange, Rearrange
from tracer.expr.reductions import along
from tracer.symbols.axes import align_axes
from tracer.utils.text import latex_scientific

# Masks as they are added to the scores: 0 where a query may look, -∞ where it may not.


class CausalMask(Node):
    """`M_ij = 0` for `j ≤ i`, else `-∞`; `[S, S]` (Vaswani et al. 2017, section 3.2.3).

    `CausalMask(S, lowest)` has another number than -∞: some libraries add the lowest one of float32.
    """

    cells = "ij"

    def __new__(cls, length, *lowest):
        return super().__new__(cls, sympy.sympify(length), *map(sympy.Float, lowest))

    @property
    def lowest(self) -> float:
        """Number where a query may not look."""
        return float(self.args[1]) if len(self.args) > 1 else -inf

    def _latex(self, printer) -> str:
        lowest = r"-\infty" if self.lowest == -inf else latex_scientific(self.lowest)
        return rf"\begin{{cases}} 0 & j \le i \\ {lowest} & j > i \end{{cases}}"

    def infer(self, same) -> Shape:
        return (self.args[0], self.args[0])

    def run(self, size) -> torch.Tensor:
        queries, keys = (int(size(length)) for length in self.infer(None))
        i, j = torch.arange(queries)[:, None], torch.arange(keys)
        return torch.zeros(queries, keys, dtype=torch.float64).masked_fill(j > i, self.lowest)


class Triangle(Node):
    """`M_ij` is one number for `j ≤ i`, and another for `j > i`; `[S, S]`. `Triangle(S, 1, 0)` is 1 where a query may
    look."""

    cells = "ij"

    def __new__(cls, length, kept, rest):
        return super().__new__(cls, sympy.sympify(length), sympy.sympify(kept), sympy.sympify(rest))

    def _latex(self, printer) -> str:
        kept, rest = (decimal(value) if abs(value) < LARGE else latex_scientific(value) for value in self.numbers)
        return rf"\begin{{cases}} {kept} & j \le i \\ {rest} & j > i \end{{cases}}"

    @property
    def numbers(self) -> tuple[float, float]:
        """The number up to the diagonal, and the one behind it."""
        return float(self.args[1]), float(self.args[2])

    def infer(self, same) -> Shape:
        return (self.args[0], self.args[0])

    def run(self, size) -> torch.Tensor:
        (kept, rest), places = self.numbers, torch.arange(int(size(self.args[0])))
        return torch.where(places <= places[:, None], kept, rest).double()


LARGE = 10**5
"""Smallest number that is printed as a power of ten."""


class CausalMaskBetween(CausalMask):
    """`M_ij = 0` for `j ≤ i`, else `-∞`, where there are not as many keys as queries; `[S_q, S_k]`.

    Both are counted from the first, as `scaled_dot_product_attention(is_causal=True)` does.
    """

    lowest = -inf

    def __new__(cls, queries, keys):
        return Node.__new__(cls, queries, keys)

    def infer(self, same) -> Shape:
        return self.args


class Provided(Copies, Node):
    """A mask that the code uses only if a number that it checked is 1; otherwise nothing is known of it."""

    reads = "... -> ..."

    @property
    def cells(self) -> str:
        return self.args[0].cells

    def _latex(self, printer) -> str:
        mask, condition = map(printer._print, self.args)
        return rf"{mask} \quad \text{{since }} {condition} = 1"

    def infer(self, same, mask, condition) -> Shape:
        if condition:
            raise ShapeError(f"a mask is taken by one number, not by {condition}")
        return mask

    def run(self, size, mask, condition) -> torch.Tensor:
        return mask if condition == 1 else mask * float("nan")


class PrefixMask(Node):
    """`M_ij = 0` for `j ≤ i` or `j < n`, else `-∞`: the first n tokens see each other fully; `[S, S]`.

    Source: Raffel et al. 2020, section 3.2.1. `PrefixMask(S, n)`.
    """

    cells = "ij"

    def _latex(self, printer) -> str:
        prefix = printer._print(self.args[1])
        return rf"\begin{{cases}} 0 & j \le i \text{{ or }} j < {prefix} \\ -\infty & \text{{else}} \end{{cases}}"

    def infer(self, same) -> Shape:
        return (self.args[0], self.args[0])

    def run(self, size) -> torch.Tensor:
        length, prefix = (int(size(argument)) for argument in self.args)
        i, j = torch.arange(length)[:, None], torch.arange(length)
        return torch.zeros(length, length, dtype=torch.float64).masked_fill((j > i) & (j >= prefix), float("-inf"))


# Gathering cells by their indices, and writing into them: `{\mathbf{X}}_{[:,\,\mathbf{t},\,:]}`, counted from 0.

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
    """Return the value of a bound; None where nothing is said."""
    return None if value is None else whole(value, size)


def _bound(entry, size) -> Any:
    """Return the place or the slice that an entry says."""
    return slice(*(_int(end, size) for end in entry)) if isinstance(entry, tuple) else _int(entry, size)


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
        return super().__new__(cls, x, entries=entries if isinstance(entries, sympy.Tuple) else encode(entries))

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

    def slices(self, size, shape) -> Slices:
        return [_bound(entry, size) for entry in self.entries]


class _Indexing(_WithFields):
    """`…(x, *values, *places)`: entries of the pattern are None where an axis is taken whole, `"t"` where the next of
    the places stands, `"m"` where the next of them is a mask (of one axis or several), or as in `Slice`."""

    def fill(self, places, of_place, of_mask, of_entry) -> tuple:
        """Return the entries with what these functions make of the places, the masks and the other entries."""
        following = iter(places)
        kinds: dict[Any, Callable] = {
            "t": lambda entry: of_place(next(following)),
            "m": lambda entry: of_mask(next(following)),
        }
        entries = (FULL_SLICE if entry is None else entry for entry in self.get("entries"))
        return tuple(kinds.get(entry, of_entry)(entry) for entry in entries)

    def entries_said(self, places, printer) -> tuple:
        return self.fill(places, printer._print, lambda mask: condition(mask, printer), lambda entry: entry)

    def where(self, size, places) -> tuple:
        return self.fill(places, lambda place: place.long(), holds, lambda entry: _bound(entry, size))


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
                begin, _, step = _bound(entry, size).indices(n)
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

    reads = "... -> ... k"

    word = r"\operatorname{onehot}"
    fields = ("classes",)

    def infer(self, same, shape) -> Shape:
        return (*shape, sympy.sympify(self.get("classes")))

    def run(self, size, x) -> torch.Tensor:
        return (x[..., None] == torch.arange(_int(self.get("classes"), size))).long()


# Tensors concatenated, stacked, padded, flipped and cut to triangles.


class Concat(Copies, _WithFields):
    r"""Tensors of one rank one after the other along an axis: `[a , b]` along the last, `[a ; b]` along the one before
    it, and `[a ; b]_{\text{axis }1}` along any other, counted from 0. `Concat(*tensors, axis=1, rank=4)`."""

    fields = ("axis", "rank")

    def _latex(self, printer) -> str:
        axis, rank = self.get("axis"), self.get("rank")
        sign = r"\ ,\ " if axis == rank - 1 else r"\ ;\ "
        below = rf"_{{\text{{axis }}{axis}}}" if axis < rank - 2 else ""
        return r"\left[" + sign.join(printer._print(operand) for operand in self.operands) + rf"\right]{below}"

    def infer(self, same, *shapes) -> Shape:
        axis = self.get("axis")
        for shape in shapes[1:]:
            if len(shape) != len(shapes[0]) or not all(
                i == axis or same(a, b) for i, (a, b) in enumerate(zip(shapes[0], shape, strict=True))
            ):
                raise ShapeError(f"{shapes[0]} and {shape} can't be joined along axis {axis}")
        return tuple(sum(s[i] for s in shapes) if i == axis else n for i, n in enumerate(shapes[0]))

    def run(self, size, *tensors) -> torch.Tensor:
        axis = self.get("axis")
        shape = list(tensors[0].shape)
        shape[axis] = sum(tensor.shape[axis] for tensor in tensors)
        joined = torch.empty(shape, dtype=reduce(torch.promote_types, (tensor.dtype for tensor in tensors)))
        start = 0
        for tensor in tensors:
            stop = start + tensor.shape[axis]
            joined[(slice(None),) * axis + (slice(start, stop),)] = tensor
            start = stop
        return joined

    sources = inf

    def _dependencies(self, size, cells, *operands) -> tuple[IndexSet, ...]:
        return through_concat(cells, self.get("axis") - len(cells.shape), operands)


class Stack(Copies, _FunctionCall):
    """Tensors of one shape along a new axis, counted from 0: `Stack(a, b, axis=0)`."""

    word = r"\operatorname{stack}"
    fields = ("axis",)

    def subscripts(self, printer) -> list[str]:
        return [rf"\text{{axis }}{self.get('axis')}"] if self.get("axis") else []

    def infer(self, same, *shapes) -> Shape:
        axis = self.get("axis")
        for shape in shapes[1:]:
            if len(shape) != len(shapes[0]) or not all(map(same, shapes[0], shape)):
                raise ShapeError(f"{shapes[0]} and {shape} can't be stacked")
        return (*shapes[0][:axis], sympy.Integer(len(shapes)), *shapes[0][axis:])

    def run(self, size, *tensors) -> torch.Tensor:
        stacked = torch.empty(len(tensors), *tensors[0].shape, dtype=torch.result_type(tensors[0], tensors[-1]))
        for place, tensor in enumerate(tensors):
            stacked[place] = tensor
        return stacked.movedim(0, self.get("axis"))

    sources = inf

    def _dependencies(self, size, cells, *operands) -> tuple[IndexSet, ...]:
        axis, shapes = self.get("axis"), [shape_of(operand) for operand in operands]
        rest = (*cells.axes[:axis], *cells.axes[axis + 1 :])
        return tuple(
            IndexSet.of(shape, rest) if i in cells.axes[axis] else IndexSet.none(shape)
            for i, shape in enumerate(shapes)
        )


class Pad(AlongAxes, Copies, _FunctionCall):
    """Numbers before and after the last axes: `pads` is (before, after) of the last, then of the one before it …;
    negative ones cut off. `mode`: None for `value`, "reflect", "replicate" or "circular"."""

    word = r"\operatorname{pad}"
    fields = ("pads", "mode", "value")

    def subscripts(self, printer) -> list[str]:
        mode, value = self.get("mode"), self.get("value")
        notes = [rf"\text{{{mode}}}"] if mode else [rf"\text{{with }}{decimal(value)}"] if value else []
        return [*(setting_latex(n, printer) for n in self.get("pads")), *notes]

    def infer(self, same, shape) -> Shape:
        pads, padded = self.get("pads"), list(shape)
        for i in range(len(pads) // 2):
            padded[-1 - i] = padded[-1 - i] + pads[2 * i] + pads[2 * i + 1]
        return tuple(padded)

    def run(self, size, x) -> torch.Tensor:
        pads, mode = [whole(n, size) for n in self.get("pads")], self.get("mode")
        for i in range(len(pads) // 2):
            n = x.shape[-1 - i]
            places = torch.arange(-pads[2 * i], n + pads[2 * i + 1])
            inside = ((places >= 0) & (places < n)).reshape(-1, *(1,) * i)
            if mode == "reflect":
                places = (n - 1) - (places.abs() - (n - 1)).abs()
            elif mode == "circular":
                places = places % n
            x = x.index_select(-1 - i, places.clamp(0, max(n - 1, 0)))
            x = x if mode else torch.where(inside, x, self.get("value") or 0)
        return x

    def read_along(self, size, shape, axes) -> AxisReads:
        pads, mode = [whole(n, size) for n in self.get("pads")], self.get("mode")
        read: AxisReads = {}
        for i in range(len(pads) // 2):
            n, places = shape[-1 - i], [place - pads[2 * i] for place in axes[-1 - i]]
            if mode == "reflect":
                places = [(n - 1) - abs(abs(place) - (n - 1)) for place in places]
            elif mode == "circular":
                places = [place % n for place in places]
            elif mode:
                places = [min(max(place, 0), n - 1) for place in places]
            read[-1 - i] = [place for place in places if 0 <= place < n]
        return read


class _Triangle(AlongAxes, Copies, _FunctionCall):
    fields = ("diagonal",)

    def subscripts(self, printer) -> list[str]:
        return [setting_latex(self.get("diagonal"), printer)] if self.get("diagonal") else []

    def run(self, size, x) -> torch.Tensor:
        i, j = torch.arange(x.shape[-2])[:, None], torch.arange(x.shape[-1])
        return torch.where(self.stays(j - i - whole(self.get("diagonal") or 0, size)), x, 0)

    def read_along(self, size, shape, axes) -> AxisReads:
        diagonal, (*_, rows, columns) = whole(self.get("diagonal") or 0, size), axes
        i = [row for row in rows if any(self.stays(column - row - diagonal) for column in columns)]
        j = [column for column in columns if any(self.stays(column - row - diagonal) for row in rows)]
        return {-2: i, -1: j}


class Tril(_Triangle):
    """0 where j > i + k."""

    word = r"\operatorname{tril}"

    def stays(self, over) -> torch.Tensor:
        return over <= 0


class Triu(_Triangle):
    """0 where j < i + k."""

    word = r"\operatorname{triu}"

    def stays(self, over) -> torch.Tensor:
        return over >= 0


class Flip(AlongAxes, Copies, _Along):
    """Some axes in reverse order."""

    word = r"\operatorname{flip}"

    def run(self, size, x) -> torch.Tensor:
        for axis in self.get("axes"):
            x = x.index_select(axis, torch.arange(x.shape[axis] - 1, -1, -1))
        return x

    def read_along(self, size, shape, axes) -> AxisReads:
        return {axis: [shape[axis] - 1 - i for i in axes[axis]] for axis in self.get("axes")}


class Roll(Flip):
    """Numbers shifted along some axes; what leaves at one end enters at the other. `shifts`: one for each axis.

    Rows and columns of a grid, `[B, n, m, D]`, are not named: their `labels` are ().
    """

    word = r"\operatorname{roll}"
    fields = ("shifts", "axes", "labels")

    def subscripts(self, printer) -> list[str]:
        shifts = r" \times ".join(setting_latex(n, printer) for n in self.get("shifts"))
        return [shifts] if self.get("labels") == () else [shifts, *super().subscripts(printer)]

    def run(self, size, x) -> torch.Tensor:
        for axis, shift in zip(self.get("axes"), self.get("shifts"), strict=True):
            n = x.shape[axis]
            x = x.index_select(axis, (torch.arange(n) - whole(shift, size)) % n)
        return x

    def read_along(self, size, shape, axes) -> AxisReads:
        moved = dict.fromkeys(self.get("axes"), 0)
        for axis, shift in zip(self.get("axes"), self.get("shifts"), strict=True):
            moved[axis] += whole(shift, size)
        return {axis: [(i - shift) % shape[axis] for i in axes[axis]] for axis, shift in moved.items()}


class Full(Copies, _FunctionCall):
    r"""A number, or a tensor, for all cells of a shape that it broadcasts to: `Full(x, shape=(B, N))`; zeros and ones
    are `\mathbf{0}_{B \times N}` and `\mathbf{1}_{B \times N}`."""

    reads = "... -> ..."

    word = r"\operatorname{full}"
    fields = ("shape",)

    def subscripts(self, printer) -> list[str]:
        return [r" \times ".join(setting_latex(size, printer) for size in self.get("shape"))]

    def _latex(self, printer) -> str:
        (number,) = self.operands
        if self.get("shape") and isinstance(number, Scalar) and number.value in (0, 1):
            return rf"\mathbf{{{int(number.value)}}}_{{{self.subscripts(printer)[0]}}}"
        return super()._latex(printer)

    def infer(self, same, x) -> Shape:
        return tuple(map(sympy.sympify, self.get("shape")))

    def run(self, size, x) -> torch.Tensor:
        return x.expand([whole(length, size) for length in self.get("shape")])


# Gathering tokens by their indices, and scattering them back among mask tokens (He et al. 2022, section 3).


class Take(Copies, Node):
    """Chosen tokens of each sequence: `X[π]`, `[B, N, D]` and numbers `[B, n]` to `[B, n, D]`."""

    reads = "b [n] d, b i -> b i d"

    _latex = Lookup._latex

    def infer(self, same, tokens, numbers) -> Shape:
        if len(tokens) != 3 or len(numbers) != 2 or not same(tokens[0], numbers[0]):
            raise ShapeError(f"{tokens} taken at {numbers}, expected [B, N, D] and [B, n]")
        return (*numbers, tokens[-1])

    def run(self, size, tokens, numbers) -> torch.Tensor:
        return torch.stack([row[chosen] for row, chosen in zip(tokens, numbers.long(), strict=True)])


class Repeat(Copies, Node):
    """One vector as every token: `Repeat(x, B, N)` is `[B, N, D]`."""

    reads = "... -> ..."

    def _latex(self, printer) -> str:
        token, count = printer._print(self.args[0]), printer._print(self.args[2])
        return rf"\left[{token}\ ;\ \dots\ ;\ {token}\right]_{{{count}}}"

    def infer(self, same, token) -> Shape:
        return (*self.args[1:], *token)

    def run(self, size, token) -> torch.Tensor:
        batch, count = (int(size(argument)) for argument in self.args[1:])
        return torch.stack([torch.stack([token] * count)] * batch)


class Put(Copies, Node):
    """Tokens at their places, others elsewhere: `Put(M, π, X)` has row i of X at place π_i, and M's rows else."""

    cells = "[j]"

    def _latex(self, printer) -> str:
        others, numbers, tokens = (operand.factor_latex(printer) for operand in self.operands)
        placed = rf"{with_subscript(tokens, '[i]')} & j = {with_subscript(numbers, 'i')}"
        return rf"\begin{{cases}} {placed} \\ {with_subscript(others, '[j]')} & \text{{else}} \end{{cases}}"

    def infer(self, same, others, numbers, tokens) -> Shape:
        if not all(map(same, (*numbers, others[-1]), tokens)):
            raise ShapeError(f"{tokens} put at {numbers} into {others}, expected one token for each number")
        return others

    def run(self, size, others, numbers, tokens) -> torch.Tensor:
        result = others.clone()
        for i, (places, values) in enumerate(zip(numbers, tokens, strict=True)):
            result[i, places] = values
        return result

    sources = 3

    def _dependencies(self, size, cells, others, numbers, tokens) -> tuple[IndexSet, ...]:
        """Return all indices of a sequence: any of them may select the cell."""
        shapes = [shape_of(operand) for operand in (others, numbers, tokens)]
        batch, rows, width = cells.axes
        where = IndexSet.of(shapes[1], (batch, None))
        if not hasattr(numbers, "tolist"):
            return IndexSet.of(shapes[0], cells.axes), where, IndexSet.of(shapes[2], (batch, None, width))
        placed = [numbers[b].tolist() for b in batch]
        slots = {i for row in placed for i, place in enumerate(row) if place in rows}
        stays = [j for j in rows if any(j not in row for row in placed)]
        return IndexSet.of(shapes[0], (batch, stays, width)), where, IndexSet.of(shapes[2], (batch, slots, width))

    def contributions(self, size, cell, *tensors) -> list[Term]:
        return [
            term._replace(share=None, factor=None, counted=False) if term.operand == 1 else term
            for term in super().contributions(size, cell, *tensors)
        ]


# Cases that depend on where a cell lies alone, written by its indices: 0 where k = 1, and `A_{kij}` elsewhere.


class Head(Scalar):
    r"""The index of a head: `\text{head }2` of `Head(1)`.

    Heads count from 1 where they are read, all other indices from 0, also those that code compares.
    """

    needs_parens = False

    def _latex(self, printer) -> str:
        return rf"\text{{head }}{printer._print(self.value + 1)}"


def number_heads(node: Node, behind: int | None) -> Node:
    """Return a `Where` whose condition names heads by their numbers, where counted numbers along the axis of heads,
    with so many axes `behind` it, are compared; any other node as it is."""
    if behind is None or not isinstance(node, Where):
        return node
    mask, *branches = node.operands
    return node.func(_with_heads(mask, behind), *(number_heads(branch, behind) for branch in branches))


def _with_heads(mask: Node, behind: int) -> Node:
    if isinstance(mask, Rearrange):
        left, right = mask.get("left"), mask.get("right")
        operand = _with_heads(mask.operands[0], behind - (len(right) - len(left)))
        return mask.func(operand, *mask.args[1:])
    if isinstance(mask, (And, Or)):
        return mask.func(*(_with_heads(operand, behind) for operand in mask.operands))
    if not isinstance(mask, Compare):
        return mask
    counted, number = mask.operands
    whole_number = isinstance(number, Scalar) and number.value.is_Integer
    if not whole_number or number.value < 0 or _counted_axis(counted) != behind:
        return mask
    return Compare(counted, Head(number.value), sign=mask.get("sign"))


def _counted_axis(node: Node) -> int | None:
    """Return how many axes lie behind the one that numbers are counted along; None for any other tensor."""
    if isinstance(node, Arange):
        return 0
    if isinstance(node, Rearrange) and (inner := _counted_axis(node.operands[0])) is not None:
        return inner + len(node.get("right")) - len(node.get("left"))
    if isinstance(node, (Floor, Div, Remainder)) and all(isinstance(operand, Scalar) for operand in node.operands[1:]):
        return _counted_axis(node.operands[0])
    return None


def numbers_heads(node: Node) -> bool:
    """Return whether an equation names heads by their numbers."""
    return bool(node.has(Head))


LETTERS = "kij"
"""Indices of the last three axes, each counted from 0."""
NEGATIONS = {"=": r"\ne", r"\ne": "=", "<": r"\ge", r"\ge": "<", ">": r"\le", r"\le": ">"}
"""For each sign, the one that holds where it does not."""


class IndexCondition(NamedTuple):
    """Comparisons of indices, at least one of which holds where a mask is 1, or, if `negated`, where it is 0."""

    comparisons: tuple[Compare, ...]
    letters: str
    negated: bool


class CellCases(Where):
    r"""`Where` of indices: `\begin{cases} 0 & k = 1 \\ A_{kij} & \text{else} \end{cases}`; `CellCases(m, a, b)`.

    The condition m is one of counted numbers; `by_cells` returns the node where it is.
    """

    @property
    def cells(self) -> str:  # type: ignore[override]
        condition = index_condition(self.operands[0])
        return condition.letters if condition else ""

    def _latex(self, printer) -> str:
        condition = index_condition(self.operands[0])
        if condition is None:  # of one cell, with its number in place of the condition
            return super()._latex(printer)
        first, second = (_cell(branch, condition.letters, printer) for branch in self.operands[1:])
        if condition.negated:
            first, second = second, first
        relations = r" \text{ or } ".join(comparison.relation(printer) for comparison in condition.comparisons)
        return rf"\begin{{cases}} {first} & {relations} \\ {second} & \text{{else}} \end{{cases}}"


def _cell(branch: Node, letters: str, printer) -> str:
    if isinstance(branch, Scalar):
        return printer._print(branch)
    if isinstance(branch, Tensor) and not branch.transposed:
        return with_subscript(branch.name, letters)
    return rf"{{{tight(branch, printer)}}}_{{{letters}}}"


def by_cells(node: Node) -> Node:
    """Return a `Where` whose condition is one of indices as `CellCases`; any other node as it is."""
    if type(node) is not Where or (condition := index_condition(node.operands[0])) is None:
        return node
    count = len(condition.letters)
    try:
        sizes = infer(node)[-count:]
        fit = len(sizes) == count and all(
            isinstance(branch, Scalar) or infer(branch)[-count:] == sizes for branch in node.operands[1:]
        )
    except ShapeError:
        return node
    return CellCases(*node.args) if fit else node


@lru_cache(maxsize=256)
def index_condition(mask: Node) -> IndexCondition | None:
    """Return a mask as comparisons of indices; None for one that depends on anything else."""
    indexed = _with_indices(mask)
    kind = And if isinstance(indexed, And) else Or
    comparisons = tuple(_operands(indexed, kind)) if indexed is not None else ()
    if not comparisons or not all(isinstance(comparison, Compare) for comparison in comparisons):
        return None
    negated = kind is And or [comparison.get("sign") for comparison in comparisons] == [r"\ne"]
    if negated:
        comparisons = tuple(Compare(*c.operands, sign=NEGATIONS[c.get("sign")]) for c in comparisons)
    used = {symbol.name for comparison in comparisons for symbol in comparison.free_symbols}
    first = min((place for place, letter in enumerate(LETTERS) if letter in used), default=None)
    return None if first is None else IndexCondition(comparisons, LETTERS[first:], negated)


def _operands(node: Node, kind: type[Node]):
    """Yield the operands of nested nodes of one kind."""
    if not isinstance(node, kind):
        yield node
        return
    for operand in node.operands:
        yield from _operands(operand, kind)


def _with_indices(node: Node, behind: int = 0) -> Node | None:
    """Return a node with an index for counted numbers, which lie along the axis with so many axes `behind` it; None
    where it reads anything else."""
    if isinstance(node, Rearrange):
        left, right = node.get("left"), node.get("right")
        aligned = right[: len(left)] == left and not any(right[len(left) :])
        return _with_indices(node.operands[0], behind + len(right) - len(left)) if aligned else None
    if isinstance(node, Arange):
        return Scalar(sympy.Symbol(LETTERS[-1 - behind])) if behind < len(LETTERS) else None
    if isinstance(node, Scalar):
        return node
    if not isinstance(node, (And, Or, Compare, Minus, Absolute, Floor, Div, Remainder)):
        return None
    operands = [_with_indices(operand, behind) for operand in node.operands]
    return None if None in operands else node.func(*operands, *node.args[len(operands) :])
