"""Words of printed equations that move numbers and write them at positions: numpy and nothing else."""

from __future__ import annotations

import numpy as np


def _pad(below, x: np.ndarray) -> np.ndarray:
    pads = [int(n) for (n,) in below.plain]
    given = [(0, 0)] * (x.ndim - len(pads) // 2) + [tuple(pads[i : i + 2]) for i in range(len(pads) - 2, -1, -2)]
    cut = tuple(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(given, x.shape, strict=True))
    wide = [(max(a, 0), max(b, 0)) for a, b in given]
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
    axis, made = below.axes(x)[0], x.copy()
    places = list(np.indices(index.shape))
    places[axis] = index.astype(int)
    values = values if not values.ndim else values[tuple(slice(0, n) for n in index.shape)]
    joins = {"add": np.add, "prod": np.multiply, "amax": np.maximum, "amin": np.minimum}
    for word, join in joins.items():
        if below.has(word):
            join.at(made, tuple(places), values)
            return made
    made[tuple(places)] = values
    return made


def _fill(x: np.ndarray, mask: np.ndarray, values: np.ndarray) -> np.ndarray:
    made, mask = np.broadcast_arrays(x, mask != 0)
    made = made.copy()
    made[mask] = values.ravel()[: mask.sum()]
    return made


def _stack(below, *tensors: np.ndarray) -> np.ndarray:
    return np.stack(tensors, int(below.get("axis", 0)[0]))


def _flip(below, x: np.ndarray) -> np.ndarray:
    return np.flip(x, below.axes(x))


def _roll(below, x: np.ndarray) -> np.ndarray:
    """Roll along axes. Two numbers alone are of rows and columns, `[B, n, m, D]`."""
    grid = len(below) == 1 and len(below.plain[0]) == 2
    axes = [1, 2] if grid else sorted(below.axes(x, 1))
    return np.roll(x, [int(n) for n in below.plain[0]], axes)


PLACING = {
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
