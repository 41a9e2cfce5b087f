"""Probing a module that nobody described: sizes are axes of its inputs, named by the caller."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tracer.probe import Vocabulary
from tracer.quoting import quoted

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23)


def named_axes(module, args, kwargs, inputs: dict[str, torch.Tensor], symbols: dict, build: Callable | None):
    """The vocabulary, the sizes of this run and those of two probes, from `symbols={"B": 0, "T": ("ids", 1)}`.

    With `build`, an axis of a parameter is a symbol too: `{"D": ("proj.weight", 0)}`. Returns `(None, {}, [])` without
    symbols. ValueError quotes a symbol whose axis there is not.
    """
    if not symbols:
        return None, {}, []
    known = {**(dict(module.named_parameters()) if build else {}), **inputs}
    axes = {name: _axes(name, place, inputs if isinstance(place, int) else known) for name, place in symbols.items()}
    sizes = {name: known[places[0][0]].shape[places[0][1]] for name, places in axes.items()}
    others = [{name: _other(size, i, probe) for i, (name, size) in enumerate(sizes.items())} for probe in range(2)]

    def resized(at: dict[str, int]):
        wanted: dict[str, dict[int, int]] = {}
        for name, places in axes.items():
            for given, axis in places:
                wanted.setdefault(given, {})[axis] = at[name]
        changed = {id(inputs[given]): _resize(inputs[given], shape) for given, shape in wanted.items()}
        return module, _swap(tuple(args), changed), _swap(kwargs, changed)

    return Vocabulary(tuple(symbols), {}, build or resized), sizes, others


def _axes(name, place, inputs) -> list[tuple[str, int]]:
    if isinstance(place, int):
        found = [(given, place) for given, tensor in inputs.items() if -tensor.dim() <= place < tensor.dim()]
    else:
        given, axis = place
        found = [place] if given in inputs and -inputs[given].dim() <= axis < inputs[given].dim() else []
    if not found:
        shapes = ", ".join(f"{given} {list(tensor.shape)}" for given, tensor in inputs.items())
        raise ValueError(f"symbols: {quoted(name)} is said to be axis {quoted(place)}, which there is not: {shapes}")
    return [(given, axis % inputs[given].dim()) for given, axis in found]


def _other(size: int, position: int, probe: int) -> int:
    """A small prime other than the run's size, different for every symbol and probe."""
    primes = [prime for prime in PRIMES if prime != size]
    return primes[(2 * position + probe) % len(primes)]


def _resize(tensor: torch.Tensor, sizes: dict[int, int]) -> torch.Tensor:
    """The tensor with axes repeated or cut to other sizes, so that values stay in range."""
    for axis, size in sizes.items():
        index = torch.arange(size, device=tensor.device) % tensor.shape[axis]
        tensor = tensor.index_select(axis, index)
    return tensor


def _swap(value, changed):
    if isinstance(value, torch.Tensor):
        return changed.get(id(value), value)
    if isinstance(value, dict):
        return {key: _swap(item, changed) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_swap(item, changed) for item in value)
    return value
