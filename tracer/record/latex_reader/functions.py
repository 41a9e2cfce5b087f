"""Named functions of printed equations on arrays, with their settings, and recurrent layers, in NumPy and `math`
alone."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tracer.record.latex_reader.conv_pool_resize import PICTURES
from tracer.record.latex_reader.indexing import PLACEMENTS
from tracer.record.latex_reader.lexer import UnreadableLatex


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


def _recurrent(step, count: int):
    def run(below, x: np.ndarray, *rest: np.ndarray) -> np.ndarray:
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

    return run


RECURRENT = {"LSTM": _recurrent(_lstm, 2), "GRU": _recurrent(_gru, 1), "RNN": _recurrent(_rnn, 1)}


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
                raise UnreadableLatex(f"{list(x.shape)} has no axis of {size:g} where one is named")
            numbers.append(at)
        return tuple(numbers) or (() if not x.ndim else (x.ndim - 1,))


def _reduction(function):
    """Return a word that reduces some axes: they vanish, or stay with size 1."""

    def reduce(below: Subscript, x: np.ndarray) -> np.ndarray:
        return function(x, axis=below.axes(x), keepdims=below.stays)

    return reduce


def _place(function):
    def place(below: Subscript, x: np.ndarray) -> np.ndarray:
        axes = tuple(sorted(below.axes(x)))
        flat = np.moveaxis(x, axes, range(x.ndim - len(axes), x.ndim)).reshape(*np.delete(x.shape, axes), -1)
        flat_index = function(flat, axis=-1)
        return np.expand_dims(flat_index, axes) if below.stays else flat_index

    return place


def _along(function, skip: int = 0):
    """Return a word that applies a function of rows along one axis."""

    def run(below: Subscript, x: np.ndarray) -> np.ndarray:
        axis = below.axes(x, skip)[0] if x.ndim else 0
        result = function(below, np.moveaxis(x, axis, -1) if x.ndim else x[None])
        return np.moveaxis(result, -1, axis) if x.ndim else result[0]

    return run


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


def _softmax(below: Subscript, x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _logsumexp(x: np.ndarray, axis, keepdims: bool) -> np.ndarray:
    return np.log(np.exp(x).sum(axis=axis, keepdims=keepdims))


def _order(below: Subscript, x: np.ndarray) -> np.ndarray:
    return np.argsort(-x if below.has(r"\downarrow") else x, axis=-1, kind="stable")


def _top(below: Subscript, x: np.ndarray) -> np.ndarray:
    order = np.argsort(x if below.has(r"\uparrow") else -x, axis=-1, kind="stable")
    return order[..., : int(below.plain[0][0])]


def _glu(below: Subscript, x: np.ndarray) -> np.ndarray:
    first, second = np.split(x, 2, axis=-1)
    return first / (1 + np.exp(-second))


def _statistic(function):
    """Return μ or σ² over named axes, or over groups of channels, as wide as x."""

    def run(below: Subscript, x: np.ndarray) -> np.ndarray:
        if not below.has("groups"):
            return np.broadcast_to(function(x, axis=below.axes(x), keepdims=True), x.shape)
        groups = x.reshape(len(x), int(below.get("groups", 1)[0]), -1)
        return np.broadcast_to(function(groups, axis=-1, keepdims=True), groups.shape).reshape(x.shape)

    return run


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


def _log(below: Subscript, x: np.ndarray) -> np.ndarray:
    return np.log(x) / math.log(below.plain[0][0])


def _bfloat16(x: np.ndarray) -> np.ndarray:
    """Round to the upper 16 bits of a float32, ties to even (IEEE 754)."""
    bits = x.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(x), rounded.astype(np.uint32).view(np.float32).astype(float), x)


def _bare(function):
    """Return a word without settings."""
    return lambda below, *operands: function(*operands)


_erf = np.frompyfunc(math.erf, 1, 1)
WORDS = (
    PICTURES
    | PLACEMENTS
    | RECURRENT
    | {
        "mean": _reduction(np.mean),
        "sum": _reduction(np.sum),
        "prod": _reduction(np.prod),
        "max": lambda below, x: x.max(axis=below.axes(x), keepdims=below.stays),
        "min": lambda below, x: x.min(axis=below.axes(x), keepdims=below.stays),
        "any": _reduction(np.any),
        "all": _reduction(np.all),
        "count": lambda below, x: (x != 0).sum(axis=below.axes(x), keepdims=below.stays),
        "logsumexp": _reduction(_logsumexp),
        "argmax": _place(np.argmax),
        "argmin": _place(np.argmin),
        "var": _variance,
        "std": lambda below, x: np.sqrt(_variance(below, x)),
        "length": _length,
        "mu": _statistic(np.mean),
        "variance": _statistic(np.var),
        "softmax": _along(_softmax),
        "cumsum": _along(lambda below, x: np.cumsum(x, axis=-1)),
        "cumprod": _along(lambda below, x: np.cumprod(x, axis=-1)),
        "GLU": _along(_glu),
        "sort": _along(lambda below, x: np.take_along_axis(x, _order(below, x), -1)),
        "argsort": _along(_order),
        "top": _along(lambda below, x: np.take_along_axis(x, _top(below, x), -1), 1),
        "argtop": _along(_top, 1),
        "groups": _bare(_by_groups),
        "sigmoid": _bare(_sigmoid),
        "log": _log,
        "round": _bare(np.round),
        "trunc": _bare(np.trunc),
        "sign": _bare(np.sign),
        "erf": _bare(lambda x: np.asarray(_erf(x), dtype=float)),
        "atan2": _bare(np.arctan2),
        "ReLU6": _bare(lambda x: np.clip(x, 0, 6)),
        "HardSigmoid": _bare(lambda x: np.clip(x + 3, 0, 6) / 6),
        "HardSwish": _bare(lambda x: x * np.clip(x + 3, 0, 6) / 6),
        "Mish": _bare(lambda x: x * np.tanh(np.logaddexp(0, x))),
        "SELU": _bare(
            lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0)))
        ),
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
        "float16": _bare(lambda x: x.astype(np.float16).astype(float)),
        "bfloat16": _bare(_bfloat16),
    }
)
"""What a word computes, from what stands below it and the values of its operands."""
