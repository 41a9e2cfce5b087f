"""State that a forward reads and changes, as it was before: of its module, of what its code reads around it, and of
random numbers.

Objects are compared by identity, containers item by item, so that looking costs little and what is as it was is not
touched.
"""

from __future__ import annotations

import pickle
import random
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from operator import is_
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tracer.capture.outer_values import (
    CHANGED,
    ITERATOR,
    Binding,
    StateName,
    is_own_class,
    names_of_draws,
    outer_values,
)
from tracer.utils.torch_internals import buffers_of

MAX_OBJECTS = 20_000
"""Objects that are looked at: what a module holds beyond that, such as a vocabulary, is not a state of a forward."""
MAX_OUTER_OBJECTS, MAX_OUTER_ITEMS = 2_000, 10_000
"""Objects that are looked at in a value outside of the module, and items of a container there."""
MAX_ARRAY_BYTES = 2**20
"""Bytes of an array of NumPy that is compared and put back."""
_ATOMS = frozenset(
    (str, bytes, int, float, complex, bool, type(None), type, FunctionType, ModuleType, torch.dtype, torch.device)
)
_CONTAINERS = frozenset((dict, OrderedDict, list, set, deque))
_OF_MODULES = frozenset(vars(nn.Module()))
"""Names of the attributes of every module."""
_STANDARD = sys.stdlib_module_names | {"torch", "numpy"}
"""Packages whose objects are not looked into: locks, loggers, generators, arrays."""

_lock = threading.Lock()
_running: dict[int, list] = {}
"""By the id of a module whose traces run now: how many, and its state before the first."""
_outer: dict[tuple[int, str], _OuterSnapshot] = {}
"""By their keys, the values outside of such modules."""


class Opaque(NamedTuple):
    """An object whose contents are read and put back by functions of its own: a source of random numbers, an array."""

    before: Any
    read: Callable[[], Any]
    put: Callable[[Any], None]

    @classmethod
    def of(cls, value: Any) -> Opaque | None:
        """Return a snapshot of an object; None for one of another kind."""
        numpy = sys.modules.get("numpy") if "numpy.random" in sys.modules else None
        read: Callable[[], Any]
        put: Callable[[Any], None]
        if isinstance(value, random.Random):
            read, put = value.getstate, value.setstate
        elif isinstance(value, torch.Generator):
            read, put = value.get_state, value.set_state
        elif numpy is None:
            return None
        elif isinstance(value, numpy.random.RandomState):
            read, put = value.get_state, value.set_state
        elif isinstance(value, numpy.random.Generator):
            bits = value.bit_generator
            read, put = lambda: bits.state, lambda state: setattr(bits, "state", state)
        elif type(value) is numpy.ndarray and value.nbytes <= MAX_ARRAY_BYTES and not value.dtype.hasobject:
            read, put = value.copy, lambda before: numpy.copyto(value, before)
        else:
            return None
        try:
            return cls(read(), read, put)
        except NotImplementedError:  # such as `random.SystemRandom`
            return None

    def changed(self) -> bool:
        """Return whether the object has other contents now."""
        return _bytes(self.read()) != _bytes(self.before)

    def restore(self) -> None:
        """Put the contents back if they are others."""
        if self.changed():
            self.put(self.before)


def _bytes(value: Any) -> bytes:
    return value.numpy().tobytes() if isinstance(value, Tensor) else pickle.dumps(value)


class StateSnapshot:
    """A snapshot of some objects and everything that they hold; `tensors` are those among them, and `iterators` those
    that can't be put back. Of values outside of a module, less is looked at."""

    def __init__(self, *roots, outer: bool = False):
        self.tensors: list[Tensor] = []
        self.iterators: list[Iterator] = []
        self._outer = outer
        self._snapshots: list[tuple[Any, Any]] = []
        self._opaque: list[tuple[Any, Opaque]] = []
        self._empty: list = []
        self._objects: list = []
        self._holders: dict[int, list] = {}
        known, left = set(), list(roots)
        while left and len(known) < (MAX_OUTER_OBJECTS if outer else MAX_OBJECTS):
            value = left.pop()
            if id(value) not in known:
                known.add(id(value))
                for item in self._look(value):
                    kind = type(item)
                    if kind in _ATOMS:
                        continue
                    if not isinstance(item, (Tensor, nn.Module)) and isinstance(value, (dict, list, set, deque, tuple)):
                        self._holders.setdefault(id(item), []).append(value)
                    if kind in _CONTAINERS and not item:  # most of what a module has: dictionaries of hooks
                        self._empty.append(item)
                    else:
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
            if self._outer and len(value) > MAX_OUTER_ITEMS:
                return []
            if not value:
                self._empty.append(value)
                return []
            before = dict(value) if isinstance(value, dict) else list(value)
            self._snapshots.append((value, before))
            return before.values() if isinstance(before, dict) else before
        if (opaque := Opaque.of(value)) is not None:
            self._opaque.append((value, opaque))
            return []
        attributes = getattr(value, "__dict__", None)
        if type(attributes) is not dict:
            if isinstance(value, Iterator) and type(value).__module__ != "_io":
                self.iterators.append(value)
            return []
        if not self._is_looked_into(value):
            return []
        self._snapshots.append((attributes, before := attributes.copy()))
        self._objects.append(value)
        return before.values()

    def _is_looked_into(self, value: Any) -> bool:
        """Return whether the attributes of an object are a state."""
        if isinstance(value, (nn.Module, SimpleNamespace)):
            return True
        if self._outer:
            return is_own_class(type(value))
        return type(value).__module__.partition(".")[0] not in _STANDARD

    def restore(self) -> None:
        """Restore everything but iterators."""
        for value in self._empty:
            if value:
                value.clear()
        for value, before in self._snapshots:
            if isinstance(value, dict):
                if not _holds(value, before):
                    _replace(value, before)
            elif isinstance(value, set):
                if not _holds(value, before):
                    value.clear()
                    value.update(before)
            elif not _same(value, before):
                value.clear()
                value.extend(before)
        for _, opaque in self._opaque:
            opaque.restore()

    def changed(self) -> set[int]:
        """Return the ids of the containers, and of the dictionaries of attributes, that hold other objects now, of what
        was opaque, of iterators, and of the containers that hold one of these."""
        values = [value for value in self._empty if value]
        values += [value for value, before in self._snapshots if not _holds(value, before)]
        values += [value for value, opaque in self._opaque if opaque.changed()]
        values += self.iterators
        changed: set[int] = set()
        while values:
            value = values.pop()
            if id(value) not in changed:
                changed.add(id(value))
                values += self._holders.get(id(value), ())
        return changed

    def names_changed(self) -> dict[str, str]:
        """Return the names of the attributes that have another value now, of modules and of other objects, each with
        the kind of its state: a plain one, a container with other items, an iterator."""
        changed, names = self.changed(), dict[str, str]()
        before = {id(value): items for value, items in self._snapshots if isinstance(value, dict)}
        iterators = {id(value) for value in self.iterators}
        for part in self._objects if changed else ():
            is_module = isinstance(part, nn.Module)
            for attributes in (vars(part), *([buffers_of(part)] if is_module else [])):
                old = before.get(id(attributes), {})
                for name, value in attributes.items():
                    if is_module and name.startswith("_") and attributes is vars(part) and name in _OF_MODULES:
                        continue
                    if old.get(name, value) is not value or name not in old or id(value) in changed:
                        names[name] = ITERATOR if id(value) in iterators else CHANGED
        return names


def _holds(value: Any, before: Any) -> bool:
    """Return whether a container holds the objects that it held."""
    if isinstance(value, dict):
        return _same(value, before) and _same(value.values(), before.values())
    if isinstance(value, set):
        return len(value) == len(before) and value.issuperset(before)
    return _same(value, before)


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


class _OuterSnapshot:
    """A value outside of a module, by what it is bound to, before all runs that read it; `runs` counts these."""

    def __init__(self, binding: Binding):
        self.binding, self.runs = binding, 0
        self.value = binding.value()
        self.contents = StateSnapshot(self.value, outer=True)

    def names(self) -> Iterator[StateName]:
        """Yield the names by which code reads what has changed."""
        yield from (StateName(name, kind=kind) for name, kind in self.contents.names_changed().items())
        value = self.binding.value()
        if any(value is iterator for iterator in self.contents.iterators):
            yield self.binding.name._replace(kind=ITERATOR)
        elif value is not self.value or id(value) in self.contents.changed():
            yield self.binding.name

    def restore(self) -> None:
        """Put the value and its contents back."""
        if self.binding.value() is not self.value:
            self.binding.put(self.value)
        self.contents.restore()


class HeldState:
    """State of a module and of what is outside of it, while a block runs; `tensors` are those in it and in the inputs,
    whose numbers the caller puts back."""

    def __init__(self, module: nn.Module, bindings: list[Binding], inputs: StateSnapshot):
        self._module, self._bindings, self._inputs = module, bindings, inputs
        if any(binding.value() is sys.modules.get("numpy") for binding in bindings):
            import_module("numpy.random")  # NumPy loads it at the first draw, which would have no state before
        self._draws = {name: opaque for name, source in _sources().items() if (opaque := Opaque.of(source))}
        with _lock:
            entry = _running.setdefault(id(module), [0, None])
            if entry[0] == 0:
                entry[1] = StateSnapshot(module)
            entry[0] += 1
            for binding in bindings:
                outer = _outer.get(binding.key) or _outer.setdefault(binding.key, _OuterSnapshot(binding))
                outer.runs += 1
            outer_tensors = (tensor for binding in bindings for tensor in _outer[binding.key].contents.tensors)
            self.tensors = [*entry[1].tensors, *outer_tensors, *inputs.tensors]

    def names(self, files: Collection[str]) -> frozenset[StateName]:
        """Return the names by which code in these files reads what has changed so far."""
        with _lock:
            names = {StateName(name, kind=kind) for name, kind in _running[id(self._module)][1].names_changed().items()}
            for binding in self._bindings:
                names.update(_outer[binding.key].names())
        moved = {name: source for name, source in _sources().items() if self._moved(name)}
        return frozenset(names.union(names_of_draws(self._bindings, files, moved) if moved else ()))

    @property
    def draws(self) -> list[str]:
        """Modules of Python whose random numbers were drawn so far."""
        return [name for name in _sources() if self._moved(name)]

    def _moved(self, name: str) -> bool:
        return name not in self._draws or self._draws[name].changed()

    def restore(self) -> None:
        """Put back what no other run uses, and the random numbers."""
        self._inputs.restore()
        with _lock:
            entry = _running[id(self._module)]
            entry[0] -= 1
            if entry[0] == 0:
                del _running[id(self._module)]
                entry[1].restore()
            for binding in self._bindings:
                outer = _outer[binding.key]
                outer.runs -= 1
                if outer.runs == 0:
                    del _outer[binding.key]
                    outer.restore()
        for opaque in self._draws.values():
            opaque.restore()


def _sources() -> dict[str, Any]:
    """Return the sources of random numbers of the process, by the modules of Python that lend their methods."""
    sources = {"random": random.random.__self__}  # type: ignore[attr-defined]
    if "numpy.random" in sys.modules:
        sources["numpy.random"] = sys.modules["numpy.random"].random.__self__
    return sources


@contextmanager
def restoring(module: nn.Module, *values) -> Iterator[HeldState]:
    """Restore the module, what its code reads around it, its inputs and the random numbers when the block ends.

    While several threads trace one module, the last of them does: no thread has a cache taken away that it is reading.
    """
    draws = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    held = HeldState(module, outer_values(module), StateSnapshot(values))
    try:
        yield held
    finally:
        held.restore()
        torch.set_rng_state(draws)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
