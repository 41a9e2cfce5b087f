"""Functions of the words and signs of printed equations on arrays, in NumPy and `math` alone."""

from __future__ import annotations

import math

import numpy as np

from tracer.record.latex_reader.lexer import UnreadableLatex

_erf = np.frompyfunc(math.erf, 1, 1)


def matrix(x: np.ndarray) -> np.ndarray:
    """Return a vector as one row."""
    return x[None] if x.ndim == 1 else x


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Multiply matrices. A vector on the right is a column if each row on the left is as long, else a row."""
    if not left.ndim or not right.ndim:
        return left * right
    column = left.ndim > 1 and right.ndim == 1 and left.shape[-1] == len(right) > 1
    return left @ right if column else matrix(left) @ matrix(right)


def _concatenation(axis: int):
    def join(*tensors: np.ndarray) -> np.ndarray:
        tensors = [matrix(tensor) for tensor in tensors]
        lead = np.broadcast_shapes(*(tensor.shape[:-2] for tensor in tensors))
        return np.concatenate([np.broadcast_to(x, lead + x.shape[-2:]) for x in tensors], axis=axis)

    return join


def _power(x: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    if x.ndim and exponent.ndim == 0 and exponent != 2:
        raise UnreadableLatex(f"a tensor to the power of {exponent:g}: only squares of its cells are known")
    return x**exponent


def _dot(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Sum the products over the last axis."""
    return (x * y).sum(axis=-1)


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _rotate_half(x: np.ndarray) -> np.ndarray:
    half = x.shape[-1] // 2
    return np.concatenate([-x[..., half:], x[..., :half]], axis=-1)


def _unroll_kernels(kernels: np.ndarray) -> np.ndarray:
    """Return kernels `[D, C, P, P]` as the columns of a matrix, channel after channel."""
    if kernels.ndim != 4:
        raise UnreadableLatex(f"expected kernels [D, C, P, P], got {list(kernels.shape)}")
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
        raise UnreadableLatex(f"{count} heads were to be joined, got {list(x.shape)}")
    return x.swapaxes(-3, -2).reshape(*x.shape[:-3], x.shape[-2], -1)


def _repeat_heads(x: np.ndarray, count: int) -> np.ndarray:
    if x.ndim < 3 or count % x.shape[-3]:
        raise UnreadableLatex(f"{list(x.shape)} can't become {count} heads")
    return np.repeat(x, count // x.shape[-3], axis=-3)


def _windows(grid: np.ndarray, side: int) -> np.ndarray:
    """Cut grids `[B, n, m, D]` into squares, row by row, grid after grid."""
    if grid.ndim != 4 or grid.shape[1] % side or grid.shape[2] % side:
        raise UnreadableLatex(f"{list(grid.shape)} has no windows of {side} by {side}")
    starts = [(row, column) for row in range(0, grid.shape[1], side) for column in range(0, grid.shape[2], side)]
    cut = [grid[:, row : row + side, column : column + side] for row, column in starts]
    return np.stack(cut, axis=1).reshape(-1, side * side, grid.shape[-1])


def _merge_windows(windows: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Merge such squares into their grids."""
    if windows.ndim != 3 or math.isqrt(windows.shape[1]) ** 2 != windows.shape[1]:
        raise UnreadableLatex(f"{list(windows.shape)} are not windows")
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

OPERATIONS = {
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
    "floor": np.floor,
    "ceil": np.ceil,
    "abs": np.abs,
    "log": np.log,
    "dot": _dot,
    "exp": np.exp,
    "transposed": lambda x: matrix(x).swapaxes(-2, -1),
    "mean": lambda x: x.mean(axis=-1, keepdims=True),
    "variance": lambda x: x.var(axis=-1, keepdims=True),
    "norm": lambda x: np.sqrt((x * x).sum(axis=-1, keepdims=True)),
    "below": _concatenation(-2),
    "beside": _concatenation(-1),
    "min": np.minimum,
    "max": np.maximum,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "tanh": np.tanh,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "arctan": np.arctan,
    "softmax": _softmax,
    "ReLU": lambda x: np.maximum(x, 0),
    "SiLU": lambda x: x / (1 + np.exp(-x)),
    "GELU": lambda x: x * (1 + np.asarray(_erf(x / math.sqrt(2)), float)) / 2,
    "GELU by tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "unroll": _unroll_kernels,
    r"rotate\_half": _rotate_half,
    r"rotate\_every\_two": lambda x: np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape),
}
"""What computes, from the values of its operands."""

RELATIONS = {
    "=": np.equal,
    "<": np.less,
    ">": np.greater,
    "≤": np.less_equal,
    "≥": np.greater_equal,
    "≠": np.not_equal,
}
