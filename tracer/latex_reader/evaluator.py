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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

import numpy as np

from tracer.latex_reader.functions import (
    WORDS,
    Subscript,
    SubscriptPart,
    contract,
    convolve,
    erf,
    laid_out,
    mix_experts,
    places,
    put,
    scan,
    softmax,
)
from tracer.latex_reader.parser import Line, Tree, Undefined, UnreadableLatex, require_word
from tracer.utils.errors import quote

# Meaning of names in printed lines, and the deviation of printed values from those that ran.

INFINITY_THRESHOLD = 1e30
"""Numbers beyond it stand for infinities: some masks have the lowest one of float32 for -∞."""
LEAST_FILL = 1e4
"""Size of the least number that stands for an infinity in a mask."""


def names(steps: Iterable) -> dict[str, list[str]]:
    """Return the referents of each printed name of a tensor, exactly one if the line is sound: `"step logits"`, `"input
    image"`, `"parameter head.weight"`, with `.T` if transposed."""
    operands: dict[str, dict[str, None]] = {}
    steps = list(steps)
    for step in steps:
        operands.setdefault(step.symbol, {})[f"step {step.id}"] = None
    for name in chain.from_iterable(step.names for step in steps):
        operands.setdefault(name.symbol, {})[name.of + ".T" * name.transposed] = None
    return {symbol: list(things) for symbol, things in operands.items()}


class MissingOperand(UnreadableLatex):
    """An operand of a printed line that is not available."""


class Operands:
    """Values of names: `operands(name)`.

    `table` says by which key each name stands, `sizes` has the values of the sizes, and `tensor(key)` an array, or None
    where it is not at hand. `computed` holds what printed lines gave for tensors that were never held, by their names.
    """

    def __init__(
        self, table: Mapping[str, str], sizes: Mapping[str, int], tensor: Callable[[str], np.ndarray | None]
    ) -> None:
        self.names = frozenset(table) | frozenset(sizes)
        self.computed: dict[str, np.ndarray] = {}
        self._table, self._sizes, self._tensor = table, sizes, tensor

    def __call__(self, name: str) -> np.ndarray:
        if name in self._sizes:
            return np.asarray(self._sizes[name])
        if name in self.computed:
            return self.computed[name]
        key = self._table[name]
        array = self._tensor(key.removesuffix(".T"))
        if array is None:
            raise MissingOperand(f"{quote(key)} was not kept")
        array = array.astype(np.int64) if array.dtype.kind in "iu" else array  # whole numbers of few bits wrap
        return array.swapaxes(-2, -1) if key.endswith(".T") else array


def zero_empty_rows(computed: np.ndarray, ran: np.ndarray, line: Line, operands: Operands) -> np.ndarray:
    """Return the value of a line, with 0 for queries that may attend to nothing: a kernel that held no softmax returns
    0 for them, where a softmax of no numbers is undefined."""
    empty = np.isnan(computed) & (ran == 0)
    return np.where(empty, 0, computed) if empty.any() and names_in(line.right) & operands.computed.keys() else computed


def names_in(tree) -> set[str]:
    """Return the names in a tree, or in a printed line, its condition and its start included."""
    if not isinstance(tree, tuple):
        return set()
    own = {tree[1]} if tree[:1] == ("name",) else set()
    return own.union(*map(names_in, tree))


def deviation(computed: np.ndarray, ran: np.ndarray, lowest: bool = False) -> np.ndarray:
    """Return |computed - ran| of each cell, as a share of the largest |ran|; equal infinities count 0, and so does
    NaN in both. A number beyond `fill_threshold` is compared with itself, and no other with it; with `lowest`, the
    lowest one of another dtype counts as the same. Whole numbers have no infinity: a stand-in for one is not
    compared."""
    whole = ran.dtype.kind in "iu"
    if not (np.iscomplexobj(computed) or np.iscomplexobj(ran)):
        computed, ran = computed.astype(float), ran.astype(float)
    same, size = (computed == ran) | (np.isnan(computed) & np.isnan(ran)), np.abs(ran)
    if lowest and not np.iscomplexobj(ran):
        same |= (computed < -INFINITY_THRESHOLD) & (ran < -INFINITY_THRESHOLD)
    same |= whole & ~np.isfinite(computed)
    threshold = fill_threshold(ran)
    largest = size[size <= threshold].max(initial=0)
    with np.errstate(all="ignore"):
        scale = np.where((size > threshold) & np.isfinite(size), size, largest)
        return np.where(same, 0, np.abs(computed - ran) / scale)


def fill_threshold(values: np.ndarray) -> float:
    """Return the size beyond which numbers stand for infinities: `INFINITY_THRESHOLD`, or less where a mask has a large
    negative number for -∞, such as -10⁹. All others are nothing beside it, a thousandth at most."""
    threshold = INFINITY_THRESHOLD
    while not (np.iscomplexobj(values) or values.min(initial=0) > -LEAST_FILL):
        values = values[np.abs(values) <= threshold]
        lowest = values.min(initial=0)
        others = np.abs(values[values > lowest / 10])
        if lowest > -LEAST_FILL or not others.size or others.max() > -lowest / 1000:
            break
        threshold = float(-lowest / 10)
    return threshold


def shares(computed: np.ndarray, ran: np.ndarray) -> np.ndarray:
    """Return `deviation` where a few large cells hide no others: of numbers a hundred thousand times as large as the
    smallest tenth, such as those of a mask, each is compared with itself, and all others with one another."""
    size = np.abs(ran.astype(complex if np.iscomplexobj(ran) else float))
    finite = size[(size > 0) & (size <= INFINITY_THRESHOLD)]
    edge = INFINITY_THRESHOLD if not finite.size else 1e5 * np.quantile(finite, 0.1)
    far = (size > edge) & (size <= INFINITY_THRESHOLD)
    if not far.any():
        return deviation(computed, ran)
    near = deviation(np.where(far, 0, computed), np.where(far, 0, ran))
    with np.errstate(all="ignore"):
        same = (computed == ran) | ((ran.dtype.kind in "iu") & ~np.isfinite(computed))
        own = np.where(same, 0, np.abs(computed - ran) / size)
    return np.where(far, np.maximum(own, 0), near)


# Functions of the words and signs of printed equations on arrays, in NumPy and `math` alone.


def matrix(x: np.ndarray) -> np.ndarray:
    """Return a vector as one row."""
    return x[None] if x.ndim == 1 else x


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Multiply matrices. A vector on the right is a column if each row on the left is as long, else a row."""
    if not left.ndim or not right.ndim:
        return left * right
    column = left.ndim > 1 and right.ndim == 1 and left.shape[-1] == len(right) > 1
    return left @ right if column else matrix(left) @ matrix(right)


def _join(axis: int, *tensors: np.ndarray) -> np.ndarray:
    matrices = list(map(matrix, tensors))
    lead = np.broadcast_shapes(*(x.shape[:-2] for x in matrices))
    return np.concatenate([np.broadcast_to(x, lead + x.shape[-2:]) for x in matrices], axis=axis)


def _power(x: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    if x.ndim and exponent.ndim == 0 and exponent != 2:
        raise UnreadableLatex(f"a tensor to the power of {exponent:g}: only squares of its cells are known")
    return x**exponent


def _rotate_half(x: np.ndarray) -> np.ndarray:
    half = x.shape[-1] // 2
    return np.concatenate([-x[..., half:], x[..., :half]], axis=-1)


def _unroll_kernels(kernels: np.ndarray) -> np.ndarray:
    """Return kernels `[D, C, P, P]` as the columns of a matrix, channel after channel."""
    if kernels.ndim != 4:
        raise Undefined(f"expected kernels [D, C, P, P], got {list(kernels.shape)}")
    return kernels.reshape(len(kernels), -1).T


def unfold(order: str, side: int, image: np.ndarray) -> np.ndarray:
    """Return the patches of photos `[…, C, H, W]`, row by row; the numbers of each in the printed order."""
    if sorted(order) != ["c", "h", "w"] or image.ndim < 3:
        raise UnreadableLatex(f"expected an order of c, h and w and a photo, got {order} and {list(image.shape)}")
    *lead, channels, height, width = image.shape
    cut = image.reshape(*lead, channels, height // side, side, width // side, side)
    inside = {"c": -5, "h": -3, "w": -1}
    front = list(range(len(lead)))
    axes = [axis + cut.ndim for axis in (-4, -2, *(inside[letter] for letter in order))]
    return cut.transpose(*front, *axes).reshape(*lead, -1, channels * side * side)


def _fold(cells: np.ndarray, side: int) -> np.ndarray:
    """Merge a grid of cells `[…, n, m, P²K]`, each P rows of P pixels of K numbers, into one picture `[…, nP, mP,
    K]`."""
    *lead, rows, columns, numbers = cells.shape
    cells = cells.reshape(*lead, rows, columns, side, side, numbers // side**2)
    return cells.swapaxes(-4, -3).reshape(*lead, rows * side, columns * side, -1)


def _heads(x: np.ndarray, count: int) -> np.ndarray:
    return x.reshape(*x.shape[:-1], count, x.shape[-1] // count).swapaxes(-3, -2)


def _concat(x: np.ndarray, count: int) -> np.ndarray:
    if x.ndim < 3 or x.shape[-3] != count:
        raise Undefined(f"{count} heads were to be joined, got {list(x.shape)}")
    return x.swapaxes(-3, -2).reshape(*x.shape[:-3], x.shape[-2], -1)


def _repeat_heads(x: np.ndarray, count: int) -> np.ndarray:
    if x.ndim < 3 or count % x.shape[-3]:
        raise Undefined(f"{list(x.shape)} can't become {count} heads")
    return np.repeat(x, count // x.shape[-3], axis=-3)


def _windows(grid: np.ndarray, side: int) -> np.ndarray:
    """Cut grids `[B, n, m, D]` into squares, row by row, grid after grid."""
    if grid.ndim != 4 or grid.shape[1] % side or grid.shape[2] % side:
        raise Undefined(f"{list(grid.shape)} has no windows of {side} by {side}")
    starts = [(row, column) for row in range(0, grid.shape[1], side) for column in range(0, grid.shape[2], side)]
    cut = [grid[:, row : row + side, column : column + side] for row, column in starts]
    return np.stack(cut, axis=1).reshape(-1, side * side, grid.shape[-1])


def _merge_windows(windows: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Merge such squares into their grids."""
    if windows.ndim != 3 or math.isqrt(windows.shape[1]) ** 2 != windows.shape[1]:
        raise Undefined(f"{list(windows.shape)} are not windows")
    side = math.isqrt(windows.shape[1])
    grids = np.empty((windows[..., 0].size // (rows * columns), rows, columns, windows.shape[-1]))
    squares = iter(windows.reshape(-1, side, side, windows.shape[-1]))
    for grid in grids:
        for row in range(0, rows, side):
            for column in range(0, columns, side):
                grid[row : row + side, column : column + side] = next(squares)
    return grids


LAYOUTS = {
    "grid": lambda x, rows, columns: x.reshape(*x.shape[:-2], rows, columns, x.shape[-1]),
    "heads": _heads,
    "concat": _concat,
    "repeat": _repeat_heads,
    "fold": _fold,
    "windows": _windows,
    "unwindow": _merge_windows,
}
"""What moves numbers, with the sizes that stand below its word."""

SAME_IN_NUMPY = "sin cos tan tanh sinh cosh arctan log exp floor ceil abs".split()
"""Functions that NumPy has under the same name."""
OPERATIONS = {name: getattr(np, name) for name in SAME_IN_NUMPY} | {
    "+": lambda *terms: sum(terms[1:], start=terms[0]),
    "-": np.negative,
    "product": _product,
    "times": np.multiply,
    "over": np.divide,
    "root": np.sqrt,
    "power": _power,
    "cell power": lambda x, exponent: x**exponent,
    "remainder": lambda x, y: x - y * np.floor(x / y),
    "and": lambda x, y: ((x != 0) & (y != 0)) * 1.0,
    "or": lambda x, y: ((x != 0) | (y != 0)) * 1.0,
    "either": lambda x, y: ((x != 0) ^ (y != 0)) * 1.0,
    "not": lambda x: (x == 0) * 1.0,
    "dot": lambda x, y: (x * y).sum(axis=-1),
    "transposed": lambda x: matrix(x).swapaxes(-2, -1),
    "mean": lambda x: x.mean(axis=-1, keepdims=True),
    "variance": lambda x: x.var(axis=-1, keepdims=True),
    "norm": lambda x: np.sqrt((x * x).sum(axis=-1, keepdims=True)),
    "below": partial(_join, -2),
    "beside": partial(_join, -1),
    "min": np.minimum,
    "max": np.maximum,
    "softmax": softmax,
    "ReLU": lambda x: np.maximum(x, 0),
    "SiLU": lambda x: x / (1 + np.exp(-x)),
    "GELU": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
    "GELU by tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "unroll": _unroll_kernels,
    r"rotate\_half": _rotate_half,
    r"rotate\_every\_two": lambda x: np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape),
}
"""What computes, from the values of its operands."""

RELATIONS = {"=": np.equal, "<": np.less, ">": np.greater, "≤": np.less_equal, "≥": np.greater_equal, "≠": np.not_equal}


# Rounding bounds of each cell of a printed line, from evaluations with every part of it slightly perturbed.
#
# Each part of a line is off by about one rounding of its own, and each operand by what a sum over it loses. So a line
# is evaluated with each of them moved by about `TIMES` roundings, a few times; how far a cell moves is how far it may
# be off. A mask of -10⁹ moves by much, and nothing beside it.

DRAWS = 4
UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""How much a number may lose as it is rounded to a dtype, as a share of it."""
SMALLEST_POSITIVES = {"float64": 2.0**-1074, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
"""The least positive number of a dtype."""
TIMES = {"float64": 256, "float32": 256, "float16": 8, "bfloat16": 8}
"""By how many roundings parts are moved: kernels add up in float32, and round to narrower dtypes once."""
CANCELLING_FUNCTIONS = ("GELU", "GELU by tanh")
"""What is off by a share of its operand: where it is next to 0, it is a difference of two numbers next to 1."""


class Perturbations:
    """Perturbations of the values of parts, each cell on its own: normally distributed, since two equal ones would
    cancel."""

    def __init__(self, dtype: str, draw: int) -> None:
        self._size = UNITS[dtype] * TIMES[dtype]
        self._draw = np.random.default_rng(draw)

    def __call__(self, tree: Tree, output: np.ndarray, operand: Callable[[Tree], np.ndarray]) -> np.ndarray:
        """Return the value of a tree, perturbed; numbers without axes and whole ones stay. `operand` evaluates a part
        of it."""
        if not output.ndim or output.dtype.kind not in "fc":
            return output
        scale = np.abs(operand(tree[1])) / 2 if tree[0] in CANCELLING_FUNCTIONS else output
        return output + scale * (self._size * self._draw.standard_normal(output.shape))


def rounding_bounds(evaluate: Callable[[Perturbations], np.ndarray], computed: np.ndarray, dtype: str) -> np.ndarray:
    """Return the rounding bound of each cell of a line. `evaluate` returns its value with parts perturbed, `computed`
    is that without; a cell without a bound may be off by any number."""
    squares = np.zeros(computed.shape)
    for draw in range(DRAWS):
        with np.errstate(all="ignore"):
            squares += np.abs(evaluate(Perturbations(dtype, draw)) - computed) ** 2
    bound = np.sqrt(squares) + TIMES[dtype] * SMALLEST_POSITIVES[dtype]
    return np.where(np.isnan(bound), np.inf, bound)


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
    passed. Raise Undefined, in one sentence, if it has no value, and UnreadableLatex if it can't be evaluated."""
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
                raise Undefined(f"it has {len(letters)} indices for {len(shape)} axes")
            for index, size in zip(letters, runs, strict=True):
                scope = scope.with_index(index, np.arange(size))
            cells = _of(line.right, replace(scope, vectors=bool(line.rows)))
            if line.cells:
                cells = np.broadcast_to(cells, np.broadcast_shapes(cells.shape, runs))
            return _with_leading_axes(cells, shape)
    except UnreadableLatex:
        raise
    except ValueError as error:
        raise Undefined(f"its shapes don't fit: {error}") from None
    except (IndexError, ZeroDivisionError, OverflowError) as error:
        raise Undefined(f"it has no value: {error}") from None


def _with_leading_axes(cells: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the array with the leading axes that the notation leaves out."""
    while cells.ndim > len(shape) and cells.shape[0] == 1:
        cells = cells[0]
    full_shape = (1,) * (len(shape) - cells.ndim) + cells.shape
    if full_shape[-2:] != shape[-2:] or cells.ndim > len(shape):
        raise Undefined(f"it gives {list(cells.shape)}, the run {list(shape)}")
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
                raise Undefined(f"a sum over axes of {sizes} is of {list(cells.shape)}")
            return cells.sum(axis=tuple(range(len(sizes))))
        case "first":
            inner = scope.with_index(rest[0], _extent(rest[0], rest[1], scope))
            cells = _holds(rest[1], inner)
            if not cells.any(axis=-1).all():
                raise Undefined("it asks for the least of none")
            return cells.argmax(axis=-1)
        case "for all":
            inner = scope.with_index(rest[0], _extent(rest[0], rest[1], scope))
            return _holds(rest[1], inner).all(axis=-1) * 1.0
        case "slice":
            return _slice(*rest, scope)
        case _ if kind in LAYOUTS:
            *sizes, inner = rest
            return LAYOUTS[kind](_of(inner, scope), *(_size(size, scope) for size in sizes))
        case "all alike":
            return np.repeat(matrix(_of(rest[0], scope)), _size(rest[1], scope), axis=-2)
        case "unfold":
            return unfold(rest[0], _size(rest[1], scope), _of(rest[2], scope))
        case "swapped":
            left, *sizes = _of(rest[0], scope), *(_size(size, scope) for size in rest[1:])
            if list(left.shape[:2]) != sizes:
                raise Undefined(f"the axes that change places are {list(left.shape[:2])}, it says {sizes}")
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
        raise Undefined(f"expected a size, got {cells.tolist() if cells.size < 3 else list(cells.shape)}")
    return round(float(cells))


def _gather(whole: np.ndarray, places: list[np.ndarray], axes: int, behind: int = 0) -> np.ndarray:
    """Return the cells of the last axes, but for `behind`, at positions whose last `axes` axes are those of the
    indices."""
    front = whole.shape[: whole.ndim - behind - len(places)]
    inner = whole.shape[len(front) :]
    if whole.ndim < behind + len(places):
        raise Undefined(f"{len(places)} indices are too many for {list(whole.shape)}")
    places = [place.reshape((1,) * (axes - place.ndim) + place.shape).astype(int) for place in places]
    for place, size in zip(places, inner, strict=False):
        if place.size and not 0 <= place.min() <= place.max() < size:
            raise Undefined(f"an index runs from {place.min()} to {place.max()} over {size}")
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
        raise Undefined(f"{axis} {first} to {last} of {length}")
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
            raise Undefined("two of its cases hold at once")
        chosen, open_cells = np.where(open_cells & holds, cells, chosen), open_cells & ~holds
    if open_cells.any():
        raise Undefined("none of its cases holds somewhere")
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
