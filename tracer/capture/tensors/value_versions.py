"""Values of a run by their keys: a tensor's present value, also after a write into its memory."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from tracer.capture.tensors.producers import NESTED_PROBLEM
from tracer.capture.tensors.tensor_store import TensorStore, address
from tracer.utils.internals.torch_internals import storage_id


class Ref(NamedTuple):
    """A tensor of the run by the key of its value: `"12.0"` is the first output of op 12; `"input x"`, `"parameter w"`,
    `"constant 0"` are tensors that no op of the run produced, and `"12.0w3"` another tensor's value after a write."""

    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype


class Layout(NamedTuple):
    """Layout of a tensor in its storage: shape, strides and offset."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class ValueVersions:
    """Key of every tensor that the run computed or received, also of those that were written into."""

    def __init__(self, named: dict[str, Tensor], store: TensorStore, on_overwrite):
        if any(tensor.is_nested for tensor in named.values()):
            raise ValueError(NESTED_PROBLEM)
        self._store, self._overwritten = store, on_overwrite
        self._names = {id(tensor): (tensor, key) for key, tensor in named.items()}
        self._refs: dict[int, tuple[ref, Ref]] = {}
        self._writes: dict[int, list[tuple[Ref, Layout, int]]] = {}
        self._written: list[StorageWeakRef] = []  # no other storage gets the address of one of these
        self._write_counts: dict[int, int] = {}
        self._constants = self._versions = 0

    @cached_property
    def _places(self) -> dict[tuple, str]:
        """Storage ranges of named tensors, to recognise aliases."""
        return {_place(tensor): key for tensor, key in self._names.values()}

    def record(self, tensor: Tensor, key: str) -> Ref:
        """Record that this tensor is the value of a key from now on."""
        value_ref = Ref(key, tuple(tensor.shape), tensor.dtype)
        self._refs[id(tensor)] = ref(tensor), value_ref
        if self._writes:  # else there was none to be seen
            self._write_counts[id(tensor)] = len(self._writes.get(address(tensor) or 0, ()))
        return value_ref

    def wrote(self, tensor: Tensor, key: str) -> Ref:
        """Record that an op wrote into this tensor, whose value has that key from now on."""
        new = self.record(tensor, key)
        if address(tensor) is None:
            return new
        storage = tensor.untyped_storage()
        if (writes := self._writes.get(storage_id(storage))) is None:
            writes = self._writes[storage_id(storage)] = []
            self._written.append(StorageWeakRef(storage))
        writes.append((new, _layout(tensor), id(tensor)))
        self._write_counts[id(tensor)] = len(writes)
        return new

    def of(self, tensor: Tensor) -> Ref:
        """Return the tensor's present value."""
        entry = self._refs.get(id(tensor))
        current = entry[1] if entry is not None and entry[0]() is tensor else self._first(tensor)
        if not self._writes:
            return current
        writes = self._writes.get(address(tensor) or 0, ())
        for new, part, writer in writes[self._write_counts.get(id(tensor), 0) :]:
            if writer != id(tensor) and _meet(part, into := _layout(tensor)):
                self._versions += 1
                old, current = current, self.record(tensor, f"{new.key}w{self._versions}")
                self._overwritten(old, new, into, part, current)
                self._store.offer(current.key, tensor)
        return current

    def _first(self, tensor: Tensor) -> Ref:
        """Return the key of a tensor that no op of the run produced."""
        name = self._names.get(id(tensor))
        key = name[1] if name is not None else self._places.get(_place(tensor))
        if key is None:
            key = f"constant {self._constants}"
            self._constants += 1
            self._store.offer(key, tensor)
        value_ref = self.record(tensor, key)
        self._write_counts[id(tensor)] = 0
        return value_ref


def _place(tensor: Tensor) -> tuple:
    if tensor.is_nested:
        raise ValueError(NESTED_PROBLEM)
    if (storage := address(tensor)) is None:
        return (id(tensor),)
    return storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride()


def _layout(tensor: Tensor) -> Layout:
    return Layout(tuple(tensor.shape), tensor.stride(), tensor.storage_offset())


def _meet(a: Layout, b: Layout) -> bool:
    """Return whether two tensors of one storage may share numbers."""

    def ends(layout: Layout) -> tuple[int, int]:
        reach = sum((n - 1) * step for n, step in zip(layout.shape, layout.stride, strict=True))
        return layout.offset, layout.offset + reach

    (first, last), (begin, end) = ends(a), ends(b)
    return 0 not in (*a.shape, *b.shape) and first <= end and begin <= last
