"""What each printed function computes, with NumPy alone."""

from __future__ import annotations

import math
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np

from tracer.latex_reader.parser import Tree, Undefined, UnreadableLatex

# Convolution, pooling, im2col and resizing of printed equations, in NumPy alone.


def _ints(numbers) -> list[int]:
    return [int(n) for n in numbers]


def convolve(below, back: bool, kernels: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Convolve `[B, C, …]` or `[C, …]` with kernels `[K, C/groups, …]`; with `back`, transposed, with `[C, K/groups,
    …]`."""
    count = kernels.ndim - 2
    if x.ndim == count + 1:
        return convolve(below, back, kernels, x[None])[0]
    if x.ndim != kernels.ndim:
        raise Undefined(f"kernels {list(kernels.shape)} don't fit {list(x.shape)}")
    groups, dilation = int(below.get("groups", 1)[0]), _ints(below.get("dilation", 1, count))
    parts = np.split(x, groups, axis=1)
    weights = np.split(kernels, groups, axis=0)
    run = _spread if back else _correlate
    return np.concatenate([run(below, w, part, dilation) for w, part in zip(weights, parts, strict=True)], axis=1)


def _correlate(below, w: np.ndarray, x: np.ndarray, dilation: list[int]) -> np.ndarray:
    count = w.ndim - 2
    both = below.get("pad", 0, count)
    before = _ints(below.get("before", 0, count) if below.has("before") else both)
    after = _ints(below.get("after", 0, count) if below.has("after") else both)
    x = np.pad(x, [(0, 0), (0, 0), *zip(before, after, strict=True)])
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, w.shape[2:], strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(x, reach, axis=tuple(range(2, x.ndim)))
    steps = tuple(slice(None, None, s) for s in _ints(below.get(r"\downarrow", 1, count)))
    windows = windows[(slice(None), slice(None), *steps, *(slice(None, None, d) for d in dilation))]
    inside = list(range(2 + count, 2 + 2 * count))
    return np.moveaxis(np.tensordot(windows, w, axes=([1, *inside], [1, *range(2, 2 + count)])), -1, 1)


def _spread(below, w: np.ndarray, x: np.ndarray, dilation: list[int]) -> np.ndarray:
    """Convolve x, with zeros between and around its numbers, with the flipped kernels."""
    count = w.ndim - 2
    stride, padding, extra = (
        _ints(below.get(sign, usual, count)) for sign, usual in ((r"\uparrow", 1), ("pad", 0), ("extra", 0))
    )
    wide = np.zeros((*x.shape[:2], *((n - 1) * s + 1 for n, s in zip(x.shape[2:], stride, strict=True))), dtype=x.dtype)
    wide[(..., *(slice(None, None, s) for s in stride))] = x
    reach = [d * (k - 1) for d, k in zip(dilation, w.shape[2:], strict=True)]
    around = [(r, r + e) for r, e in zip(reach, extra, strict=True)]
    wide = np.pad(wide, [(0, 0), (0, 0), *around])
    flipped = np.flip(w, tuple(range(2, w.ndim))).swapaxes(0, 1)
    windows = np.lib.stride_tricks.sliding_window_view(wide, [r + 1 for r in reach], axis=tuple(range(2, x.ndim)))
    windows = windows[(..., *(slice(None, None, d) for d in dilation))]
    inside = list(range(2 + count, 2 + 2 * count))
    spread = np.moveaxis(np.tensordot(windows, flipped, axes=([1, *inside], [1, *range(2, 2 + count)])), -1, 1)
    return spread[
        (slice(None), slice(None), *(slice(p, n - p) for p, n in zip(padding, spread.shape[2:], strict=True)))
    ]


def _pool(largest: bool, below, x: np.ndarray) -> np.ndarray:
    if below.has(r"\to"):
        return _adaptive(below.get(r"\to", 1, len(next(s.numbers for s in below if s.sign == r"\to"))), largest, x)
    window = _ints(below.plain[0])
    count = len(window)
    stride = _ints(below.get(r"\downarrow", 1, count)) if below.has(r"\downarrow") else window
    padding, dilation = _ints(below.get("pad", 0, count)), _ints(below.get("dilation", 1, count))
    sizes = x.shape[x.ndim - count :]
    pooled = []
    for n, k, s, p, d in zip(sizes, window, stride, padding, dilation, strict=True):
        starts = range(-p, n + p - d * (k - 1), s)
        if below.has("ceil"):
            starts = range(-p, n, s)
            while len(starts) > 1 and starts[-2] + d * (k - 1) >= n + p - 1:
                starts = starts[:-1]
        pooled.append([[start + d * i for i in range(k)] for start in starts])
    result = np.empty((*x.shape[: x.ndim - count], *map(len, pooled)))
    for cell in product(*(range(len(axis)) for axis in pooled)):
        places = [axis[i] for axis, i in zip(pooled, cell, strict=True)]
        inside = [[i for i in axis if 0 <= i < n] for axis, n in zip(places, sizes, strict=True)]
        numbers = x[(..., *np.ix_(*inside))].reshape(*x.shape[: x.ndim - count], -1)
        if largest:
            result[(..., *cell)] = numbers.max(axis=-1)
            continue
        counted = (
            inside
            if below.has("inside")
            else [[i for i in axis if i < n + p] for axis, n, p in zip(places, sizes, padding, strict=True)]
        )
        usual = np.prod([len(axis) for axis in counted])
        result[(..., *cell)] = numbers.sum(axis=-1) / below.get("by", usual)[0]
    return result


def _adaptive(sizes, largest: bool, x: np.ndarray) -> np.ndarray:
    for axis, m in zip(range(x.ndim - len(sizes), x.ndim), _ints(sizes), strict=True):
        n, rows = x.shape[axis], []
        for i in range(m):
            part = np.take(x, range(i * n // m, -(-(i + 1) * n // m)), axis)
            rows.append(part.max(axis=axis) if largest else part.mean(axis=axis))
        x = np.stack(rows, axis)
    return x


def _resize(below, x: np.ndarray) -> np.ndarray:
    sizes = _ints(below.plain[0])
    steps = below.get("step", 0, len(sizes))
    for axis, m, step in zip(range(x.ndim - len(sizes), x.ndim), sizes, steps, strict=True):
        x = np.moveaxis(_resize_row(below, np.moveaxis(x, axis, -1), m, step), -1, axis)
    return x


def _resize_row(below, x: np.ndarray, m: int, step: float) -> np.ndarray:
    n = x.shape[-1]
    ratio, weights = step or n / m, []
    for i in range(m):
        if below.has("nearest") or below.has("exact"):
            weights.append(x[..., min(int((i + (0.5 if below.has("exact") else 0)) * ratio), n - 1)])
            continue
        at = i * (n - 1) / max(m - 1, 1) if below.has("corners") else (i + 0.5) * ratio - 0.5
        at = max(at, 0.0) if below.has("linear") else at
        first = int(np.floor(at))
        t = at - first
        if below.has("linear"):
            shares = {0: 1 - t, 1: t}
        else:
            a = -0.75
            shares = {
                -1: a * ((t + 1) ** 3 - 5 * (t + 1) ** 2 + 8 * (t + 1) - 4),
                0: (a + 2) * t**3 - (a + 3) * t**2 + 1,
                1: (a + 2) * (1 - t) ** 3 - (a + 3) * (1 - t) ** 2 + 1,
                2: a * ((2 - t) ** 3 - 5 * (2 - t) ** 2 + 8 * (2 - t) - 4),
            }
        weights.append(sum(x[..., min(max(first + k, 0), n - 1)] * share for k, share in shares.items()))
    return np.stack(weights, -1)


def _columns(below, x: np.ndarray) -> np.ndarray:
    """Return each window of a picture as a column, channel after channel (im2col)."""
    down, right = _ints(below.get("pad", 0, 2))
    wide = np.pad(x, [(0, 0)] * (x.ndim - 2) + [(down, down), (right, right)])
    taps = [wide[..., rows, columns] for rows, columns in _under(below, *x.shape[-2:])]
    stacked = np.stack([tap.reshape(*tap.shape[:-2], -1) for tap in taps], axis=-2)
    return stacked.reshape(*x.shape[:-3], -1, stacked.shape[-1])


def _fold_columns(below, x: np.ndarray) -> np.ndarray:
    """Return the picture whose windows are these columns (col2im); overlaps are added up."""
    height, width = _ints(below.get(r"\to", 1, 2))
    down, right = _ints(below.get("pad", 0, 2))
    under = _under(below, height, width)
    parts = x.reshape(*x.shape[:-2], -1, len(under), x.shape[-1])
    wide = np.zeros((*parts.shape[:-2], height + 2 * down, width + 2 * right), dtype=x.dtype)
    for number, (rows, columns) in enumerate(under):
        where = wide[..., rows, columns]
        where += parts[..., number, :].reshape(where.shape)
    return wide[..., down : down + height, right : right + width]


def _under(below, height: int, width: int) -> list[tuple[slice, slice]]:
    """Return the rows and the columns of a padded picture that each number of a window lies on, window by window."""
    window = _ints(next(numbers for numbers in below.plain))
    steps, pads = _ints(below.get(r"\downarrow", 1, 2)), _ints(below.get("pad", 0, 2))
    wide, sides = _ints(below.get("dilation", 1, 2)), (height + 2 * pads[0], width + 2 * pads[1])
    lasts = [side - d * (k - 1) for side, d, k in zip(sides, wide, window, strict=True)]
    return [
        (slice(i * wide[0], i * wide[0] + lasts[0], steps[0]), slice(j * wide[1], j * wide[1] + lasts[1], steps[1]))
        for i in range(window[0])
        for j in range(window[1])
    ]


# Indexing, layouts, sums with named axes, gather and scatter of printed equations, in NumPy alone.


def places(entries: tuple[Tree, ...], x: np.ndarray, value) -> tuple:
    r"""Return the index of cells of x: an entry for each axis, whole axes for `\ldots`. `value(tree)` evaluates."""
    indices: list = []
    axes, rest_at = 0, None
    for kind, *rest in entries:
        if kind == "rest":
            rest_at = len(indices)
            indices.append(Ellipsis)
            continue
        if kind == "mask":
            mask = value(("iverson", *rest)) != 0
            axes += mask.ndim
            indices.extend(np.nonzero(mask))
            continue
        axes += 1
        if kind == "span":
            indices.append(slice(*(None if entry is None else int(value(entry)) for entry in rest)))
            continue
        place, size = value(rest[0]).astype(int), x.shape[axes - 1] if rest_at is None and axes <= x.ndim else None
        if size is not None and place.size and not -size <= place.min() <= place.max() < size:
            raise Undefined(f"a place from {place.min()} to {place.max()} of {size}")
        indices.append(place)
    if axes > x.ndim or (axes < x.ndim and rest_at is None):
        raise Undefined(f"{axes} places for the {x.ndim} axes of {list(x.shape)}")
    return tuple(indices)


def put(x: np.ndarray, where: tuple, add: bool, values: np.ndarray) -> np.ndarray:
    result = x.astype(np.result_type(x, values)) if not np.issubdtype(x.dtype, np.integer) else x.copy()
    if add:
        np.add.at(result, where, values)
    else:
        result[where] = values
    return result


def laid_out(x: np.ndarray, left, right, value) -> np.ndarray:
    """Split axes into atoms, permute and merge these; repeat atoms that only the right side has."""
    sizes = {atom: int(value(atom[0])) for axis in (*left, *right) for atom in axis}
    real = [[atom for atom in axis if atom[0] != ("number", 1.0)] for axis in left]
    sizes_of_axes = [math.prod(sizes[atom] for atom in axis) for axis in real]
    if sizes_of_axes != list(x.shape):
        raise Undefined(f"it lays out {sizes_of_axes}, the tensor is {list(x.shape)}")
    have = [atom for axis in real for atom in axis]
    want = [atom for axis in right for atom in axis if atom[0] != ("number", 1.0)]
    if len(set(have)) < len(have) or len(set(want)) < len(want):
        raise UnreadableLatex("an axis of a layout stands there twice")
    if any(sizes[atom] != 1 for atom in have if atom not in want):
        raise Undefined("an axis of a layout is lost")
    cut = x.reshape([sizes[atom] for atom in have])
    cut = cut[tuple(0 if atom not in want else slice(None) for atom in have)]
    have = [atom for atom in have if atom in want]
    new = [atom for atom in want if atom not in have]
    cut = np.broadcast_to(cut, [sizes[atom] for atom in new] + list(cut.shape))
    cut = cut.transpose([[*new, *have].index(atom) for atom in want])
    return cut.reshape([math.prod(sizes[atom] for atom in axis) for axis in right])


def contract(letters: tuple[str, ...], tree: Tree, value) -> np.ndarray:
    """Compute `[Σ_k A_ik B_kj]_ij`: products of tensors with indices, summed over those not on the outside."""
    below = ()
    if tree[0] == "sum of":
        _, below, tree = tree
    factors = []
    while tree[0] == "product":
        factors.insert(0, tree[2])
        tree = tree[1]
    factors.insert(0, tree)
    operands, axes, codes = [], [], {}
    for factor in factors:
        indices = factor[2] if factor[0] == "cells" else ()
        if any(index[0] != "index" for index in indices):
            raise UnreadableLatex("expected an index for each axis")
        operands.append(value(factor[1] if factor[0] == "cells" else factor))
        axes.append([codes.setdefault(index[1], len(codes)) for index in indices])
        if len(axes[-1]) != operands[-1].ndim:
            raise Undefined(f"{len(axes[-1])} indices for {operands[-1].ndim} axes")
    if set(below) | set(letters) != set(codes) or set(below) & set(letters):
        raise UnreadableLatex("the indices of a sum are not those of its terms")
    pairs = [names for operand, axis in zip(operands, axes, strict=True) for names in (operand, axis)]
    return np.einsum(*pairs, [codes[letter] for letter in letters])


def mix_experts(letter: str, numbers: Tree, shares: Tree, term: Tree, of) -> np.ndarray:
    """Sum the experts of each token's row of `numbers`: the term of an expert over all tokens, times the token's
    share."""
    chosen, gates, mixed = of(numbers), of(shares), 0
    for number in np.unique(chosen):
        output = of(_put_in(term, ("index", letter), ("number", float(number))))
        share = np.where(chosen == number, gates, 0).sum(axis=-1)
        mixed = mixed + output * share.reshape(*output.shape[:-1], 1)
    return mixed


def _put_in(tree, old: Tree, new: Tree):
    """Replace an index in a tree by another tree."""
    if tree == old:
        return new
    return tuple(_put_in(inner, old, new) for inner in tree) if isinstance(tree, tuple) else tree


def scan(line, shape: tuple[int, ...], of) -> np.ndarray:
    """Evaluate a recurrence along the first axis as long as its iterations. `x_{t-1}` is the previous iteration's
    value, of the line itself or of another, and in the first iteration the start; backwards, `x_{t+1}`."""
    letter, count, starts, back = line.turns
    count, index = int(of(count)), ("index", letter)
    before = dict(starts)
    outputs: dict[int, np.ndarray] = {}

    def part(tree, turn: int):
        if tree == index:
            return ("number", float(turn))
        if not isinstance(tree, tuple):
            return tree
        if tree[:1] == ("cells",) and len(tree[2]) == 1 and _speaks(tree[2][0], index):
            place = int(of(_put_in(tree[2][0], index, ("number", float(turn)))))
            own = tree[1] == ("name", line.name)
            if not 0 <= place < count:
                operand_part = _part(shape if own else of(tree[1]).shape, count)
                return ("value", np.broadcast_to(of(before[tree[1]]), operand_part))
            if own:
                return ("value", outputs[place])
            whole = of(tree[1])
            return ("value", np.take(whole, place, axis=_take_along(whole.shape, count)))
        return tuple(part(inner, turn) for inner in tree)

    for turn in reversed(range(count)) if back else range(count):
        outputs[turn] = np.asarray(of(part(line.right, turn)))
    return np.stack(np.broadcast_arrays(*(outputs[turn] for turn in range(count))), _take_along(shape, count))


def _speaks(tree, index: Tree) -> bool:
    """Return whether a tree contains an index."""
    return tree == index or (isinstance(tree, tuple) and any(_speaks(inner, index) for inner in tree))


def _part(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return the shape of one iteration's part."""
    axis = _take_along(shape, count)
    return (*shape[:axis], *shape[axis + 1 :])


def _take_along(shape: tuple[int, ...], count: int) -> int:
    """Return the first axis of length `count`."""
    if count not in shape:
        raise Undefined(f"no axis of {list(shape)} is as long as its {count} turns")
    return shape.index(count)


def _pad(below, x: np.ndarray) -> np.ndarray:
    pads = [int(n) for (n,) in below.plain]
    widths = [(0, 0)] * (x.ndim - len(pads) // 2) + [tuple(pads[i : i + 2]) for i in range(len(pads) - 2, -1, -2)]
    cut = tuple(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(widths, x.shape, strict=True))
    wide = [(max(a, 0), max(b, 0)) for a, b in widths]
    modes = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    mode = next((modes[sign] for sign in modes if below.has(sign)), None)
    if mode:
        return np.pad(x[cut], wide, mode=mode)
    return np.pad(x[cut], wide, constant_values=below.get("with", 0)[0])


def _gather(below, x: np.ndarray, index: np.ndarray) -> np.ndarray:
    axis = below.axes(x)[0]
    cut = tuple(slice(None) if i == axis else slice(0, n) for i, n in enumerate(index.shape))
    return np.take_along_axis(x[cut], index.astype(int), axis)


def _scatter(below, x: np.ndarray, index: np.ndarray, values: np.ndarray) -> np.ndarray:
    axis, result = below.axes(x)[0], x.copy()
    places = list(np.indices(index.shape))
    places[axis] = index.astype(int)
    values = values if not values.ndim else values[tuple(slice(0, n) for n in index.shape)]
    joins = {"add": np.add, "prod": np.multiply, "amax": np.maximum, "amin": np.minimum}
    for word, join in joins.items():
        if below.has(word):
            join.at(result, tuple(places), values)
            return result
    result[tuple(places)] = values
    return result


def _fill(x: np.ndarray, mask: np.ndarray, values: np.ndarray) -> np.ndarray:
    result, mask = np.broadcast_arrays(x, mask != 0)
    result = result.copy()
    result[mask] = values.ravel()[: mask.sum()]
    return result


def _roll(below, x: np.ndarray) -> np.ndarray:
    """Roll along axes. Two numbers alone are of rows and columns, `[B, n, m, D]`."""
    grid = len(below) == 1 and len(below.plain[0]) == 2
    axes = [1, 2] if grid else sorted(below.axes(x, 1))
    return np.roll(x, [int(n) for n in below.plain[0]], axes)


# Named functions of printed equations on arrays, with their settings, and recurrent layers, in NumPy and `math`
# alone.


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _lstm(from_input: np.ndarray, from_state: np.ndarray, states: list[np.ndarray], relu: bool) -> list[np.ndarray]:
    enter, forget, new, out = np.split(from_input + from_state, 4, axis=-1)
    cell = _sigmoid(forget) * states[1] + _sigmoid(enter) * np.tanh(new)
    return [_sigmoid(out) * np.tanh(cell), cell]


def _gru(from_input: np.ndarray, from_state: np.ndarray, states: list[np.ndarray], relu: bool) -> list[np.ndarray]:
    (r_x, z_x, n_x), (r_h, z_h, n_h) = np.split(from_input, 3, axis=-1), np.split(from_state, 3, axis=-1)
    z = _sigmoid(z_x + z_h)
    return [(1 - z) * np.tanh(n_x + _sigmoid(r_x + r_h) * n_h) + z * states[0]]


def _rnn(from_input: np.ndarray, from_state: np.ndarray, states: list[np.ndarray], relu: bool) -> list[np.ndarray]:
    return [np.maximum(from_input + from_state, 0) if relu else np.tanh(from_input + from_state)]


def _recur(step, count: int, below, x: np.ndarray, *rest: np.ndarray) -> np.ndarray:
    states, (w, u, *more) = list(rest[:count]), rest[count:]
    projection = more.pop() if len(more) % 2 else None
    b, d = more or (0, 0)
    order = range(len(x))[::-1] if below.has("back") else range(len(x))
    outputs = np.empty((len(x), *states[0].shape))
    for place in order:
        states = step(x[place] @ w.T + b, states[0] @ u.T + d, states, below.has("relu"))
        if projection is not None:
            states[0] = states[0] @ projection.T
        outputs[place] = states[0]
    return states[1] if below.has("last cell") else states[0] if below.has("last") else outputs


class SubscriptPart(NamedTuple):
    """A setting below a word, between two commas: a sign or a text in front, numbers, and whether `→ 1` follows."""

    sign: str
    numbers: tuple[float, ...]
    stays: bool


class Subscript(tuple):
    """All settings below a word."""

    @property
    def stays(self) -> bool:
        return any(setting.stays for setting in self)

    def has(self, sign: str) -> bool:
        return any(setting.sign == sign for setting in self)

    def get(self, sign: str, usual: float, count: int = 1) -> tuple[float, ...]:
        """Return the numbers behind a sign, `count` of them; a single number counts for all."""
        numbers = next((setting.numbers for setting in self if setting.sign == sign), (usual,))
        if len(numbers) not in (1, count):
            raise UnreadableLatex(f"expected {count} numbers behind {sign}, got {len(numbers)}")
        return numbers * count if len(numbers) == 1 else numbers

    @property
    def plain(self) -> list[tuple[float, ...]]:
        """Settings without a sign in front."""
        return [setting.numbers for setting in self if not setting.sign]

    def axes(self, x: np.ndarray, skip: int = 0) -> tuple[int, ...]:
        """Return the named axes of x: by position, or by their sizes, each the last of that size before the one that is
        named after it; the last axis, if none is. The first `skip` plain settings are not axes."""
        numbers = [int(n) for setting in self if setting.sign == "axis" for n in setting.numbers]
        at = x.ndim
        for (size,) in reversed(self.plain[skip:]):
            at = next((axis for axis in range(at - 1, -1, -1) if x.shape[axis] == size), -1)
            if at < 0:
                raise Undefined(f"{list(x.shape)} has no axis of {size:g} where one is named")
            numbers.append(at)
        return tuple(numbers) or (() if not x.ndim else (x.ndim - 1,))


def _reduce(function, below: Subscript, x: np.ndarray) -> np.ndarray:
    """Reduce some axes: they vanish, or stay with size 1."""
    return function(x, axis=below.axes(x), keepdims=below.stays)


def _place(function, below: Subscript, x: np.ndarray) -> np.ndarray:
    axes = tuple(sorted(below.axes(x)))
    flat = np.moveaxis(x, axes, range(x.ndim - len(axes), x.ndim)).reshape(*np.delete(x.shape, axes), -1)
    flat_index = function(flat, axis=-1)
    return np.expand_dims(flat_index, axes) if below.stays else flat_index


def _along(function, below: Subscript, x: np.ndarray, skip: int = 0) -> np.ndarray:
    """Apply a function of rows along one axis."""
    axis = below.axes(x, skip)[0] if x.ndim else 0
    result = function(below, np.moveaxis(x, axis, -1) if x.ndim else x[None])
    return np.moveaxis(result, -1, axis) if x.ndim else result[0]


def _variance(below: Subscript, x: np.ndarray) -> np.ndarray:
    less = 1 if below.has("unbiased") else below.get("less", 0)[0]
    return x.var(axis=below.axes(x), keepdims=below.stays, ddof=less)


def _length(below: Subscript, x: np.ndarray) -> np.ndarray:
    (p,) = below.plain[0]
    axes, size = below.axes(x, 1), np.abs(x)
    if math.isinf(p):
        return size.max(axis=axes, keepdims=below.stays)
    if not p:
        return (x != 0).sum(axis=axes, keepdims=below.stays) * 1.0
    return (size**p).sum(axis=axes, keepdims=below.stays) ** (1 / p)


def softmax(x: np.ndarray) -> np.ndarray:
    """Return the powers of e of each row, as shares of their sum."""
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _order(below: Subscript, x: np.ndarray) -> np.ndarray:
    return np.argsort(-x if below.has(r"\downarrow") else x, axis=-1, kind="stable")


def _top(below: Subscript, x: np.ndarray) -> np.ndarray:
    order = np.argsort(x if below.has(r"\uparrow") else -x, axis=-1, kind="stable")
    return order[..., : int(below.plain[0][0])]


def _glu(below: Subscript, x: np.ndarray) -> np.ndarray:
    first, second = np.split(x, 2, axis=-1)
    return first / (1 + np.exp(-second))


def _statistic(function, below: Subscript, x: np.ndarray) -> np.ndarray:
    """Return μ or σ² over named axes, or over groups of channels, as wide as x."""
    if not below.has("groups"):
        return np.broadcast_to(function(x, axis=below.axes(x), keepdims=True), x.shape)
    groups = x.reshape(len(x), int(below.get("groups", 1)[0]), -1)
    return np.broadcast_to(function(groups, axis=-1, keepdims=True), groups.shape).reshape(x.shape)


def _by_groups(x: np.ndarray, matrices: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Multiply each row by the first matrix whose end lies behind it."""
    which = (np.arange(len(x))[:, None] >= ends).sum(axis=-1)
    return np.einsum("nd,ndk->nk", x, np.concatenate([matrices, matrices[:1] * 0])[which])


def _softplus(below: Subscript, x: np.ndarray) -> np.ndarray:
    beta, edge = (n for (n,) in below.plain) if below else (1, 20)
    return np.where(x * beta > edge, x, np.log1p(np.exp(np.minimum(x * beta, edge))) / beta)


def _elu(below: Subscript, x: np.ndarray) -> np.ndarray:
    alpha, scale, inner = [*(n for (n,) in below.plain), 1, 1, 1][:3] if len(below) != 1 else (below.plain[0][0], 1, 1)
    return scale * np.where(x > 0, x, alpha * np.expm1(inner * np.minimum(x, 0)))


def _prelu(x: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    slopes = slopes.reshape(-1, *(1,) * (x.ndim - 2)) if slopes.size > 1 else slopes
    return np.where(x > 0, x, slopes * x)


def _soft_shrink(below: Subscript, x: np.ndarray) -> np.ndarray:
    (edge,) = below.plain[0]
    return np.sign(x) * np.maximum(np.abs(x) - edge, 0)


def _finite(below: Subscript, x: np.ndarray) -> np.ndarray:
    nan, above, lowest = (n for (n,) in below.plain)
    return np.where(np.isnan(x), nan, np.where(x == np.inf, above, np.where(x == -np.inf, lowest, x)))


def _bfloat16(x: np.ndarray) -> np.ndarray:
    """Round to the upper 16 bits of a float32, ties to even (IEEE 754)."""
    bits = x.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(x), rounded.astype(np.uint32).view(np.float32).astype(float), x)


def _wrap(bits: int, lowest: int, x: np.ndarray) -> np.ndarray:
    """Return the whole parts of numbers in two's complement: modulo 2 to the number of bits, from the lowest on."""
    whole = np.trunc(np.where(np.isfinite(x), x, 0))
    return np.mod(whole - lowest, 2**bits) + lowest


def _bare(function):
    """Return a word without settings."""
    return lambda below, *operands: function(*operands)


_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: np.ndarray) -> np.ndarray:
    """Return the error function of each cell."""
    return np.asarray(_erf(x), dtype=float)


WORDS = {name: partial(_reduce, getattr(np, name)) for name in "mean sum prod max min any all".split()} | {
    "maxpool": partial(_pool, True),
    "avgpool": partial(_pool, False),
    "resize": _resize,
    "im2col": _columns,
    "col2im": _fold_columns,
    "onehot": lambda below, x: (x[..., None] == np.arange(int(below.plain[0][0]))) * 1,
    "gather": _gather,
    "scatter": _scatter,
    "fill": _bare(_fill),
    "stack": lambda below, *tensors: np.stack(tensors, int(below.get("axis", 0)[0])),
    "pad": _pad,
    "flip": lambda below, x: np.flip(x, below.axes(x)),
    "roll": _roll,
    "identity": lambda below: np.eye(*(int(n) for n in (*below.plain[0], *below.plain[0])[:2])),
    "linspace": lambda below, first, last: np.linspace(float(first), float(last), int(below.plain[0][0])),
    "nonzero": _bare(np.argwhere),
    "full": lambda below, x: np.broadcast_to(x, [int(n) for n in below.plain[0]] if below else ()),
    "LSTM": partial(_recur, _lstm, 2),
    "GRU": partial(_recur, _gru, 1),
    "RNN": partial(_recur, _rnn, 1),
    "count": lambda below, x: (x != 0).sum(axis=below.axes(x), keepdims=below.stays),
    "logsumexp": partial(_reduce, lambda x, **axes: np.log(np.exp(x).sum(**axes))),
    "argmax": partial(_place, np.argmax),
    "argmin": partial(_place, np.argmin),
    "var": _variance,
    "std": lambda below, x: np.sqrt(_variance(below, x)),
    "length": _length,
    "mu": partial(_statistic, np.mean),
    "variance": partial(_statistic, np.var),
    "softmax": partial(_along, _bare(softmax)),
    "cumsum": partial(_along, lambda below, x: np.cumsum(x, axis=-1)),
    "cumprod": partial(_along, lambda below, x: np.cumprod(x, axis=-1)),
    "GLU": partial(_along, _glu),
    "sort": partial(_along, lambda below, x: np.take_along_axis(x, _order(below, x), -1)),
    "argsort": partial(_along, _order),
    "top": partial(_along, lambda below, x: np.take_along_axis(x, _top(below, x), -1), skip=1),
    "argtop": partial(_along, _top, skip=1),
    "groups": _bare(_by_groups),
    "sigmoid": _bare(_sigmoid),
    "log": lambda below, x: np.log(x) / math.log(below.plain[0][0]),
    "round": _bare(np.round),
    "trunc": _bare(np.trunc),
    "sign": _bare(np.sign),
    "erf": _bare(erf),
    "atan2": _bare(np.arctan2),
    "ReLU6": _bare(lambda x: np.clip(x, 0, 6)),
    "HardSigmoid": _bare(lambda x: np.clip(x + 3, 0, 6) / 6),
    "HardSwish": _bare(lambda x: x * np.clip(x + 3, 0, 6) / 6),
    "Mish": _bare(lambda x: x * np.tanh(np.logaddexp(0, x))),
    "SELU": _bare(lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0)))),
    "softplus": _softplus,
    "LeakyReLU": lambda below, x: np.where(x > 0, x, below.plain[0][0] * x),
    "ELU": _elu,
    "SoftShrink": _soft_shrink,
    "HardShrink": lambda below, x: np.where(np.abs(x) > below.plain[0][0], x, 0),
    "PReLU": _bare(_prelu),
    "finite": _finite,
    "tril": lambda below, x: np.tril(x, int(below.plain[0][0]) if below else 0),
    "triu": lambda below, x: np.triu(x, int(below.plain[0][0]) if below else 0),
    "complex": _bare(lambda x: x[..., 0] + 1j * x[..., 1]),
    "pairs": _bare(lambda x: np.stack([x.real, x.imag], -1)),
    "polar": _bare(lambda length, angle: length * np.exp(1j * angle)),
    "Re": _bare(np.real),
    "Im": _bare(np.imag),
    "conj": _bare(np.conj),
    "int8": _bare(partial(_wrap, 8, -128)),
    "uint8": _bare(partial(_wrap, 8, 0)),
    "int16": _bare(partial(_wrap, 16, -(2**15))),
    "uint16": _bare(partial(_wrap, 16, 0)),
    "float16": _bare(lambda x: x.astype(np.float16).astype(float)),
    "bfloat16": _bare(_bfloat16),
}
"""What a word computes, from what stands below it and the values of its operands."""
