r"""Value of a printed line, from its tree and the tensors that it names, in NumPy and `math` alone.

What the notation leaves out is this much, and no more:

- Matrices are the last two axes of a tensor; axes in front of them (inputs, heads) ride along by broadcasting. A
  vector counts as one row, and an axis of size 1 in front may be left out.
- μ, σ², mean, the length of a vector and the softmax are of the last axis. `X[n]` are rows by their numbers, from 0:
  the axes of X in front of its matrices are the first ones of n.
- `x_{ij}` are the last two axes, `x_j` the last. On the left, i and j run over the axes of the shape beside the line.
- Below a word stand the axes that it is of, by their sizes: from the last that is named to the first, each is the last
  axis of that size before the one named after it. In a sum that begins with a convolution, and in `(…)_{by channel}`,
  vectors lie along the axis behind the batch.
- `\sum_{e \in n} g_e (…)` is over the numbers in each token's row of n, `\sum_{e < n}` over all; g has their shares.
- `\sum_{i}` runs over the places along the axes that i stands at; a product of cells is one of numbers.
- `\sum_{B, T}` adds up the first axes, which have these sizes.
- In a line for each t, `x_t` is the part of x along its first axis that is as long as t runs.
- A photo is `[C, H, W]`. `\mathcal{U}^{\mathrm{chw}}_P` and `^{\mathrm{hwc}}` say in which order a patch's numbers lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tracer.record.latex_reader.conv_pool_resize import convolve
from tracer.record.latex_reader.function_grammar import require_word
from tracer.record.latex_reader.functions import WORDS, Subscript, SubscriptPart
from tracer.record.latex_reader.indexing import contract, laid_out, mix_experts, places, put, scan
from tracer.record.latex_reader.lexer import UnreadableLatex
from tracer.record.latex_reader.operators import LAYOUTS, OPERATIONS, RELATIONS, matrix, unfold
from tracer.record.latex_reader.parser import Line, Tree
from tracer.record.latex_reader.rounding_bounds import Perturbations

Value = Callable[[str], np.ndarray]


@dataclass(frozen=True)
class Scope:
    """Values of letters: `value(name)` of tensors and sizes, and each index as whole numbers whose last `axes` axes
    are those that indices run over. `vectors` says that a cell is a row; `moves` perturbs the values of parts."""

    value: Value
    indices: Mapping[str, np.ndarray] = field(default_factory=dict)
    axes: int = 0
    vectors: bool = False
    behind: int = 0
    moves: Perturbations | None = None

    @property
    def exact(self) -> Scope:
        """Copy of the scope without perturbations, for positions, sizes and conditions."""
        return self if self.moves is None else replace(self, moves=None)

    def with_index(self, index: str, numbers: np.ndarray) -> Scope:
        """Return the scope with one more index, which runs over these numbers along an axis of its own, the last."""
        if index in self.indices:
            raise UnreadableLatex(f"the index {index} stands for two things")
        others = {name: index_cells[..., None] for name, index_cells in self.indices.items()}
        ones = (1,) * self.axes
        return replace(self, indices=others | {index: numbers.reshape(*ones, -1)}, axes=self.axes + 1)


def evaluate(line: Line, value: Value, shape: tuple[int, ...], moves: Perturbations | None = None) -> np.ndarray:
    """Return the value of a line, of the shape that is printed beside it; with its parts perturbed if `moves` are
    passed. Raise UnreadableLatex, in one sentence, if it has no value."""
    try:
        with np.errstate(all="ignore"):
            scope = Scope(value, moves=moves)
            if line.since and not np.all(_of(line.since[0], scope.exact) == _of(line.since[1], scope.exact)):
                raise UnreadableLatex("what it is only true since does not hold")
            if line.turns:
                return _with_leading_axes(scan(line, shape, lambda tree: _of(tree, scope)), shape)
            letters = line.cells + line.rows
            runs = shape[-2:-1] if line.rows else shape[len(shape) - len(letters) :]
            if len(runs) != len(letters):
                raise UnreadableLatex(f"it has {len(letters)} indices for {len(shape)} axes")
            for index, size in zip(letters, runs, strict=True):
                scope = scope.with_index(index, np.arange(size))
            cells = _of(line.right, replace(scope, vectors=bool(line.rows)))
            if line.cells:
                cells = np.broadcast_to(cells, np.broadcast_shapes(cells.shape, runs))
            return _with_leading_axes(cells, shape)
    except UnreadableLatex:
        raise
    except ValueError as error:
        raise UnreadableLatex(f"its shapes don't fit: {error}") from None
    except (IndexError, ZeroDivisionError, OverflowError) as error:
        raise UnreadableLatex(f"it has no value: {error}") from None


def _with_leading_axes(cells: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the array with the leading axes that the notation leaves out."""
    while cells.ndim > len(shape) and cells.shape[0] == 1:
        cells = cells[0]
    full_shape = (1,) * (len(shape) - cells.ndim) + cells.shape
    if full_shape[-2:] != shape[-2:] or cells.ndim > len(shape):
        raise UnreadableLatex(f"it gives {list(cells.shape)}, the run {list(shape)}")
    return np.broadcast_to(cells, shape)


def _of(tree: Tree, scope: Scope) -> np.ndarray:
    """Return the value of a tree; its last axes are those of the indices in scope."""
    cells = _evaluate(tree, scope)
    return cells if scope.moves is None else scope.moves(tree, np.asarray(cells), lambda part: _of(part, scope.exact))


def _evaluate(tree: Tree, scope: Scope) -> np.ndarray:
    kind, *rest = tree
    match kind:
        case "name":
            cells = np.asarray(scope.value(rest[0]))
            return cells.reshape(-1, *(1,) * scope.behind) if scope.behind and cells.ndim == 1 else cells
        case "number":
            return np.asarray(rest[0])
        case "index":
            if rest[0] not in scope.indices:
                raise UnreadableLatex(f"{rest[0]} is not a tensor, a size or an index that runs")
            return scope.indices[rest[0]]
        case "cells":
            return _gather(_whole(rest[0], scope), [_of(index, scope.exact) for index in rest[1]], scope.axes)
        case "rows":
            return _rows(*rest, scope)
        case "cases":
            return _cases(rest, scope)
        case "product" if scope.axes and all(any(_indices(factor)) for factor in rest):
            return _of(rest[0], scope) * _of(rest[1], scope)
        case "sum over":
            return _sum_term(*rest, scope)
        case "sum of":
            return _sum_term(rest[0], None, rest[1], scope)
        case "sum of axes":
            cells, sizes = _of(rest[1], scope), [_size(size, scope) for size in rest[0]]
            if list(cells.shape[: len(sizes)]) != sizes:
                raise UnreadableLatex(f"a sum over axes of {sizes} is of {list(cells.shape)}")
            return cells.sum(axis=tuple(range(len(sizes))))
        case "first":
            inner = scope.with_index(rest[0], _extent(rest[0], rest[1], scope))
            cells = _holds(rest[1], inner)
            if not cells.any(axis=-1).all():
                raise UnreadableLatex("it asks for the least of none")
            return cells.argmax(axis=-1)
        case "for all":
            inner = scope.with_index(rest[0], _extent(rest[0], rest[1], scope))
            return _holds(rest[1], inner).all(axis=-1) * 1.0
        case "slice":
            return _slice(*rest, scope)
        case "grid" | "heads" | "concat" | "repeat" | "fold" | "windows" | "unwindow":
            *sizes, inner = rest
            return LAYOUTS[kind](_of(inner, scope), *(_size(size, scope) for size in sizes))
        case "all alike":
            return np.repeat(matrix(_of(rest[0], scope)), _size(rest[1], scope), axis=-2)
        case "unfold":
            return unfold(rest[0], _size(rest[1], scope), _of(rest[2], scope))
        case "swapped":
            left, *sizes = _of(rest[0], scope), *(_size(size, scope) for size in rest[1:])
            if list(left.shape[:2]) != sizes:
                raise UnreadableLatex(f"the axes that change places are {list(left.shape[:2])}, it says {sizes}")
            return left.swapaxes(0, 1)
        case "counting":
            return np.arange(_size(rest[0], scope) + 1)
        case "counting from":
            first, second, last = (_size(subtree, scope) for subtree in rest)
            return np.arange(first, last + (1 if second > first else -1), second - first)
        case "listed":
            return np.array([_size(subtree, scope) for subtree in rest])
        case "iverson":
            return _holds(rest[0], scope) * 1.0
        case "word":
            name, below, operands = rest
            return np.asarray(
                WORDS[require_word(name, WORDS)](_below(below, scope), *(_of(subtree, scope) for subtree in operands))
            )
        case "joined":
            axis = int(_below(rest[0], scope).get("axis", 0)[0])
            return np.concatenate([_of(subtree, scope) for subtree in rest[1:]], axis)
        case "convolve":
            back, below, kernels, x = rest
            return convolve(_below(below, scope), back, _of(kernels, scope), _of(x, scope))
        case "by channel":
            behind = _ranks(rest[0], scope) - 2
            return _of(rest[0], replace(scope, behind=behind))
        case "pick":
            whole = _of(rest[0], scope)
            return whole[places(rest[1], whole, lambda tree: _of(tree, scope.exact))]
        case "put":
            whole, entries, add, values = _of(rest[0], scope), *rest[1:]
            return put(
                whole, places(entries, whole, lambda tree: _of(tree, scope.exact)), bool(add), _of(values, scope)
            )
        case "layout":
            return laid_out(_of(rest[0], scope), *rest[1:], lambda tree: _size(tree, scope))
        case "experts":
            return mix_experts(*rest, lambda tree: _of(tree, scope))
        case "value":
            return rest[0]
        case "named" if rest[1][0] == "-":
            return _by_cell(*rest, scope)
        case "named":
            return contract(*rest, lambda tree: _of(tree, scope))
    return OPERATIONS[kind](*(_of(operand, scope) for operand in rest))


def _sum_term(letters: tuple[str, ...], condition: Tree | None, term: Tree, scope: Scope) -> np.ndarray:
    """Sum a term over the indices for which a relation holds. If no other index runs, the term needs values for these
    only."""
    every, front = ("all", *filter(None, (condition, term))), scope.axes
    for index in letters:
        scope = scope.with_index(index, _extent(index, every, scope))
    if condition is not None and not front:
        indices = np.nonzero(np.broadcast_to(_holds(condition, scope), _runs(scope)))
        places = {
            index: index_cells.reshape(-1)[at]
            for (index, index_cells), at in zip(scope.indices.items(), indices, strict=True)
        }
        scope, condition, letters = replace(scope, indices=places, axes=1), None, letters[:1]
    cells = _of(term, scope)
    cells = cells if condition is None else np.where(_holds(condition, scope), cells, 0.0)
    cells = cells if np.ndim(cells) else np.broadcast_to(cells, _runs(scope))
    return cells.sum(axis=tuple(range(-len(letters), 0)))


def _runs(scope: Scope) -> tuple[int, ...]:
    """Return the lengths of the running indices."""
    return np.broadcast_shapes(*(index.shape for index in scope.indices.values()))


def _by_cell(letters: tuple[str, ...], term: Tree, scope: Scope) -> np.ndarray:
    """Compute `[-x_i]_i`: the cells of a tensor by their indices."""
    if scope.axes:
        raise UnreadableLatex("a tensor is said by its cells inside of another")
    for index in letters:
        scope = scope.with_index(index, _extent(index, term, scope))
    return _of(term, scope)


def _whole(tree: Tree, scope: Scope) -> np.ndarray:
    """Return a whole tensor, from which indices choose cells."""
    return _of(tree, replace(scope, indices={}, axes=0))


def _below(settings: tuple[Tree, ...], scope: Scope) -> Subscript:
    """Return the settings below a word, in numbers."""
    return Subscript(
        SubscriptPart(sign, tuple(float(_of(value, scope.exact)) for value in values), stays)
        for sign, values, stays in settings
    )


def _ranks(tree: Tree, scope: Scope) -> int:
    """Return the largest number of axes of the tensors in a tree."""
    if tree[0] in ("name", "layout"):
        return np.asarray(scope.value(tree[1])).ndim if tree[0] == "name" else len(tree[3])
    return max((_ranks(inner, scope) for inner in _inside(tree)), default=0)


def _size(tree: Tree, scope: Scope) -> int:
    """Return a whole number."""
    cells = _of(tree, scope.exact)
    if cells.ndim or not math.isclose(cells, round(float(cells))):
        raise UnreadableLatex(f"expected a size, got {cells.tolist() if cells.size < 3 else list(cells.shape)}")
    return round(float(cells))


def _gather(whole: np.ndarray, places: list[np.ndarray], axes: int, behind: int = 0) -> np.ndarray:
    """Return the cells of the last axes, but for `behind`, at positions whose last `axes` axes are those of the
    indices."""
    front = whole.shape[: whole.ndim - behind - len(places)]
    inner = whole.shape[len(front) :]
    if whole.ndim < behind + len(places):
        raise UnreadableLatex(f"{len(places)} indices are too many for {list(whole.shape)}")
    places = [place.reshape((1,) * (axes - place.ndim) + place.shape).astype(int) for place in places]
    for place, size in zip(places, inner, strict=False):
        if place.size and not 0 <= place.min() <= place.max() < size:
            raise UnreadableLatex(f"an index runs from {place.min()} to {place.max()} over {size}")
    lead = np.broadcast_shapes(front, *(place.shape[: place.ndim - axes] for place in places))
    whole = np.broadcast_to(whole, lead + inner)
    counted = [np.arange(n).reshape((n,) + (1,) * (len(lead) - axis - 1 + axes)) for axis, n in enumerate(lead)]
    return whole[(*counted, *places)]


def _rows(whole: Tree, numbers: Tree, scope: Scope) -> np.ndarray:
    if scope.axes:
        return _gather(_whole(whole, scope), [_of(numbers, scope.exact)], scope.axes, behind=1)
    tensor, chosen = _of(whole, scope), _of(numbers, scope.exact)
    return _gather(tensor, [chosen], max(chosen.ndim - tensor.ndim + 2, 0), behind=1)


def _slice(whole: Tree, axis: str, start: Tree | None, stop: Tree | None, scope: Scope) -> np.ndarray:
    cells = matrix(_of(whole, scope))
    length = cells.shape[-2 if axis == "rows" else -1]
    first = 0 if start is None else _size(start, scope)
    last = length if stop is None else _size(stop, scope)
    first, last = (place + length if place < 0 else place for place in (first, last))
    if not 0 <= first <= last <= length:
        raise UnreadableLatex(f"{axis} {first} to {last} of {length}")
    return cells[..., first:last, :] if axis == "rows" else cells[..., first:last]


def _cases(rows: list[Tree], scope: Scope) -> np.ndarray:
    """Return the value of the row whose condition holds."""
    chosen, open_cells = np.asarray(np.nan), np.asarray(True)
    for value, condition in rows:
        inner, holds = scope, np.asarray(True)
        if condition:
            new = sorted({index for test in condition for index in _indices(test)} - scope.indices.keys())
            if len(new) > 1 or (new and len(condition) > 1):
                raise UnreadableLatex(f"the indices {' and '.join(new)} are both new in one condition")
            if new:
                trying = scope.with_index(new[0], _extent(new[0], condition[0], scope))
                holds_here = _holds(condition[0], trying)
                holds = holds_here.any(axis=-1)
                inner = replace(scope, indices={**scope.indices, new[0]: holds_here.argmax(axis=-1)})
            else:
                holds = np.logical_or.reduce(np.broadcast_arrays(*(_holds(test, scope) for test in condition)))
        cells = _of(value, inner)
        if scope.vectors and holds.ndim:
            holds = holds[..., None]
        if condition and (holds & ~open_cells).any():
            raise UnreadableLatex("two of its cases hold at once")
        chosen, open_cells = np.where(open_cells & holds, cells, chosen), open_cells & ~holds
    if open_cells.any():
        raise UnreadableLatex("none of its cases holds somewhere")
    return chosen


def _holds(condition: Tree, scope: Scope) -> np.ndarray:
    sign, left, right = condition
    return RELATIONS[sign](_of(left, scope.exact), _of(right, scope.exact))


def _indices(tree: Tree) -> Iterator[str]:
    """Yield the free indices of a tree."""
    if tree[0] == "named":
        return
    if tree[0] == "index":
        yield tree[1]
    for inner in _inside(tree):
        yield from _indices(inner)


def _inside(tree: Tree) -> Iterator[Tree]:
    """Yield the children of a tree."""
    for inner in tree[1:]:
        if isinstance(inner, tuple) and inner:
            yield from (inner,) if isinstance(inner[0], str) else filter(None, inner)


def _extent(index: str, tree: Tree, scope: Scope) -> np.ndarray:
    """Return the numbers that an index runs over: the positions along the axes that it indexes; without any, those up
    to the largest of the others."""
    first, last = 0, None
    for size, shift in _stands(index, tree, scope):
        first, last = max(first, -shift), size - shift if last is None else min(last, size - shift)
    if last is None:
        last = 1 + max(
            (int(index_cells.max()) for index_cells in scope.indices.values() if index_cells.size), default=0
        )
    return np.arange(first, last)


def _stands(index: str, tree: Tree, scope: Scope) -> Iterator[tuple[int, int]]:
    """Yield the lengths of the axes that an index is used at, each with the number that is added to it there."""
    places = tree[2] if tree[0] == "cells" else (tree[2],) if tree[0] == "rows" else ()
    if any(index in _indices(place) for place in places):
        sizes = _whole(tree[1], scope).shape
        sizes = sizes[-2:-1] if tree[0] == "rows" else sizes[-len(places) :]
        for place, size in zip(places, sizes, strict=True):
            if place == ("index", index):
                yield size, 0
            elif place[0] == "+" and place[1] == ("index", index) and len(place) == 3:
                yield size, round(float(_of(place[2], scope)))
    for inner in _inside(tree):
        yield from _stands(index, inner, scope)
