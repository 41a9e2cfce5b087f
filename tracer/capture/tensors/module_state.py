"""Snapshot and restoration of module state around a forward: attributes, caches, counters.

Objects are compared by identity, containers item by item, so that looking costs little and what is as it was is not
touched.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from operator import is_
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

MAX_OBJECTS = 20_000
"""Objects that are looked at: what a module holds beyond that, such as a vocabulary, is not a state of a forward."""
_ATOMS = frozenset(
    (str, bytes, int, float, complex, bool, type(None), type, FunctionType, ModuleType, torch.dtype, torch.device)
)
_CONTAINERS = frozenset((dict, OrderedDict, list, set, deque))
_STANDARD = sys.stdlib_module_names | {"torch", "numpy"}
"""Packages whose objects are not looked into: locks, loggers, generators, arrays."""

_lock = threading.Lock()
_running: dict[int, list] = {}
"""By the id of a module whose traces run now: how many, and its state before the first."""


class StateSnapshot:
    """A snapshot of some objects and everything that they hold; `tensors` are those among them."""

    def __init__(self, *roots):
        self.tensors: list[Tensor] = []
        self._snapshots: list[tuple[Any, Any]] = []
        self._empty: list = []
        known, left = set(), list(roots)
        while left and len(known) < MAX_OBJECTS:
            value = left.pop()
            if id(value) not in known:
                known.add(id(value))
                for item in self._look(value):
                    kind = type(item)
                    if kind in _CONTAINERS and not item:  # most of what a module has: dictionaries of hooks
                        self._empty.append(item)
                    elif kind not in _ATOMS:
                        left.append(item)

    def _look(self, value) -> Iterable:
        """Note the contents of one object, and return them."""
        if isinstance(value, Tensor):
            self.tensors.append(value)
            return []
        if isinstance(value, tuple):
            return value
        if isinstance(value, MethodType):
            return [value.__self__]
        if isinstance(value, (dict, list, set, deque)):
            if not value:
                self._empty.append(value)
                return []
            before = dict(value) if isinstance(value, dict) else list(value)
            self._snapshots.append((value, before))
            return before.values() if isinstance(before, dict) else before
        attributes = getattr(value, "__dict__", None)
        package = type(value).__module__.partition(".")[0]
        if type(attributes) is not dict or (package in _STANDARD and not isinstance(value, nn.Module)):
            return []
        self._snapshots.append((attributes, before := attributes.copy()))
        return before.values()

    def restore(self) -> None:
        """Restore everything."""
        for value in self._empty:
            if value:
                value.clear()
        for value, before in self._snapshots:
            if isinstance(value, dict):
                if not (_same(value, before) and _same(value.values(), before.values())):
                    _replace(value, before)
            elif isinstance(value, set):
                if len(value) != len(before) or not value.issuperset(before):
                    value.clear()
                    value.update(before)
            elif not _same(value, before):
                value.clear()
                value.extend(before)


def _same(current: Collection, before: Collection) -> bool:
    """Return whether both hold the very same objects, in the same order."""
    return len(current) == len(before) and all(map(is_, current, before))


def _replace(current: dict, before: dict) -> None:
    """Replace the items of a dictionary, in their order; items that stay are never missing in between, since others may
    read it."""
    for key in current.keys() - before.keys():
        del current[key]
    current.update(before)
    if list(current) != list(before):
        for key, value in before.items():
            del current[key]
            current[key] = value


@contextmanager
def restoring(module: nn.Module, *values) -> Iterator[list[Tensor]]:
    """Restore the module, its inputs and the random numbers when the block ends; yield the tensors among them, whose
    values the caller restores.

    While several threads trace one module, the last of them does: no thread has a cache taken away that it is reading.
    """
    draws = torch.get_rng_state(), random.getstate()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    with _lock:
        entry = _running.setdefault(id(module), [0, None])
        if entry[0] == 0:
            entry[1] = StateSnapshot(module)
        entry[0] += 1
    inputs = StateSnapshot(values)
    try:
        yield entry[1].tensors + inputs.tensors
    finally:
        inputs.restore()
        with _lock:
            entry[0] -= 1
            if entry[0] == 0:
                del _running[id(module)]
                entry[1].restore()
        torch.set_rng_state(draws[0])
        if random.getstate() != draws[1]:
            random.setstate(draws[1])
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
