"""Tensors within the inputs and outputs of a forward: in lists, tuples, dictionaries, and dataclasses, at which
PyTorch's own walk ends."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor
from torch.nn import Module

from tracer.utils import devices
from tracer.utils.tensor_diff import identical


def named_tensors(name: str, value) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in a value, each by its path: `batch.x`, `batch.0`. Items of `**kwargs` have names of their
    own."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from named_tensors(str(key) if name == "kwargs" else f"{name}.{key}", item)
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from named_tensors(f"{name}.{position}", item)
    elif holds_fields(value):
        for field in fields(value):
            yield from named_tensors(f"{name}.{field.name}", getattr(value, field.name, None))


def output_tensors(value) -> list[tuple[str, Tensor]]:
    """Return all tensors in a forward's output, with the path of each as Python spells it: `logits`, `[1]`,
    `past_key_values.layers[0].keys`, "" for the value itself; also those in the attributes of plain objects, such as
    caches."""
    leaves = _leaves("", value, set())
    return [(re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", name).lstrip("."), tensor) for name, tensor in leaves]


def same_outputs(first, second) -> bool:
    """Return whether two outputs of a forward have the same tensors, bit by bit."""
    first, second = output_tensors(first), output_tensors(second)
    return len(first) == len(second) and all(identical(a, b) for (_, a), (_, b) in zip(first, second, strict=True))


def _leaves(name: str, value, visited: set[int]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors below a value; an object that refers to itself is walked once."""
    if isinstance(value, Tensor):
        yield name, value
        return
    if isinstance(value, (type, Module)) or id(value) in visited:
        return
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(str(position), item) for position, item in enumerate(value)]
    elif holds_fields(value):
        items = [(field.name, getattr(value, field.name, None)) for field in fields(value)]
    else:
        items = [(key, item) for key, item in getattr(value, "__dict__", {}).items() if not key.startswith("_")]
    visited.add(id(value))
    for key, item in items:
        yield from _leaves(f"{name}.{key}", item, visited)


def copy_tensors(value) -> Any:
    """Return a forward's output with copies of its tensors, on the CPU."""
    if isinstance(value, Tensor):
        return devices.copy_to_cpu(value)
    if isinstance(value, dict):
        return {key: copy_tensors(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(copy_tensors, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(copy_tensors, value))
    if holds_fields(value):
        duplicate = copy.copy(value)
        for field in fields(value):
            if hasattr(value, field.name):
                object.__setattr__(duplicate, field.name, copy_tensors(getattr(value, field.name)))
        return duplicate
    return value


def holds_fields(value) -> bool:
    """Return whether a value is an instance of a dataclass."""
    return is_dataclass(value) and not isinstance(value, type)
