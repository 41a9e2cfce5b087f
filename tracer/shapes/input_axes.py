"""Probing of an undescribed module: sizes are axes of its inputs, named by the caller."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from math import prod

import torch

from tracer.capture import Recording
from tracer.capture.callable_module import Function
from tracer.shapes import Vocabulary
from tracer.shapes.probe_sizes import candidate_probes, choose_sizes
from tracer.shapes.shadow_module import parameters, shadow_copy, without_values
from tracer.symbols import cost
from tracer.utils.error_text import quote

HEAVY_FLOPS = 2**35
"""FLOPs of a probe above which the module first runs on tensors without values."""

Attempts = Iterator[tuple[Vocabulary, list[dict[str, int]]]]


def named_axes(
    module,
    args,
    kwargs,
    recording: Recording,
    symbols: dict,
    build: Callable | None,
    adapt: Callable[[Vocabulary], Vocabulary] = lambda vocabulary: vocabulary,
) -> tuple[dict[str, int], Attempts]:
    """Return the sizes of this run, from `symbols={"B": 0, "T": ("ids", 1)}`, and ways to solve its dimensions.

    A way is a vocabulary and the sizes of its probes; the first comes first. There is none without symbols. With
    `build`, an axis of a parameter can be a symbol, too: `{"D": ("proj.weight", 0)}`. Probes run a copy of the module
    and of its inputs that shares its parameters; `adapt` changes the vocabulary of each way. Raise ValueError for a
    symbol of a missing axis, of axes of several sizes, or of an axis that another symbol names.
    """
    if not isinstance(symbols, Mapping):
        raise ValueError(f"symbols={quote(symbols)} names no axes, expected something like {{'B': 0, 'T': ('ids', 1)}}")
    if not symbols:
        return {}, iter(())
    inputs = recording.inputs
    known = {**(dict(module.named_parameters()) if build else {}), **inputs}
    axes = {name: _axes(name, place, inputs if isinstance(place, int) else known) for name, place in symbols.items()}
    sizes = {name: _size(name, places, known) for name, places in axes.items()}
    _check_once(axes)

    def attempts() -> Attempts:
        if build:
            yield from candidate_probes(adapt(Vocabulary(tuple(symbols), {}, build)), sizes)
            return
        heavy = probe_flops(recording, sizes) > HEAVY_FLOPS
        for vocabulary in copies(module, recording, axes, heavy):
            yield from candidate_probes(adapt(vocabulary), sizes, heavy and vocabulary.mode is None)

    return sizes, attempts()


def copies(
    module: torch.nn.Module, recording: Recording, axes: dict[str, list[tuple[str, int]]], heavy: bool
) -> Iterator[Vocabulary]:
    """Yield vocabularies of copies of a module and its inputs, with these axes at other sizes.

    A heavy module first runs on tensors without values, then any on real ones.
    """
    args, kwargs = recording.arguments

    def make_vocabulary(shared: dict[int, torch.Tensor], ready: Callable, mode=None) -> Vocabulary:
        copied = {id(module): shadow_copy(module, shared), **shared}

        def build(at: dict[str, int]) -> tuple:
            wanted: dict[str, dict[int, int]] = {}
            for name, places in axes.items():
                for key, axis in places:
                    wanted.setdefault(key, {})[axis] = at[name]
            inputs = recording.inputs.items()
            changed = {id(tensor): ready(resize(tensor, wanted.get(name, {}))) for name, tensor in inputs}
            return shadow_copy((module, args, kwargs), copied | changed)

        return Vocabulary(tuple(axes), {}, build, mode)

    outside = isinstance(module, Function) and not module.owned  # a function reads what it reads: no copy of it
    if heavy and not outside:
        shared, mode = without_values(module)
        yield make_vocabulary(shared, mode.from_tensor, lambda: mode)
    yield make_vocabulary(parameters(module) | ({id(module): module} if outside else {}), copy.copy)


def copies_at_same_sizes(module: torch.nn.Module, recording: Recording) -> Iterator[Vocabulary]:
    """Yield vocabularies of copies of a module at the sizes of a run without named axes, in order of preference."""
    return copies(module, recording, {}, flops(recording) > HEAVY_FLOPS)


def probe_flops(recording: Recording, sizes: dict[str, int]) -> float:
    """Return the approximate FLOPs of the largest probe: those of the run, in proportion to its sizes."""
    return flops(recording) * max(prod(probe.values()) for probe in choose_sizes(sizes)) / prod(sizes.values())


def flops(recording: Recording) -> int:
    """Return the approximate FLOPs of a run."""
    return sum(
        cost.flops(op.name, tuple(shape for shape, *_ in op.inputs), op.outputs[0][0]) or 0
        for op in recording.ops
        if op.outputs and not op.layout
    )


def _axes(name, place, inputs) -> list[tuple[str, int]]:
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"symbols: {quote(name)} is not a name for a size, expected letters, digits and _")
    if isinstance(place, int):
        axes = [(key, place) for key, tensor in inputs.items() if -tensor.dim() <= place < tensor.dim()]
    elif isinstance(place, tuple) and len(place) == 2 and isinstance(place[1], int):
        key, axis = place
        known = {name: tensor for name, tensor in inputs.items() if name == key or fnmatchcase(name, key)}
        axes = [(name, axis) for name, tensor in known.items() if -tensor.dim() <= axis < tensor.dim()]
    else:
        raise ValueError(f"symbols: {quote(name)} is said to be {quote(place)}, expected an axis, or (input, axis)")
    if not axes:
        shapes = ", ".join(f"{key} {list(tensor.shape)}" for key, tensor in inputs.items())
        raise ValueError(f"symbols: {quote(name)} is said to be axis {quote(place)}, which there is not: {shapes}")
    return [(key, axis % inputs[key].dim()) for key, axis in axes]


def _size(name: str, places: list[tuple[str, int]], known) -> int:
    sizes = {known[key].shape[axis]: (key, axis) for key, axis in places}
    if len(sizes) > 1:
        sizes_text = ", ".join(
            f"{size} in axis {axis} of {quote(key)}" for size, (key, axis) in list(sizes.items())[:2]
        )
        raise ValueError(f"symbols: {quote(name)} is {sizes_text}; expected one input, as in {{{name!r}: {places[0]}}}")
    return next(iter(sizes))


def _check_once(axes: dict[str, list[tuple[str, int]]]) -> None:
    """Raise ValueError if two symbols name one axis."""
    named: dict[tuple[str, int], str] = {}
    for name, places in axes.items():
        for place in places:
            if place in named:
                both = f"{quote(named[place])} and {quote(name)}"
                raise ValueError(
                    f"symbols: {both} both name axis {place[1]} of {quote(place[0])}, expected one of them"
                )
            named[place] = name


def resize(tensor: torch.Tensor, sizes: dict[int, int]) -> torch.Tensor:
    """Return a tensor with axes repeated or cut to other sizes, so that values stay in range.

    Its memory layout stays, since the ops depend on it.
    """
    resized = tensor.detach()
    if not sizes:
        return resized
    for axis, size in sizes.items():
        resized = resized.index_select(axis, torch.arange(size, device=tensor.device) % tensor.shape[axis])
    return resized if tensor.is_contiguous() else _with_layout_of(resized, tensor)


def _with_layout_of(resized: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the same values with the memory layout of `like`: its order of axes, its gaps, its expanded axes."""
    whole, strides = resized.shape, [0] * resized.dim()
    dense = dense_like = 1
    for axis in sorted(range(like.dim()), key=like.stride):
        if like.stride(axis) == 0:
            resized = resized.narrow(axis, 0, 1)
            continue
        strides[axis] = dense + (like.stride(axis) > dense_like)
        dense, dense_like = strides[axis] * whole[axis], like.stride(axis) * like.shape[axis]
    return (
        torch.empty_strided(resized.shape, strides, dtype=resized.dtype, device=resized.device)
        .copy_(resized)
        .expand(whole)
    )
