"""Index maps of chains of layouts, and the rearrangement patterns that they factor into.

The map of a chain is composed call by call from PyTorch's own ops. A pattern is used only if it reproduces its map. A
map is a function of flat indices, like the strides of a tensor. It takes memory for each axis, not for each element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch

from tracer.capture.calls import Call, Ref
from tracer.utils.torch_internals import function_schema

ALL_CELLS = 2**16
"""Largest map of which all elements are compared."""
SOME_CELLS = 2**14
"""Number of elements that are sampled from a larger map, besides its corners."""


class IndexMap:
    """Index in another tensor of each element of a tensor of `shape`.

    `at` maps flat indices to flat indices, both in row-major order.
    """

    def __init__(self, shape: Sequence[int], at: Callable[[np.ndarray], np.ndarray] = lambda cells: cells):
        self.shape, self.at = tuple(shape), at
        self.size = prod(self.shape)

    def then(self, layout: IndexMap) -> IndexMap:
        """Return the composition of this map with a further layout."""
        return IndexMap(layout.shape, lambda cells: self.at(layout.at(cells)))

    def table(self) -> np.ndarray:
        """Return the indices of all elements, in the shape of the tensor."""
        return self.at(np.arange(self.size)).reshape(self.shape)

    def along(self, axis: int) -> np.ndarray:
        """Return the indices along an axis, from the first element on."""
        return self.at(prod(self.shape[axis + 1 :]) * np.arange(self.shape[axis]))

    def find_axis(self, shape: Sequence[int], axis: int) -> int | None:
        """Return the axis along which the indices are those of an axis of a tensor of `shape`, in its order; None if
        there is none, and for an axis of size 1."""
        steps = contiguous_strides(shape)[axis] * np.arange(shape[axis])
        for number, size in enumerate(self.shape):
            if size == shape[axis] > 1 and (self.along(number) - self.along(number)[0] == steps).all():
                return number
        return None

    @cached_property
    def cells(self) -> np.ndarray:
        """Flat indices at which maps are compared: all, or corners and samples of a large map.

        Half of the sampled coordinates are near the ends and the middle of an axis, where a layout continues in the
        next row.
        """
        if self.size <= ALL_CELLS:
            return np.arange(self.size)
        draw, axes = np.random.default_rng(0), []
        for number, size in enumerate(self.shape):
            corners = np.array([*product((0, 1), repeat=len(self.shape))])[:, number] * (size - 1)
            near = np.clip(draw.choice([0, 1, size // 2, size - 2, size - 1], SOME_CELLS), 0, size - 1)
            samples = np.where(draw.random(SOME_CELLS) < 0.5, near, draw.integers(size, size=SOME_CELLS))
            axes.append(np.concatenate([corners, samples]))
        return np.asarray(np.ravel_multi_index(tuple(axes), self.shape))

    def equals(self, index_map: IndexMap) -> bool:
        """Return whether two maps are the same at the cells that are compared."""
        return self.shape == index_map.shape and bool((self.at(self.cells) == index_map.at(self.cells)).all())


def separable(shape: Sequence[int], lines: Sequence[np.ndarray], first: int = 0) -> IndexMap:
    """Return the map whose index is `first` plus a term for each axis, from `lines` along it."""

    def at(cells: np.ndarray) -> np.ndarray:
        places = np.full(cells.shape, first)
        for size, line in zip(reversed(shape), reversed(lines), strict=True):
            cells, coordinate = np.divmod(cells, size)
            places += line[coordinate]
        return places

    return IndexMap(shape, at)


def from_strides(shape: Sequence[int], strides: Sequence[int], first: int = 0) -> IndexMap:
    """Return the map of a tensor with these strides."""
    return separable(shape, [stride * np.arange(size) for size, stride in zip(shape, strides, strict=True)], first)


def contiguous_strides(shape: Sequence[int]) -> list[int]:
    """Return the strides of a row-major tensor."""
    return [prod(shape[axis + 1 :]) for axis in range(len(shape))]


class RearrangePattern(NamedTuple):
    """A rearrangement of a tensor, in the terms of einops.

    First each axis of the input is sliced by `slices`: (start, stop, step) within the axis, or None for all of it.
    Then axis k is split into the factors `left[k]`, outer to inner, and the axes of the output are merged from `right`.
    A factor in `repeated` is in no `left`. `sizes` has the size of each factor.
    """

    slices: tuple[tuple[int, int, int] | None, ...]
    sizes: tuple[int, ...]
    left: tuple[tuple[int, ...], ...]
    right: tuple[tuple[int, ...], ...]
    repeated: tuple[int, ...]


class IndexMapCache:
    """A cache of index maps and their patterns for equal chains, such as those of repeated blocks."""

    def __init__(self) -> None:
        self._known: dict[tuple, Any] = {}

    def of(self, shape: tuple[int, ...], chain: list[tuple[Call, int]]) -> IndexMap:
        """Return the index map of a chain of layouts from a tensor of `shape`."""
        outline = tuple((call.func, call.name, position, *_outline(call, position)) for call, position in chain)
        return self._once((shape, outline), lambda: index_map(shape, chain))

    def inverse(self, there: IndexMap, shape: tuple[int, ...], then: IndexMap | None) -> IndexMap:
        """Return the inverse of `there`, a map into a tensor of `shape`, composed with the layout `then`."""

        def back() -> IndexMap:
            inverse = invert_map(there, shape, self.pattern(there, shape))
            return inverse if then is None else inverse.then(then)

        return self._once(("inverse", there, shape, then), back)

    def rows(self, places: IndexMap, width: int, layout: IndexMap) -> IndexMap:
        """Return the index map of rows of this width, where `layout` arranges one entry for each row."""
        count = layout.shape[-1]

        def at(cells: np.ndarray) -> np.ndarray:
            row, column = np.divmod(cells, width)
            return places.at(layout.at(row * count) // count * width + column)

        return self._once(("rows", places, width, layout), lambda: IndexMap((*layout.shape[:-1], width), at))

    def pattern(self, places: IndexMap, shape: tuple[int, ...]) -> RearrangePattern | None:
        """Return the pattern of a map into a tensor of `shape`, or None if it has none."""
        return self._once(("pattern", places, shape), lambda: factor_index_map(places, shape))

    def _once(self, key: tuple, make: Callable[[], Any]) -> Any:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]


def _outline(call: Call, position: int) -> Iterator[object]:
    """Yield all properties of a layout call that its index map depends on."""
    yield call.outputs[position].shape
    for name, value in call.arguments.items():
        yield name, value.shape if isinstance(value, Ref) else repr(value)


def index_map(shape: tuple[int, ...], chain: list[tuple[Call, int]]) -> IndexMap:
    """Return the index map of a chain of layouts from a tensor of `shape`."""
    places = IndexMap(shape)
    for call, position in chain:
        places = places.then(_layout_map(places.shape, call, position))
    return places


def _layout_map(shape: tuple[int, ...], call: Call, position: int) -> IndexMap:
    """Return the index map of one layout of a row-major tensor of `shape`."""
    op, after = call.op, call.outputs[position].shape
    if call.func is None or (op.traits & {"concat", "reshape", "squeeze", "identity"} and op.name != "copy"):
        return IndexMap(after)
    if op.name == "copy":
        view = torch.empty(shape, device="meta").expand(after)
    elif function_schema(call.func).returns[0].alias_info is not None:  # a view: its strides say all
        view = _run_layout(torch.empty(shape, device="meta"), call, position)
    elif "repeat" in op.traits and (op.name != "repeat_interleave" or isinstance(call.arguments.get("dim"), int)):
        return _repeat_map(shape, call, position)
    else:
        places = _run_layout(torch.arange(prod(shape), device="cpu").reshape(shape), call, position)
        return IndexMap(after, places.reshape(-1).numpy().__getitem__)
    return from_strides(view.shape, view.stride(), view.storage_offset())


def _repeat_map(shape: tuple[int, ...], call: Call, position: int) -> IndexMap:
    """Return the index map of a call that repeats numbers along each axis separately."""
    after = call.outputs[position].shape
    lines = [np.zeros(size, int) for size in after[: len(after) - len(shape)]]
    for axis, (size, stride) in enumerate(zip(shape, contiguous_strides(shape), strict=True)):
        alone = torch.arange(size, device="cpu").reshape((size, *[1] * (len(shape) - axis - 1)))
        repeated = _run_layout(alone.expand([size if dim == axis else 1 for dim in range(len(shape))]), call, position)
        lines.append(stride * repeated.movedim(len(lines), 0).reshape(after[len(lines)], -1)[:, 0].numpy())
    return separable(after, lines)


def _run_layout(x: torch.Tensor, call: Call, position: int) -> torch.Tensor:
    """Run a layout call on another tensor."""
    given = iter((x,))  # the first tensor is the one that is laid out

    def substitute(value):
        if isinstance(value, Ref):
            tensor = next(given, None)
            return torch.empty(value.shape, dtype=torch.long, device=x.device) if tensor is None else tensor
        if isinstance(value, tuple):
            return [substitute(item) for item in value]
        return value

    schema = function_schema(call.func).arguments
    args = [substitute(call.arguments[a.name]) for a in schema if a.name in call.arguments and not a.kwarg_only]
    result = call.func(*args)
    return result[position] if isinstance(result, (list, tuple)) else result


def factor_axis(steps: np.ndarray) -> list[tuple[int, int]] | None:
    """Return the factors (size, stride), outer to inner, of an axis with the indices `steps`, from 0 on; None if it has
    none."""
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
            outer = factor_axis(rows[:, 0])
            if outer is not None:
                return [*outer, (size, stride)]
    return None


def factor_index_map(places: IndexMap, shape: tuple[int, ...]) -> RearrangePattern | None:
    """Return the pattern of an index map into a tensor of `shape`; None if there is none, as for overlapping
    windows."""
    if not places.size or not prod(shape):
        return None
    pattern = _factor_axes(places, shape)
    return pattern if pattern is not None and expand_pattern(pattern, shape, places.shape).equals(places) else None


def _factor_axes(places: IndexMap, shape: tuple[int, ...]) -> RearrangePattern | None:
    """Return the pattern of a map by its indices along each axis from the first element on."""
    first, strides = int(places.at(np.zeros(1, int))[0]), contiguous_strides(shape)
    start = [first // stride % size for stride, size in zip(strides, shape, strict=True)]
    sizes: list[int] = []
    repeated, right = [], []
    within: list[list[tuple[int, int, int]]] = [[] for _ in shape]
    for axis in range(len(places.shape)):
        axis_factors = factor_axis(places.along(axis) - first)
        if axis_factors is None:
            return None
        names = []
        for size, stride in axis_factors:
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
    slices, left = [], []
    for k, size in enumerate(shape):
        axis_factors = _axis_factors(sorted(within[k]), size, start[k])
        if axis_factors is None:
            return None
        slices.append(axis_factors[0])
        left.append(axis_factors[1])
    return RearrangePattern(tuple(slices), tuple(sizes), tuple(left), tuple(right), tuple(repeated))


def _axis_factors(parts: list[tuple[int, int, int]], size: int, start: int):
    """Return the slice of one axis and its factors, outer to inner; None if no slice with a step fits."""
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


def expand_pattern(pattern: RearrangePattern, shape: tuple[int, ...], result: tuple[int, ...]) -> IndexMap:
    """Return the index map of a pattern."""
    first, steps = 0, dict.fromkeys(pattern.repeated, 0)
    for stride, taken, side in zip(contiguous_strides(shape), pattern.slices, pattern.left, strict=True):
        start, _, step = taken or (0, 0, 1)
        first += start * stride
        stride *= step
        for part in reversed(side):
            steps[part] = stride
            stride *= pattern.sizes[part]
    order = [part for side in pattern.right for part in side]
    return IndexMap(
        result, from_strides([pattern.sizes[part] for part in order], [steps[part] for part in order], first).at
    )


def invert_map(there: IndexMap, shape: tuple[int, ...], pattern: RearrangePattern | None) -> IndexMap:
    """Return the inverse of a map of this pattern into a tensor of `shape`."""
    if pattern is None or any(pattern.slices) or pattern.repeated:
        back = np.empty(there.size, int)
        back[there.table().reshape(-1)] = np.arange(there.size)
        return IndexMap(shape, back.__getitem__)
    before, after = ([part for side in sides for part in side] for sides in (pattern.left, pattern.right))
    steps = dict(zip(after, contiguous_strides([pattern.sizes[part] for part in after]), strict=True))
    return IndexMap(shape, from_strides([pattern.sizes[part] for part in before], [steps[part] for part in before]).at)
