"""A chain of layouts as one rearrangement: its index map, factored into axes, parts of axes and places that are picked.

The map is that of the chain itself, run on the numbers 0, 1, 2 …; what is found of it rebuilds it, or is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import NamedTuple

import numpy as np
import torch

from tracer.ops import IDENTITIES, JOINS, base
from tracer.recorder.calls import Call, Ref


class Pattern(NamedTuple):
    """A rearrangement. First `picked`: what is taken of each axis of the input, as (start, stop, step), all of them
    within the axis, or None for the whole. Then axis k is split into the parts `left[k]`, outer to inner, and the axes
    of the output are those of `right`; a part in `repeated` stands in no `left`. `sizes` are of parts, by number.
    """

    picked: tuple[tuple[int, int, int] | None, ...]
    sizes: tuple[int, ...]
    left: tuple[tuple[int, ...], ...]
    right: tuple[tuple[int, ...], ...]
    repeated: tuple[int, ...]


class Maps:
    """Index maps and what they factor into, made once for chains that are alike, such as those of repeated blocks.
    Nobody may write into a map; `inverse` and `rows` take those that were made here."""

    def __init__(self) -> None:
        self._made: dict[tuple, np.ndarray] = {}
        self._patterns: dict[tuple, tuple[Pattern | None, np.ndarray]] = {}  # and the map, whose id is in the key

    def of(self, shape: tuple[int, ...], chain: list[tuple[Call, int]]) -> np.ndarray:
        """Where each number of the chain's result stands in what it starts from, `shape`."""
        outline = tuple((call.func, call.name, position, *_outline(call, position)) for call, position in chain)
        return self._once((shape, outline), lambda: index_map(shape, chain))

    def inverse(self, there: np.ndarray, shape: tuple[int, ...], then: np.ndarray | None) -> np.ndarray:
        """Where the numbers of a tensor of `shape`, laid out further by `then`, stand in what `there` leads to."""

        def made() -> np.ndarray:
            back = np.empty(there.size, there.dtype)
            back[there.reshape(-1)] = np.arange(there.size)
            return back.reshape(shape) if then is None else back[then]

        return self._once(("inverse", id(there), shape, id(then)), made)

    def rows(self, places: np.ndarray, width: int, laid: np.ndarray) -> np.ndarray:
        """The places of rows of this width, where `laid` lays out what has a row for each of them."""
        count = laid.shape[-1]
        return self._once(
            ("rows", id(places), width, id(laid)), lambda: places.reshape(-1, width)[laid[..., 0] // count]
        )

    def pattern(self, places: np.ndarray, shape: tuple[int, ...]) -> Pattern | None:
        """What a map into a tensor of `shape` factors into, where that rebuilds it."""
        key = id(places), shape
        if key not in self._patterns:
            found = factor(places, shape)
            right = found is not None and not (rebuilt(found, shape, places.shape) != places).any()
            self._patterns[key] = found if right else None, places
        return self._patterns[key][0]

    def _once(self, key: tuple, make: Callable[[], np.ndarray]) -> np.ndarray:
        if key not in self._made:
            self._made[key] = made = make()
            made.setflags(write=False)
        return self._made[key]


def _outline(call: Call, position: int) -> Iterator[object]:
    """All of a layout's call that its index map depends on."""
    yield call.outputs[position].shape
    for name, value in call.arguments.items():
        yield name, value.shape if isinstance(value, Ref) else repr(value)


def index_map(shape: tuple[int, ...], chain: list[tuple[Call, int]]) -> np.ndarray:
    """Where each number of the chain's result stands in what it starts from, `shape`."""
    places = torch.arange(prod(shape)).reshape(shape)
    for call, position in chain:
        places = _moved(places.contiguous(), call, position)
    return places.numpy()


def _moved(places: torch.Tensor, call: Call, position: int) -> torch.Tensor:
    if base(call.name) in JOINS | IDENTITIES - {"copy"}:  # a cast would round the places
        return places
    if base(call.name) == "copy":
        return places.expand(call.arguments["self"].shape)
    if call.func is None or (places.shape == call.outputs[position].shape and "view" in call.name):
        return places
    first = True

    def given(value):
        nonlocal first
        if isinstance(value, Ref):
            if first:
                first = False
                return places
            return torch.empty(value.shape, dtype=torch.long)
        if isinstance(value, tuple):
            return [given(item) for item in value]
        return value

    schema = call.func._schema.arguments
    args = [given(call.arguments[a.name]) for a in schema if a.name in call.arguments and not a.kwarg_only]
    made = call.func(*args)
    return made[position] if isinstance(made, (list, tuple)) else made


def digits(steps: np.ndarray) -> list[tuple[int, int]] | None:
    """The parts (size, stride), outer to inner, of an axis along which the places are `steps`, from 0 on."""
    count = len(steps)
    if count == 1:
        return []
    stride = int(steps[1])
    run = 1
    while run < count and steps[run] == run * stride:
        run += 1
    for size in range(run, 1, -1):
        if count % size:
            continue
        rows = steps.reshape(count // size, size)
        if (rows == rows[:, :1] + stride * np.arange(size)).all():
            outer = digits(rows[:, 0])
            if outer is not None:
                return [*outer, (size, stride)]
    return None


def factor(places: np.ndarray, shape: tuple[int, ...]) -> Pattern | None:
    """The pattern of an index map into a tensor of `shape`; None where it is none, as for overlapping windows."""
    if not places.size or not prod(shape):
        return None
    first, axes, total = int(places.flat[0]), [], None
    for axis in range(places.ndim):
        along = places[tuple(slice(None) if i == axis else 0 for i in range(places.ndim))] - first
        axes.append(along)
        total = along if total is None else total[..., None] + along
    if total is not None and (total + first != places).any():
        return None
    strides = [prod(shape[k + 1 :]) for k in range(len(shape))]
    start = [first // stride % size for stride, size in zip(strides, shape, strict=True)]
    sizes: list[int] = []
    repeated, right = [], []
    within: list[list[tuple[int, int, int]]] = [[] for _ in shape]
    for along in axes:
        found = digits(along)
        if found is None:
            return None
        names = []
        for size, stride in found:
            waiting = [(size, stride)]
            while waiting:
                size, stride = waiting.pop()
                if stride < 0:
                    return None
                if stride == 0:
                    repeated.append(len(sizes))
                else:
                    k = next(
                        k for k in range(len(shape)) if strides[k] <= stride and (k == 0 or stride < strides[k - 1])
                    )
                    end = strides[k] * shape[k]
                    if (size - 1) * stride >= end and end % stride == 0 and size % (end // stride) == 0:
                        waiting += [(end // stride, stride), (size // (end // stride), end)]
                        continue
                    within[k].append((stride // strides[k], size, len(sizes)))
                names.append(len(sizes))
                sizes.append(size)
        right.append(tuple(names))
    picked, left = [], []
    for k, size in enumerate(shape):
        found = _axis(sorted(within[k]), size, start[k])
        if found is None:
            return None
        picked.append(found[0])
        left.append(found[1])
    return Pattern(tuple(picked), tuple(sizes), tuple(left), tuple(right), tuple(repeated))


def _axis(parts: list[tuple[int, int, int]], size: int, start: int):
    """What is taken of one axis, and its parts from outer to inner; None for what no slice with steps takes."""
    if not parts:
        return (None if size == 1 else (start, start + 1, 1)), ()
    step, reach = parts[0][0], parts[0][0]
    for stride, length, _ in parts:
        if stride != reach:
            return None
        reach = stride * length
    count = reach // step
    stop = start + (count - 1) * step + 1
    if stop > size:
        return None
    taken = (
        None
        if (start, count, step) == (0, size, 1)
        else (start, min(size, start + count * step) if step == 1 else stop, step)
    )
    return taken, tuple(atom for *_, atom in reversed(parts))


def rebuilt(pattern: Pattern, shape: tuple[int, ...], result: tuple[int, ...]) -> np.ndarray:
    """The index map that a pattern says."""
    places = np.arange(prod(shape)).reshape(shape)
    places = places[tuple(slice(*taken) if taken else slice(None) for taken in pattern.picked)]
    order = [part for parts in pattern.left for part in parts]
    places = places.reshape([pattern.sizes[part] for part in order])
    wanted = [part for parts in pattern.right for part in parts]
    for part in pattern.repeated:
        places = np.broadcast_to(places[..., None], (*places.shape, pattern.sizes[part]))
        order.append(part)
    return places.transpose([order.index(part) for part in wanted]).reshape(result)
