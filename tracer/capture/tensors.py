"""The tensors of a run: which op made each, which version of its numbers was read, and which are kept."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Module

from tracer.utils import devices
from tracer.utils.torch_internals import count_storage_owners, storage_id
from tracer.utils.torch_state import identical

# Tensors within the inputs and outputs of a forward: in lists, tuples, dictionaries, and dataclasses, at which
# PyTorch's own walk ends.


def named_tensors(name: str, value) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in a value, each by its path: `batch.x`, `batch.0`. Items of `**kwargs` have names of their
    own."""
    if isinstance(value, Tensor):
        yield name, value
        return
    own = name == "kwargs" and isinstance(value, Mapping)
    for key, item in _items(value) or ():
        yield from named_tensors(key if own else f"{name}.{key}", item)


def _items(value) -> list[tuple[str, Any]] | None:
    """Return what a container holds, by names; None for what is none."""
    if isinstance(value, Mapping):
        return [(str(key), item) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [(str(position), item) for position, item in enumerate(value)]
    if holds_fields(value):
        return [(field.name, getattr(value, field.name, None)) for field in fields(value)]
    return None


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
    if (items := _items(value)) is None:
        items = [(key, item) for key, item in getattr(value, "__dict__", {}).items() if not key.startswith("_")]
    visited.add(id(value))
    for key, item in items:
        yield from _leaves(f"{name}.{key}", item, visited)


def is_mask(item: Any) -> bool:
    """Return whether an item of an index is a mask, which takes as many axes as it has."""
    return isinstance(item, Tensor) and item.dtype == torch.bool


def indexed_axes(keys: tuple[Any, ...], dim: int) -> list[tuple[Any, int]]:
    """Return the items of an index of a tensor with `dim` axes, each with the first axis that it takes."""
    result, axis = [], 0
    width = sum(item.dim() if is_mask(item) else 1 for item in keys if item is not None and item is not Ellipsis)
    for item in keys:
        if item is None:
            continue
        if item is Ellipsis:
            axis += dim - width
            continue
        if axis < dim:
            result.append((item, axis))
        axis += item.dim() if is_mask(item) else 1
    return result


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


# Tensors kept from a run: aliases while it runs, cloned before an in-place op rewrites them; after it, copies on the
# CPU.


@lru_cache(maxsize=1)
def expect_large_tensors() -> None:
    """Allocate 32 MB once and free them. C's allocator on Linux decides by the size of what is freed how much free
    memory it retains (`mallopt`, dynamic mmap threshold); a trace releases tens of MB at once, and would otherwise
    fault them in again, page by page, in the next run."""
    torch.empty(2**25 - 2**16, dtype=torch.uint8, device="cpu")


def address(tensor: torch.Tensor) -> int | None:
    """Return the address of a tensor's storage, None for one that has none: a sparse tensor, or one inside of
    `torch.func`."""
    try:
        return storage_id(tensor.untyped_storage())
    except (NotImplementedError, RuntimeError):
        return None


def place_of(tensor: torch.Tensor) -> tuple:
    """Return a key that is equal for a tensor and for all that share its memory in its layout, such as
    `weight.data`. Raise ValueError for a nested tensor."""
    if tensor.is_nested:
        raise ValueError(NESTED_PROBLEM)
    if (storage := address(tensor)) is None:
        return (id(tensor),)
    return storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def parts(key: str) -> list[str]:
    """Return the keys of the tensors of a key: one, or the iterations of a loop with bars between them."""
    return key.partition("|:")[0].split("|")


class TensorStore:
    """Tensors by key, up to `cap` bytes of storage; those that are `needed` are held regardless of the cap."""

    def __init__(self, cap: int):
        expect_large_tensors()
        self.cap, self.bytes = cap, 0
        self._tensors: dict[str, torch.Tensor] = {}
        self._storages: dict[int, list[str]] = {}

    def offer(self, key: str, tensor: torch.Tensor, *, needed: bool = False) -> None:
        if key in self._tensors:
            return
        if address(tensor) is None:
            if tensor.layout is not torch.strided:  # of one inside of `torch.func`, the ops have the tensor itself
                self._tensors[key] = tensor.detach().clone()
            return
        storage = tensor.untyped_storage()
        keys = self._storages.get(storage_id(storage))
        if keys is None:
            if not needed:
                if self.bytes + storage.nbytes() > self.cap:
                    return
                self.bytes += storage.nbytes()
            keys = self._storages[storage_id(storage)] = []
        keys.append(key)
        self._tensors[key] = tensor.detach()

    def protect(self, tensor: torch.Tensor) -> None:
        """Copy what is kept of the storage of `tensor`; call it before an op writes into `tensor`."""
        for key in self._storages.pop(address(tensor) or 0, ()):
            self._tensors[key] = self._tensors[key].clone()
            self._storages.setdefault(storage_id(self._tensors[key].untyped_storage()), []).append(key)

    def __contains__(self, key: str) -> bool:
        return all(part in self._tensors for part in parts(key))

    def get(self, key: str) -> torch.Tensor | None:
        """Return the tensor of a key, on the CPU; of several with bars between them, the iterations of a loop, all in
        one: stacked, or joined along the axis behind `|:`."""
        if key not in self:
            return None
        turns = [devices.to_cpu(self._tensors[part]) for part in parts(key)]
        if len(turns) == 1:
            return turns[0]
        axis = key.partition("|:")[2]
        return torch.cat(turns, int(axis)) if axis else torch.stack(turns)

    def take(self, keys) -> dict[str, torch.Tensor]:
        """Return the kept tensors of `keys`, once the run is over, as tensors that nothing else holds or rewrites.

        A storage that the run left to nobody else, and that they fill, is taken over; of any other they are copies.
        """
        storages: dict[int, dict[tuple, torch.Tensor]] = {}
        where, loose = {}, {}
        for key in keys:
            tensor = self._tensors.get(key)
            if tensor is not None and address(tensor) is None:
                loose[key] = tensor
            elif tensor is not None:
                where[key] = place = place_of(tensor)
                storages.setdefault(place[0], {}).setdefault(place, tensor)
        for storage, tensors in storages.items():
            if not self._alone(storage, tensors.values()):
                for place, tensor in tensors.items():
                    tensors[place] = devices.to_cpu(tensor).clone(memory_format=torch.contiguous_format)
        loops = {key: joined for key in keys if "|" in key and (joined := self.get(key)) is not None}
        return {key: storages[place[0]][place] for key, place in where.items()} | loops | loose

    def _alone(self, storage: int, tensors) -> bool:
        whole = next(iter(tensors)).untyped_storage()
        references = len(self._storages.get(storage, ())) + 1  # and `whole` itself
        return (
            whole.device.type in devices.LOCAL_DEVICES
            and count_storage_owners(storage) == references
            and whole.resizable()  # memory of NumPy's is not
            and whole.nbytes() == sum(tensor.nbytes for tensor in tensors)
        )


class InputGuard:
    """Caller's tensors, put back as they were after a forward that writes into them; the kept tensors stay as they
    were in the run."""

    def __init__(self, tensors: list[torch.Tensor], store: TensorStore):
        self._tensors, self._store = tensors, store
        self._before: dict[int, torch.UntypedStorage] = {}

    @cached_property
    def _by_address(self) -> dict[int, torch.Tensor]:
        addresses = {address(tensor): tensor for tensor in self._tensors if not tensor.is_meta}
        return {place: tensor for place, tensor in addresses.items() if place is not None}

    def protect(self, tensor: torch.Tensor) -> None:
        key = address(tensor)
        if key is not None and key in self._by_address and key not in self._before:
            self._before[key] = self._by_address[key].untyped_storage().clone()

    def restore(self) -> None:
        for key, before in self._before.items():
            self._store.protect(self._by_address[key])
            self._by_address[key].untyped_storage().copy_(before)


# Identity of tensors and their producers, also after in-place writes through views.

CONSTANT = "constant"
NESTED_PROBLEM = (
    "a nested tensor can't be traced: its rows differ in length, so it has no shape; pad them and mask the padding"
)


class ProducerIndex:
    """Descriptions of tensors as (shape, dtype, maker): the maker is an op's index, or the name of a parameter, buffer
    or input. A description is made once for each tensor and handed out again.

    `named` are the tensors that nothing of the run made; one that has several names goes by the first.
    """

    def __init__(self, named: dict[str, Tensor]):
        self._named = named  # held, so that no other tensor takes an id
        self._names = {id(tensor): name for name, tensor in reversed(named.items())}
        self._producers: dict[int, tuple[ref, tuple]] = {}
        self.listed: dict[int, tuple[ref, int]] = {}
        self._written: dict[int, int] = {}
        self._storages: list[StorageWeakRef] = []  # no other storage gets the address of one of these

    def record(self, tensor: Tensor, maker: int | str) -> tuple:
        """Record the producer of this tensor; call it again when an op has written into it."""
        if tensor.is_nested:
            raise ValueError(NESTED_PROBLEM)
        described = (tuple(tensor.shape), tensor.dtype, maker)
        self._producers[id(tensor)] = (ref(tensor), described)
        return described

    def record_listed(self, tensors: Sequence[Tensor]) -> None:
        """Record the positions of the tensors of a list that one op returned."""
        self.listed |= {id(tensor): (ref(tensor), position) for position, tensor in enumerate(tensors)}

    def position(self, tensor: Tensor) -> int | None:
        """Return the position of a tensor in the list that an op returned; None for any other."""
        entry = self.listed.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def wrote(self, tensor: Tensor, op: int) -> None:
        """Record that op `op` wrote into this tensor's storage: all views of it come from that op now."""
        if (storage := address(tensor)) is not None:
            if storage not in self._written:
                self._storages.append(StorageWeakRef(tensor.untyped_storage()))
            self._written[storage] = op

    def of(self, tensor: Tensor) -> tuple:
        """Return the tensor's (shape, dtype, maker)."""
        entry = self._producers.get(id(tensor))
        if entry is not None and entry[0]() is tensor:
            described = entry[1]
        else:
            described = self.record(tensor, self._names.get(id(tensor), CONSTANT))
        if self._written:
            writer, maker = self._written.get(address(tensor) or 0), described[2]
            if writer is not None and (not isinstance(maker, int) or writer > maker):
                return self.record(tensor, writer)
        return described


# Values of a run by their keys: a tensor's present value, also after a write into its memory.


class Ref(NamedTuple):
    """A tensor of the run by the key of its value: `"12.0"` is the first output of op 12; `"input x"`, `"parameter w"`,
    `"constant 0"` are tensors that no op of the run produced, and `"12.0w3"` another tensor's value after a write."""

    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype


def refer(tensor: Tensor, key: str) -> Ref:
    """Return the reference to a tensor by the key of its value."""
    return Ref(key, tuple(tensor.shape), tensor.dtype)


class Layout(NamedTuple):
    """Layout of a tensor in its storage: shape, strides and offset."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def last(self) -> int:
        """Place of the last number in the storage."""
        return self.offset + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))


class ValueVersions:
    """Key of every tensor that the run computed or received, also of those that were written into.

    A tensor that was `named` several times goes by the first of its names.
    """

    def __init__(self, named: dict[str, Tensor], store: TensorStore, on_overwrite):
        if any(tensor.is_nested for tensor in named.values()):
            raise ValueError(NESTED_PROBLEM)
        self._store, self._overwritten = store, on_overwrite
        self._names = {id(tensor): (tensor, key) for key, tensor in reversed(named.items())}
        self._refs: dict[int, tuple[ref, Ref]] = {}
        self._writes: dict[int, list[tuple[Ref, Layout, int]]] = {}
        self._written: list[StorageWeakRef] = []  # no other storage gets the address of one of these
        self._write_counts: dict[int, int] = {}
        self._constants = self._versions = 0

    @cached_property
    def _places(self) -> dict[tuple, str]:
        """Storage ranges of named tensors, to recognise aliases."""
        return {place_of(tensor): key for tensor, key in self._names.values()}

    def record(self, tensor: Tensor, value_ref: Ref) -> Ref:
        """Record that this tensor is that value from now on."""
        self._refs[id(tensor)] = ref(tensor), value_ref
        if self._writes:  # else there was none to be seen
            self._write_counts[id(tensor)] = len(self._writes.get(address(tensor) or 0, ()))
        return value_ref

    def wrote(self, tensor: Tensor, key: str) -> Ref:
        """Record that an op wrote into this tensor, whose value has that key from now on."""
        new = self.record(tensor, refer(tensor, key))
        if address(tensor) is None:
            return new
        storage = tensor.untyped_storage()
        if (writes := self._writes.get(storage_id(storage))) is None:
            writes = self._writes[storage_id(storage)] = []
            self._written.append(StorageWeakRef(storage))
        writes.append((new, _layout(tensor), id(tensor)))
        self._write_counts[id(tensor)] = len(writes)
        return new

    def known(self, tensor: Tensor) -> bool:
        """Return whether this tensor is a value of the run already."""
        entry = self._refs.get(id(tensor))
        return entry is not None and entry[0]() is tensor

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
                old, current = current, self.record(tensor, refer(tensor, f"{new.key}w{self._versions}"))
                self._overwritten(old, new, into, part, current)
                self._store.offer(current.key, tensor)
        return current

    def _first(self, tensor: Tensor) -> Ref:
        """Return the key of a tensor that no op of the run produced."""
        name = self._names.get(id(tensor))
        key = name[1] if name is not None else self._places.get(place_of(tensor))
        if key is None:
            key = f"constant {self._constants}"
            self._constants += 1
            self._store.offer(key, tensor)
        value_ref = self.record(tensor, refer(tensor, key))
        self._write_counts[id(tensor)] = 0
        return value_ref


def _layout(tensor: Tensor) -> Layout:
    return Layout(tuple(tensor.shape), tensor.stride(), tensor.storage_offset())


def _meet(a: Layout, b: Layout) -> bool:
    """Return whether two tensors of one storage may share numbers."""
    return 0 not in (*a.shape, *b.shape) and a.offset <= b.last and b.offset <= a.last
