"""What a forward pass is given, and what is known of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tracer.record import Segment

if TYPE_CHECKING:
    import numpy as np
    import torch

    from tracer.inputs.images import Crop


@dataclass(frozen=True, eq=False)
class Inputs(Sequence):
    """The tensors that forward takes, in its order, as a tuple has them; and those that it takes by name, in `named`.

    `sizes` are those that the input decides, such as B and T. `photo` is uint8 `[H, W, 3]`, `crop` the part of it that
    the model sees; `words` are its tokens, `segments` the stretches of the sequence that they make.
    """

    tensors: tuple[torch.Tensor, ...]
    sizes: dict[str, int] = field(default_factory=dict)
    named: dict[str, torch.Tensor] = field(default_factory=dict)
    photo: np.ndarray | None = None
    crop: Crop | None = None
    words: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()
    segments: tuple[Segment, ...] = ()

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, place: Any) -> Any:
        return self.tensors[place]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.tensors)

    def on(self, device: torch.device) -> Inputs:
        """The same, its tensors on a device."""
        import torch  # loaded by now, where there are tensors
        from torch.utils._pytree import tree_leaves, tree_map_only  # with it

        given = (self.tensors, self.named)
        if all(tensor.device == device for tensor in tree_leaves(given) if torch.is_tensor(tensor)):
            return self
        tensors, named = tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), given)
        return replace(self, tensors=tensors, named=named)
