"""Inputs at the sizes that a net expects, read from its error messages where the first ones don't fit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod

import torch

from tracer.zoo.hf.dummy.input_signatures import Feed, usual

MAX_AXIS = 16384
"""Numbers along an axis that are given."""


def resize(feed: Feed, config, message: str) -> Iterator[Feed]:
    """Return the feed with one axis resized as an error message asks; if no axis has the size in the message, the
    last axis in proportion."""
    known = _shapes(feed, config)
    for name, *_ in feed.resized_axes:
        known.pop(name, None)  # one size is tried of each
    size_error = next(((match, wanted) for form, wanted in SIZE_ERRORS if (match := form.search(message))), None)
    if size_error is None:
        return
    match, wanted = size_error
    groups = [tuple(map(int, NUMBER.findall(part))) for part in match.groups()]
    changes = [
        (name, axis % len(shape), expected)
        for axis, size, expected in wanted(*groups)
        for name, shape in known.items()
        if len(shape) > 1 and -len(shape) <= axis < len(shape) and shape[axis] == size != expected
    ]
    if not changes and wanted is _matmul_axes:
        (_, came), (expected, _) = groups
        changes = [
            (name, len(shape) - 1, shape[-1] * expected // came)
            for name, shape in known.items()
            if len(shape) > 1 and not came % shape[-1] and not shape[-1] * expected % came
        ]
    for name, axis, size in dict.fromkeys(changes):
        if 0 < size <= MAX_AXIS:
            yield feed._replace(resized_axes=(*feed.resized_axes, (name, axis, size)))


def enlarge(feed: Feed, config, message: str) -> Iterator[Feed]:
    """Return the feed with the input of highest rank twice as large, if a net reports it as too small: along the
    last axis, or both sides of a photo."""
    shapes = _shapes(feed, config) if any(form in message for form in SMALL_INPUT_ERRORS) else {}
    name = max(shapes, key=lambda input_name: len(shapes[input_name]), default="")
    shape = shapes.get(name, torch.Size())
    larger = [(name, axis, 2 * shape[axis]) for axis in range(len(shape))][-2 if len(shape) > 3 else -1 :]
    if len(shape) > 1 and max(size for *_, size in larger) <= MAX_AXIS:
        remaining = [
            input_name for input_name in feed.resized_axes if input_name[:2] not in [each[:2] for each in larger]
        ]
        yield feed._replace(resized_axes=(*remaining, *larger))


def _shapes(feed: Feed, config) -> dict[str, torch.Size]:
    inputs = feed.make(config, usual(config))
    return {name: tensor.shape for name, tensor in inputs.items() if isinstance(tensor, torch.Tensor)}


def _matmul_axes(left: tuple, right: tuple) -> list[tuple[int, int, int]]:
    return [(-1, left[1], right[0])]


def _channels(came: tuple, expected: tuple, shape: tuple) -> list[tuple[int, int, int]]:
    return [(1, shape[0], expected[0]), (-1, shape[0], expected[0])]


def _met_by(left: tuple, right: tuple, axis: tuple) -> list[tuple[int, int, int]]:
    return [(place, a, b) for place in (axis[0], -1) for a, b in ((left[0], right[0]), (right[0], left[0]))]


def _cat_axes(along: tuple, left: tuple, right: tuple) -> list[tuple[int, int, int]]:
    return [(axis, a, b) for axis in (-2, -1) for a, b in ((left[0], right[0]), (right[0], left[0]))]


def _mask_axes(mask: tuple, place: tuple, indexed: tuple) -> list[tuple[int, int, int]]:
    return [(place[0], mask[place[0]], indexed[place[0]])]


def _view_axes(shape: tuple, count: tuple) -> list[tuple[int, int, int]]:
    """Return an axis as long as one row of the new shape, or the next multiple of it."""
    row = prod(size for size in shape if size > 0)
    sizes = [count[0] // rows for rows in range(1, MAX_AXIS) if not count[0] % rows] if row else []
    return [(-1, size, -(-size // row) * row) for size in sizes if size % row]


def _whole(length: tuple, unit: tuple) -> list[tuple[int, int, int]]:
    return [(-1, length[0], -(-length[0] // unit[0]) * unit[0])]


NUMBER = re.compile(r"-?\d+")
SMALL_INPUT_ERRORS = (
    "size is too small",
    "is too small to be",
    "can't be greater than actual input size",
    "index k out of range",
)
"""Error messages for inputs that are too small to be filtered, pooled, or chosen from."""
SIZE_ERRORS = (
    (re.compile(r"shapes cannot be multiplied \((\d+x\d+) and (\d+x\d+)\)"), _matmul_axes),
    (re.compile(r"expected input(\[.*?\]) to have (\d+) channels, but got (\d+)"), _channels),
    (re.compile(r"tensor a \((\d+)\) must match .* tensor b \((\d+)\) at non-singleton dimension (\d+)"), _met_by),
    (re.compile(r"shape of the mask (\[.*?\]) at index (\d+) .* indexed tensor (\[.*?\])"), _mask_axes),
    (re.compile(r"shape '(\[.*?\])' is invalid for input of size (\d+)"), _view_axes),
    (re.compile(r"must match except in dimension (\d+)\. Expected size (\d+) but got size (\d+)"), _cat_axes),
    (re.compile(r"length (\d+) is not a multiple of (\d+)"), _whole),
)
"""Error messages with an expected size, and a function to (axis, its size, the expected size) triples."""
