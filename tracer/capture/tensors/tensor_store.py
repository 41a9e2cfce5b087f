"""Tensors kept from a run: aliases while it runs, cloned before an in-place op rewrites them; after it, copies on the
CPU."""

from __future__ import annotations

from functools import cached_property, lru_cache

import torch

from tracer.utils import devices
from tracer.utils.internals.torch_internals import count_storage_owners, storage_id


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


def parts(key: str) -> list[str]:
    """Return the keys of the tensors of a key: one, or the iterations of a loop with bars between them."""
    return key.partition("|:")[0].split("|")


class TensorStore:
    """Tensors by key, up to `cap` bytes of storage; those that are `needed` are held regardless of the cap."""

    def __init__(self, cap: int):
        expect_large_tensors()
        self.cap, self.bytes, self.full = cap, 0, False
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
                    self.full = True
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
        if "|" not in key:
            tensor = self._tensors.get(key)
            return None if tensor is None else devices.to_cpu(tensor)
        key, _, axis = key.partition("|:")
        tensor = [self._tensors.get(part) for part in key.split("|")]
        if any(part is None for part in tensor):
            return None
        turns = [devices.to_cpu(part) for part in tensor]
        return torch.cat(turns, int(axis)) if axis else torch.stack(turns)

    def take(self, keys) -> dict[str, torch.Tensor]:
        """Return the kept tensors of `keys`, once the run is over, as tensors that nothing else holds or rewrites.

        A storage that the run left to nobody else, and that they fill, is taken over; of any other they are copies.
        """
        places: dict[int, dict[tuple, torch.Tensor]] = {}
        where = {}
        loose = {}
        for key in keys:
            tensor = self._tensors.get(key)
            if tensor is not None and address(tensor) is None:
                loose[key] = tensor
            elif tensor is not None:
                storage, place = (
                    storage_id(tensor.untyped_storage()),
                    (tensor.storage_offset(), tensor.shape, tensor.stride()),
                )
                places.setdefault(storage, {}).setdefault(place, tensor)
                where[key] = storage, place
        for storage, tensors in places.items():
            if not self._alone(storage, tensors.values()):
                for place, tensor in tensors.items():
                    tensors[place] = devices.to_cpu(tensor).clone(memory_format=torch.contiguous_format)
        loops = {key: joined for key in keys if "|" in key and (joined := self.get(key)) is not None}
        return {key: places[storage][place] for key, (storage, place) in where.items()} | loops | loose

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
