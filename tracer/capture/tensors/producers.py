"""Identity of tensors and their producers, also after in-place writes through views."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import ref

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from tracer.capture.tensors.tensor_store import address

CONSTANT = "constant"
NESTED_PROBLEM = (
    "a nested tensor can't be traced: its rows differ in length, so it has no shape; pad them and mask the padding"
)


class ProducerIndex:
    """Descriptions of tensors as (shape, dtype, maker): the maker is an op's index, or the name of a parameter, buffer
    or input. A description is made once for each tensor and handed out again.

    `named` are the tensors that nothing of the run made; one that has several names goes by the last.
    """

    def __init__(self, named: dict[str, Tensor]):
        self._named = named  # held, so that no other tensor takes an id
        self._names = {id(tensor): name for name, tensor in named.items()}
        self._producers: dict[int, tuple[ref, tuple]] = {}
        self._listed: dict[int, tuple[ref, int]] = {}
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
        self._listed |= {id(tensor): (ref(tensor), position) for position, tensor in enumerate(tensors)}

    def position(self, tensor: Tensor) -> int | None:
        """Return the position of a tensor in the list that an op returned; None for any other."""
        entry = self._listed.get(id(tensor)) if self._listed else None
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
