"""Indexing, layouts, sums with named axes, gather and scatter of printed equations, in NumPy alone."""

from __future__ import annotations

import math

import numpy as np

from tracer.record.latex_reader.lexer import Tree, UnreadableLatex


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
            raise UnreadableLatex(f"a place from {place.min()} to {place.max()} of {size}")
        indices.append(place)
    if axes > x.ndim or (axes < x.ndim and rest_at is None):
        raise UnreadableLatex(f"{axes} places for the {x.ndim} axes of {list(x.shape)}")
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
        raise UnreadableLatex(f"it lays out {sizes_of_axes}, the tensor is {list(x.shape)}")
    have = [atom for axis in real for atom in axis]
    want = [atom for axis in right for atom in axis if atom[0] != ("number", 1.0)]
    if len(set(have)) < len(have) or len(set(want)) < len(want):
        raise UnreadableLatex("an axis of a layout stands there twice")
    if any(sizes[atom] != 1 for atom in have if atom not in want):
        raise UnreadableLatex("an axis of a layout is lost")
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
            raise UnreadableLatex(f"{len(axes[-1])} indices for {operands[-1].ndim} axes")
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
            return ("value", np.take(whole, place, axis=_along(whole.shape, count)))
        return tuple(part(inner, turn) for inner in tree)

    for turn in reversed(range(count)) if back else range(count):
        outputs[turn] = np.asarray(of(part(line.right, turn)))
    return np.stack(np.broadcast_arrays(*(outputs[turn] for turn in range(count))), _along(shape, count))


def _speaks(tree, index: Tree) -> bool:
    """Return whether a tree contains an index."""
    return tree == index or (isinstance(tree, tuple) and any(_speaks(inner, index) for inner in tree))


def _part(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return the shape of one iteration's part."""
    axis = _along(shape, count)
    return (*shape[:axis], *shape[axis + 1 :])


def _along(shape: tuple[int, ...], count: int) -> int:
    """Return the first axis of length `count`."""
    if count not in shape:
        raise UnreadableLatex(f"no axis of {list(shape)} is as long as its {count} turns")
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


def _one_hot(below, x: np.ndarray) -> np.ndarray:
    return (x[..., None] == np.arange(int(below.plain[0][0]))) * 1


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


def _stack(below, *tensors: np.ndarray) -> np.ndarray:
    return np.stack(tensors, int(below.get("axis", 0)[0]))


def _flip(below, x: np.ndarray) -> np.ndarray:
    return np.flip(x, below.axes(x))


def _roll(below, x: np.ndarray) -> np.ndarray:
    """Roll along axes. Two numbers alone are of rows and columns, `[B, n, m, D]`."""
    grid = len(below) == 1 and len(below.plain[0]) == 2
    axes = [1, 2] if grid else sorted(below.axes(x, 1))
    return np.roll(x, [int(n) for n in below.plain[0]], axes)


PLACEMENTS = {
    "onehot": _one_hot,
    "gather": _gather,
    "scatter": _scatter,
    "fill": lambda below, *operands: _fill(*operands),
    "stack": _stack,
    "pad": _pad,
    "flip": _flip,
    "roll": _roll,
    "identity": lambda below: np.eye(*(int(n) for n in (*below.plain[0], *below.plain[0])[:2])),
    "linspace": lambda below, first, last: np.linspace(float(first), float(last), int(below.plain[0][0])),
    "nonzero": lambda below, x: np.argwhere(x),
    "full": lambda below, x: np.broadcast_to(x, [int(n) for n in below.plain[0]] if below else ()),
}
