"""Convolution, pooling, im2col and resizing of printed equations, in NumPy alone."""

from __future__ import annotations

from itertools import product

import numpy as np

from tracer.record.latex_reader.lexer import UnreadableLatex


def _ints(numbers) -> list[int]:
    return [int(n) for n in numbers]


def convolve(below, back: bool, kernels: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Convolve `[B, C, …]` or `[C, …]` with kernels `[K, C/groups, …]`; with `back`, transposed, with `[C, K/groups,
    …]`."""
    count = kernels.ndim - 2
    if x.ndim == count + 1:
        return convolve(below, back, kernels, x[None])[0]
    if x.ndim != kernels.ndim:
        raise UnreadableLatex(f"kernels {list(kernels.shape)} don't fit {list(x.shape)}")
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


def _pooling(largest: bool):
    def pool(below, x: np.ndarray) -> np.ndarray:
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

    return pool


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


PICTURES = {
    "maxpool": _pooling(True),
    "avgpool": _pooling(False),
    "resize": _resize,
    "im2col": _columns,
    "col2im": _fold_columns,
}
