"""Which op made a tensor, also after in-place writes through views."""

from __future__ import annotations

import weakref

import torch


class Makers:
    """Finds the maker of a tensor: an op's index, or the name of a parameter, buffer or input."""

    def __init__(self):
        self._made: dict[int, tuple[weakref.ref, int | str]] = {}
        self._written: dict[int, int] = {}

    def made(self, tensor: torch.Tensor, maker: int | str) -> None:
        self._made[id(tensor)] = (weakref.ref(tensor), maker)

    def wrote(self, tensor: torch.Tensor, op: int) -> None:
        """Op `op` wrote into this tensor's storage: all views of it come from that op now."""
        self._written[tensor.untyped_storage()._cdata] = op

    def of(self, tensor: torch.Tensor) -> int | str:
        found = self._made.get(id(tensor))
        maker = found[1] if found is not None and found[0]() is tensor else "constant"
        if self._written:
            writer = self._written.get(tensor.untyped_storage()._cdata)
            if writer is not None and (not isinstance(maker, int) or writer > maker):
                return writer
        return maker
