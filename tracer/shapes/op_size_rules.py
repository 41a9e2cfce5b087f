"""Output sizes that follow from an op's arguments: sliding windows, slices, padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd, prod

from tracer.capture import OpEvent
from tracer.ops import schema
from tracer.shapes.formulas.floor_division import floor_divide

Shape = tuple[str, ...]


def apply_size_rules(op: OpEvent, inputs: Sequence[Shape], others: Sequence[OpEvent] = ()) -> dict[int, list[str]]:
    """Return formulas for axes of an op's outputs over the symbolic shapes of its inputs, from its arguments.

    An axis of a pooling that rounds up has two formulas, since the last window can be left out. An axis whose input has
    no symbol has none. `others` are the same op in other runs. If the padding differs between them, it fills up to
    whole windows. If a reshape merges the same axes in all, the result has the product of their sizes.
    """
    rule = schema(op.name).size_rule
    if rule == "merge":
        return dict(_merge_axes([op, *others], inputs))
    reader = READERS.get(rule)
    if reader is None or not inputs or not all(run_op.settings for run_op in (op, *others)):
        return {}
    formulas_by_axis = {axis: formulas for axis, formulas in reader(op, inputs) if formulas}
    if reader is _padding:
        formulas_by_axis |= dict(_fill_windows([op, *others], inputs))
    return formulas_by_axis


def _window_count(size: str, window: int, stride: int, padding: int, dilation: int, up: bool = False) -> list[str]:
    """Return formulas of the number of windows along an axis: ⌊(H + 2p − d(k − 1) − 1)/s⌋ + 1."""
    if size == "?":
        return []
    offset = 2 * padding - dilation * (window - 1) - 1
    if up:
        return [
            floor_divide(size, offset + stride - 1 + stride, stride),
            floor_divide(size, offset + stride - 1, stride),
        ]
    return [floor_divide(size, offset + stride, stride)]


def _convolution(op: OpEvent, inputs) -> Iterator[tuple[int, list[str]]]:
    stride, padding, dilation, transposed, extra = op.settings[3:8]
    windows = inputs[1][2:]
    for i, (size, window) in enumerate(zip(inputs[0][2:], windows, strict=True)):
        if size == "?" or not window.isdecimal():
            continue
        s, p, d = (_at(setting, i) for setting in (stride, padding, dilation))
        if transposed:
            offset = d * (int(window) - 1) + 1 + _at(extra, i) - 2 * p - s
            yield i + 2, [f"{s}*({size}) + {offset}"]
        else:
            yield i + 2, _window_count(size, int(window), s, p, d)


def _pooling(op: OpEvent, inputs) -> Iterator[tuple[int, list[str]]]:
    windows, stride, padding, *rest = op.settings[1:]
    dilation, up = (1, rest[0]) if op.name.startswith("avg") else (rest[0], rest[1])
    count = len(windows)
    rank = len(inputs[0])
    for i in range(count):
        window = _at(windows, i)
        s, p, d = (_at(setting, i) for setting in (stride or windows, padding, dilation))
        yield rank - count + i, _window_count(inputs[0][rank - count + i], window, s, p, d, up)


def _slice(op: OpEvent, inputs) -> Iterator[tuple[int, list[str]]]:
    axis, start, end, step = op.settings[1:5]
    axis %= len(inputs[0])
    size, length = inputs[0][axis], op.inputs[0][0][axis]
    start, end = start or 0, length if end is None else end
    if size != "?":
        first = start if start >= 0 else f"({size}) + ({start})"
        last = f"({size})" if end >= length else f"({size}) + ({end})" if end < 0 else end
        yield axis, [floor_divide(f"{last} - ({first})", step - 1, step)]


def _unfold(op: OpEvent, inputs) -> Iterator[tuple[int, list[str]]]:
    axis, window, step = op.settings[1:4]
    yield axis % len(inputs[0]), _window_count(inputs[0][axis], window, step, 0, 1)


def _padding(op: OpEvent, inputs) -> Iterator[tuple[int, list[str]]]:
    pads, rank = op.settings[1], len(inputs[0])
    for i in range(len(pads) // 2):
        size = inputs[0][rank - 1 - i]
        if size != "?":
            yield rank - 1 - i, [f"({size}) + {pads[2 * i] + pads[2 * i + 1]}"]


def _fill_windows(same: list[OpEvent], inputs) -> Iterator[tuple[int, list[str]]]:
    """Yield axes that are padded to the next multiple of a number, if only one number fits all runs."""
    rank = len(inputs[0])
    for i in range(len(same[0].settings[1]) // 2):
        axis, pads = rank - 1 - i, [sum(op.settings[1][2 * i : 2 * i + 2]) for op in same]
        if inputs[0][axis] == "?" or len(set(pads)) == 1 or min(pads) < 0:
            continue
        whole = gcd(*(op.outputs[0][0][axis] for op in same))
        windows = [k for k in range(max(pads) + 1, whole + 1) if whole % k == 0]
        if len(windows) == 1:
            yield axis, [f"{windows[0]}*({floor_divide(inputs[0][axis], windows[0] - 1, windows[0])})"]


def _merge_axes(same: list[OpEvent], inputs) -> Iterator[tuple[int, list[str]]]:
    """Yield the axes that a reshape merges from several, the same ones in all runs."""
    groups = {_groups(op.inputs[0][0], op.outputs[0][0]) for op in same}
    for axis, parts in enumerate(min(groups) if len(groups) == 1 else ()):
        sizes = [inputs[0][part] for part in parts]
        if len(parts) > 1 and "?" not in sizes:
            yield axis, ["*".join(f"({size})" for size in sizes)]
    if () in groups and "?" not in inputs[0]:
        yield from _remaining_axis(same, inputs[0])


def _remaining_axis(same: list[OpEvent], before: Shape) -> Iterator[tuple[int, list[str]]]:
    """Yield the one axis of a reshape that takes the remaining size, if all others have one size in all runs."""
    shapes = [(op.inputs[0][0], op.outputs[0][0]) for op in same]
    first = next(i for i in range(len(before)) if any(i >= len(b) or a[i] != b[i] for a, b in shapes))
    columns = [{b[axis] for _, b in shapes} for axis in range(len(shapes[0][1]))]
    moving = [axis for axis in range(first, len(columns)) if len(columns[axis]) > 1]
    if len(moving) == 1:
        others = prod(min(columns[axis]) for axis in range(first, len(columns)) if axis != moving[0])
        whole = "*".join(f"({size})" for size in before[first:])
        yield moving[0], [f"({whole})/{others}"]


def _groups(before: Sequence[int], after: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the axes that each axis of a result is merged from; empty if one is split."""
    left, groups = list(range(len(before))), []
    for size in after:
        parts: list[int] = []
        while (
            left
            and prod(before[part] for part in parts) * before[left[0]] <= size
            and (not parts or prod(before[part] for part in parts) != size)
        ):
            parts.append(left.pop(0))
        if prod(before[part] for part in parts) != size:
            return ()
        groups.append(tuple(parts))
    return tuple(groups) if not left else ()


def _at(setting, position: int) -> int:
    """Return the number at a position; a single number is for all axes."""
    if isinstance(setting, int):
        return setting
    return setting[position] if len(setting) > 1 else setting[0]


READERS = {
    "convolution": _convolution,
    "slice": _slice,
    "unfold": _unfold,
    "pad": _padding,
    "pooling": _pooling,
}
"""The size rules of `tracer.ops`."""
