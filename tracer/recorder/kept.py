"""Tensors kept from a run: aliases while it runs, cloned before an in-place op rewrites them, copies after it."""

from __future__ import annotations

import torch


class Kept:
    """Holds tensors by key, up to `cap` bytes of storage; what is `needed` is held regardless of the cap."""

    def __init__(self, cap: int):
        self.cap, self.bytes, self.full = cap, 0, False
        self._tensors: dict[str, torch.Tensor] = {}
        self._storages: dict[int, list[str]] = {}

    def offer(self, key: str, tensor: torch.Tensor, *, needed: bool = False) -> None:
        if key in self._tensors:
            return
        storage = tensor.untyped_storage()
        keys = self._storages.get(storage._cdata)
        if keys is None:
            if not needed:
                if self.bytes + storage.nbytes() > self.cap:
                    self.full = True
                    return
                self.bytes += storage.nbytes()
            keys = self._storages[storage._cdata] = []
        keys.append(key)
        self._tensors[key] = tensor.detach()

    def protect(self, tensor: torch.Tensor) -> None:
        """Call before an op writes into `tensor`: what is kept of that storage becomes a copy."""
        for key in self._storages.pop(tensor.untyped_storage()._cdata, ()):
            self._tensors[key] = self._tensors[key].clone()
            self._storages.setdefault(self._tensors[key].untyped_storage()._cdata, []).append(key)

    def get(self, key: str) -> torch.Tensor | None:
        return self._tensors.get(key)

    def copies(self, keys) -> dict[str, torch.Tensor]:
        """Copies of what is kept of `keys`, that nothing else holds or rewrites."""
        copied: dict[tuple, torch.Tensor] = {}
        result = {}
        for key in keys:
            tensor = self._tensors.get(key)
            if tensor is not None:
                place = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride())
                if place not in copied:
                    copied[place] = tensor.clone(memory_format=torch.contiguous_format)
                result[key] = copied[place]
        return result


class Untouched:
    """Puts parameters and buffers back as they were, should the forward write into them."""

    def __init__(self, module: torch.nn.Module):
        tensors = [*module.parameters(), *module.buffers()]
        self._owned = {tensor.untyped_storage()._cdata: tensor for tensor in tensors}
        self._before: dict[int, torch.Tensor] = {}

    def protect(self, tensor: torch.Tensor) -> None:
        key = tensor.untyped_storage()._cdata
        if key in self._owned and key not in self._before:
            self._before[key] = self._owned[key].detach().clone()

    def restore(self) -> None:
        with torch.no_grad():
            for key, before in self._before.items():
                self._owned[key].data.copy_(before)
