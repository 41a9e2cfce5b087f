"""What a tensor is, and which op made it, also after in-place writes through views."""

from __future__ import annotations

import weakref

import torch

CONSTANT = "constant"


class Makers:
    """Describes tensors as (shape, dtype, maker): the maker is an op's index, or the name of a parameter, buffer or
    input. A description is made once for each tensor and handed out again."""

    def __init__(self):
        self._made: dict[int, tuple[weakref.ref, tuple]] = {}
        self._written: dict[int, int] = {}

    def made(self, tensor: torch.Tensor, maker: int | str) -> tuple:
        """Says who made this tensor; call it again when an op has written into it."""
        described = (tuple(tensor.shape), tensor.dtype, maker)
        self._made[id(tensor)] = (weakref.ref(tensor), described)
        return described

    def wrote(self, tensor: torch.Tensor, op: int) -> None:
        """Op `op` wrote into this tensor's storage: all views of it come from that op now."""
        self._written[tensor.untyped_storage()._cdata] = op

    def of(self, tensor: torch.Tensor) -> tuple:
        """The tensor's (shape, dtype, maker)."""
        found = self._made.get(id(tensor))
        described = found[1] if found is not None and found[0]() is tensor else self.made(tensor, CONSTANT)
        if self._written:
            writer, maker = self._written.get(tensor.untyped_storage()._cdata), described[2]
            if writer is not None and (not isinstance(maker, int) or writer > maker):
                return self.made(tensor, writer)
        return described
