"""What of a run varies with the way in which forward is called, besides values and sizes: with the order of keys, with
numbers, with the memory layout of tensors, with sizes that have one name for several inputs."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from tracer.capture import OpEvent, Recording
from tracer.capture.calls import Call
from tracer.capture.logged_sizes import Scalars
from tracer.capture.tensors import named_tensors
from tracer.shapes.alignment import Dataflow, Match, align, find_diverging_ops
from tracer.shapes.solver import CallIndex, Key, find_changing
from tracer.utils.torch_internals import tree_map_only

ORDER_NOTE = "It is so for the keys of `{}` in this order: in another order, the code computes something else."
NUMBER_NOTE = "It is so where `{}` is {}: for another number, the code computes something else."
LAYOUT_NOTE = (
    "It is so for inputs with these strides: with others, a write reaches other tensors, since a copy takes the place"
    " of a view."
)
APART_NOTE = "It is so where {} have one {}: where it differs, the code computes something else."
AFTER_NOTE = "It is so as long as no call with {} came before: {} is read here, and such a call changes it."

MAX_NUMBERS = 4
"""Numbers among the arguments that are changed, each in a run of its own."""

Arguments = tuple[tuple, dict[str, Any]]
Axes = Mapping[str, Sequence[tuple[str, int]]]


class Variation(NamedTuple):
    """Another way to call a forward: `change` returns its arguments by their names, and `note` is for what differs. Of
    sizes that are `apart`, only what has no formula is compared; with `writes`, only what reads a write in place."""

    note: str
    change: Callable[[dict[str, Any]], dict[str, Any]]
    apart: bool = False
    writes: bool = False


def variations(
    arguments: Mapping[str, Any], sizes: Mapping[str, int], axes: Axes, ops: Sequence[OpEvent]
) -> Iterator[Variation]:
    """Yield the ways in which a forward with these arguments may be called otherwise; `axes` have the `sizes`."""
    numbers = 0
    for path, value in _leaves((), arguments):
        name = ".".join(map(str, path))
        if isinstance(value, dict):
            yield Variation(ORDER_NOTE.format(name), partial(_replace, path=path, change=_reverse))
        elif numbers < MAX_NUMBERS:
            numbers += 1
            yield Variation(NUMBER_NOTE.format(name, value), partial(_replace, path=path, change=_other_number))
    for name, places in axes.items():
        keys = list(dict.fromkeys(key for key, _ in places))
        if len(keys) > 1 and sizes[name] > 1 and any(axis for _, axis in places):  # samples are never apart
            named = " and ".join(f"`{key}`" for key in keys)
            for key in keys[:2]:
                shorten = partial(_shorten, key=key, axes=[axis for own, axis in places if own == key])
                yield Variation(APART_NOTE.format(named, name), shorten, apart=True)
    if any(_writes(op) and isinstance(at := op.inputs[0][2], int) and ops[at].layout for op in ops if op.inputs):
        yield Variation(LAYOUT_NOTE, partial(tree_map_only, torch.Tensor, _with_other_strides), writes=True)


def bind(module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by the names of the forward's parameters. Raise TypeError where they don't fit."""
    return dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments)


def call_with(module: torch.nn.Module, arguments: Mapping[str, Any]) -> Arguments:
    """Return the arguments of a call from those by name."""
    bound = inspect.BoundArguments(inspect.signature(module.forward), OrderedDict(arguments))
    return bound.args, bound.kwargs


def _leaves(path: tuple, value: Any) -> Iterator[tuple[tuple, Any]]:
    """Yield the numbers in a value, and the dictionaries of several items, by their paths."""
    if type(value) in (int, float):
        yield path, value
    elif type(value) in (dict, OrderedDict):
        if path and len(value) > 1:
            yield path, value
        for key, item in value.items():
            yield from _leaves((*path, key), item)
    elif type(value) in (list, tuple):
        for place, item in enumerate(value):
            yield from _leaves((*path, place), item)


def _replace(value: Any, path: tuple, change: Callable[[Any], Any]) -> Any:
    """Return a nested value with another part at a path."""
    if not path:
        return change(value)
    if isinstance(value, dict):
        return type(value)((key, _replace(v, path[1:], change) if key == path[0] else v) for key, v in value.items())
    return type(value)(_replace(v, path[1:], change) if place == path[0] else v for place, v in enumerate(value))


def _reverse(value: dict) -> dict:
    return type(value)(reversed(value.items()))


def _other_number(value: float) -> float:
    if isinstance(value, int):
        return value - 1 if value > 2 else value + 1
    return 0.75 * value or 0.25


def _shorten(arguments: dict[str, Any], key: str, axes: Sequence[int]) -> dict[str, Any]:
    """Return the arguments with fewer places along some axes of a tensor."""
    known = {name: tensor for argument, value in arguments.items() for name, tensor in named_tensors(argument, value)}
    shortened = tensor = known[key]
    for axis in axes:
        shortened = shortened.narrow(axis, 0, (tensor.shape[axis] + 1) // 2)
    return tree_map_only(torch.Tensor, lambda own: shortened.clone() if own is tensor else own, arguments)


def _with_other_strides(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same numbers in another memory layout."""
    if tensor.dim() < 2 or not tensor.is_contiguous():
        return tensor.contiguous()
    axes = tuple(reversed(range(tensor.dim())))
    return tensor.permute(axes).contiguous().permute(axes)


def _writes(op: OpEvent) -> bool:
    return op.name.endswith("_") and not op.layout


def _cuts(op: OpEvent) -> bool:
    """Return whether an op takes a part of a tensor."""
    return op.name == "slice" and op.inputs[0][0] != op.outputs[0][0]


def _readers_of_cuts(recording: Recording) -> set[int]:
    """Return the ops of a run that read a part of a tensor."""
    cuts = {number for number, op in zip(recording.numbers, recording.ops, strict=False) if _cuts(op)}
    return {place for place, op in enumerate(recording.ops) if any(maker in cuts for *_, maker in op.inputs)}


class Comparison:
    """A comparison of a run with others of the same sizes: with the same arguments, `base`, and with others."""

    def __init__(
        self,
        run: Sequence[OpEvent],
        returned: Sequence[int | str],
        calls: Sequence[Call],
        entries: Mapping[Key, Scalars],
        base: Recording,
    ):
        self._run, self._returned, self._calls, self._entries, self._base = run, returned, calls, entries, base
        self._match = align(run, base.ops)
        self._same = self._diverging(base, self._match)

    def dependents(
        self, varied: Recording, variation: Variation | None = None, solved: Collection[Key] = ()
    ) -> set[int]:
        """Return the ops that compute something else in a run with other arguments, or behind another call; `solved`
        are the calls of which a number has a formula."""
        apart = variation is not None and variation.apart
        match = align(self._run, varied.ops)
        diverging = self._diverging(varied, match) - self._same
        if variation is not None and variation.writes:
            return {op for pair in diverging for op in pair if self._reads_write(pair, varied, match) and op >= 0}
        ops = {op for op, _ in diverging}
        owners = [CallIndex(recording.scalars, recording.numbers) for recording in (self._base, varied)]
        for key, entry in self._entries.items():
            pair = owners[0].of(entry, self._match), owners[1].of(entry, match)
            if not (apart and key in solved) and any(find_changing(pair)):
                ops.update(range(entry.first, entry.last))
        constants = set[int | str]()
        whole, cut = (_readers_of_cuts(recording) if apart else set() for recording in (self._base, varied))
        for i, (j, k) in enumerate(zip(self._match, match, strict=True)):
            if j is None or k is None:
                continue
            before, after = self._base.ops[j], varied.ops[k]
            if apart:
                ops.update([i] if k in cut and j not in whole else [])
                continue
            digests = (
                [record.constants.get((record.numbers[op], place)) for place in range(len(before.inputs))]
                for record, op in ((self._base, j), (varied, k))
            )
            changed = any(a and b and a != b for a, b in zip(*digests, strict=True))
            changed = changed or any(maker in constants for *_, maker in self._run[i].inputs)
            if changed and self._run[i].layout:  # it belongs to the line that reads it
                constants.add(i)
            if changed or [shape for shape, *_ in before.outputs] != [shape for shape, *_ in after.outputs]:
                ops.add(i)
        return ops

    def _diverging(self, recording: Recording, match: Match) -> set[tuple[int, int]]:
        return {*find_diverging_ops(self._run, self._returned, self._calls, recording, match)}

    def _reads_write(self, pair: tuple[int, int], varied: Recording, match: Match) -> bool:
        """Return whether an op that diverges reads what was written in place, in one of both runs."""
        op, maker = pair
        if maker >= 0 and _writes(self._run[maker]):
            return True
        there = match[op]
        if there is None:
            return False
        places = {number: place for place, number in enumerate(varied.numbers)}
        sources = Dataflow(varied.ops, varied.numbers).sources(varied.ops[there])
        return any(isinstance(source, int) and _writes(varied.ops[places.get(source, source)]) for source in sources)
