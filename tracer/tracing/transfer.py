"""Transfer of a run between two processes that hold the same model.

A trace is pickled without its tensors, whose storages are written to a file, one after another, and without the model:
the receiver puts its own in that place. Parts that are the same for all runs of a model at one size, such as its ops
and its equations, are pickled apart, and once. A receiver that knows the bytes of such a part takes the object that it
has.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from tracer.record import Trace
from tracer.tracing.proofs import DeferredProofs
from tracer.utils.cache import Cache, IdentityKey

# Trimmed runs: verified with every tensor available, kept with fewer.


def lighten(trace: Trace, cap: int) -> Trace:
    """Return the same run with at most `cap` bytes of the tensors of its steps, the first ones, and without references
    to the model; all else is unchanged.

    Queries, keys, masks and changed weights of attention, the photo and the inputs that lines name stay: what is shown
    of them is computed when it is asked for, and a saved run is verified from them.
    """
    trace = trace.prove()
    values, total = dict(trace.values), 0
    needed_keys = {key for record in trace.attentions for key in (record.q, record.k, record.weights, record.scores)}
    needed_keys |= {
        key for record in trace.attentions for _, arguments in record.chain for key in arguments if isinstance(key, str)
    }
    needed_keys |= {trace.picture.value} if trace.picture else set()
    for step in trace.steps:
        value = values.get(step.value)
        if value is None or step.value in needed_keys:
            continue
        total += value.nbytes
        if total > cap:
            del values[step.value]
    if trace.later is not None:
        value = trace.later.values()
        inputs = {name.of for step in trace.steps for name in step.names if name.of.startswith("input ")}
        values |= {key: tensor for key in inputs if (tensor := value(key)) is not None}
    return replace(trace, values=values, later=None, replay=None)


COMMON_FIELDS = ("ops", "modules", "calls", "symbols")
"""Fields of a trace that runs of one model at one size have in common."""
ALIGNMENT = 64
"""Bytes of which each storage begins at a multiple in the file."""


class PackedTrace(NamedTuple):
    """A trace as bytes: the parts that runs have in common, and the `rest`; and the file of its tensors, with the first
    byte and the length of each storage."""

    common: tuple[bytes, ...]
    rest: bytes
    file: str
    storages: tuple[tuple[int, int], ...]


_dumped = Cache(256)
"""Common parts as bytes, by the part itself."""


def pack(trace: Trace, module: torch.nn.Module, file: Path, left_out: Collection[str] = ()) -> PackedTrace:
    """Return a trace of a model on the CPU as bytes, and write its tensors to a file, but for those `left_out`, which
    the receiver has. `module` is the one that ran. Pending lines are verified."""
    trace = trace.prove()
    trace = replace(trace, values={key: value for key, value in trace.values.items() if key not in left_out})
    run = trace.later.run if isinstance(trace.later, DeferredProofs) else None
    common = [*(getattr(trace, field) for field in COMMON_FIELDS), run and run.steps]
    apart: dict[str, Any] = dict.fromkeys(COMMON_FIELDS, ())
    bare = replace(trace, **apart)
    storages: dict[int, tuple[int, torch.UntypedStorage]] = {}
    rest = _dump((bare, run and run._replace(steps=())), module, storages)
    places = []
    with file.open("wb") as out:
        for _, storage in storages.values():
            out.seek(-(-out.tell() // ALIGNMENT) * ALIGNMENT)
            places.append((out.tell(), storage.nbytes()))
            out.write(torch.empty(0, dtype=torch.uint8).set_(storage).numpy())
    return PackedTrace(tuple(_dump_once(part, module) for part in common), rest, str(file), tuple(places))


def unpack(
    packed: PackedTrace, module: torch.nn.Module, known: Cache, left_out: Mapping[str, np.ndarray] | None = None
) -> Trace:
    """Return the trace, with `module` in place of the one that ran and the values that may have been `left_out`, and
    remove the file. `known` holds common parts by their bytes."""
    file, whole = Path(packed.file), max((start + size for start, size in packed.storages), default=0)
    try:
        # mapped, so that nothing is copied: the memory is there for as long as a tensor is
        content = torch.from_file(str(file), shared=False, size=whole, dtype=torch.uint8) if whole else torch.empty(0)
    finally:
        with suppress(PermissionError):  # Windows removes no file that is mapped
            file.unlink()
    storages = [(content.untyped_storage(), start) for start, _ in packed.storages]
    common = []
    for part in packed.common:
        if (value := known.get(part)) is None:
            known.put(part, value := (_load(part, module, ()),))
        common += value
    bare, run = _load(packed.rest, module, storages)
    later = DeferredProofs(run._replace(steps=common[-1])) if run else None
    values = {key: torch.from_numpy(array) for key, array in (left_out or {}).items()} | bare.values
    return replace(bare, values=values, later=later, **dict(zip(COMMON_FIELDS, common, strict=False)))


class _Pickler(pickle.Pickler):
    """Pickler that writes no tensor, but its place in the storages that it notes; without any, it refuses tensors."""

    def __init__(self, file, module: torch.nn.Module, storages: dict[int, tuple[int, torch.UntypedStorage]] | None):
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._module, self._storages = module, storages

    def persistent_id(self, value: Any) -> str | None:
        return "module" if value is self._module else None

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        if self._storages is None:
            raise pickle.PicklingError("a part that runs have in common holds a tensor")
        storage = value.untyped_storage()
        place, _ = self._storages.setdefault(storage.data_ptr(), (len(self._storages), storage))
        offset = value.storage_offset() * value.element_size()
        return _Place, (place, value.dtype, offset, tuple(value.shape), value.stride())


class _Place:
    """Stand-in for a tensor until its storage is there."""


class _Unpickler(pickle.Unpickler):
    def __init__(self, file, module: torch.nn.Module, storages: Sequence[tuple[torch.UntypedStorage, int]]):
        super().__init__(file)
        self._module, self._storages = module, storages

    def persistent_load(self, name: str) -> torch.nn.Module:
        return self._module

    def find_class(self, module: str, name: str) -> Any:
        return self._tensor if (module, name) == (__name__, _Place.__name__) else super().find_class(module, name)

    def _tensor(self, place: int, dtype: torch.dtype, offset: int, shape: tuple, stride: tuple) -> torch.Tensor:
        storage, start = self._storages[place]
        return torch.empty(0, dtype=dtype).set_(storage, (start + offset) // dtype.itemsize, shape, stride)


def _dump_once(part: Any, module: torch.nn.Module) -> bytes:
    key = IdentityKey(part)
    if (content := _dumped.get(key)) is None:
        _dumped.put(key, content := _dump(part, module, None))
    return content


def _dump(value: Any, module: torch.nn.Module, storages: dict | None) -> bytes:
    file = io.BytesIO()
    _Pickler(file, module, storages).dump(value)
    return file.getvalue()


def _load(content: bytes, module: torch.nn.Module, storages: Sequence[tuple[torch.UntypedStorage, int]]) -> Any:
    return _Unpickler(io.BytesIO(content), module, storages).load()
