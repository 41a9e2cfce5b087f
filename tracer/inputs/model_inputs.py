"""Inputs of a forward pass, and their metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tracer.record import Segment

if TYPE_CHECKING:
    import numpy as np
    import torch

    from tracer.inputs.images import Crop


@dataclass(frozen=True, eq=False)
class Inputs(Sequence):
    """Tensors that forward takes: the positional ones as a tuple in order, the keyword ones in `named`.

    `sizes` are those that the input decides, such as B and T. `photo` is uint8 `[H, W, 3]`, `crop` the part of it that
    the model sees; `words` are its tokens, `segments` the ranges of the sequence that they fill.
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

    def map_tensors(
        self, function: Callable[[torch.Tensor], torch.Tensor], names: Iterable[str] | None = None
    ) -> Inputs:
        """Return the same inputs with a function applied to each tensor; `names` restricts it to some of the keyword
        arguments."""
        import torch  # loaded by now, where there are tensors

        from tracer.utils.internals.torch_internals import tree_map_only  # with it

        keywords = self.named if names is None else {name: self.named[name] for name in names}
        tensors, named = tree_map_only(torch.Tensor, function, (self.tensors, keywords))
        return replace(self, tensors=tensors, named=self.named | named)

    def on(self, device: torch.device) -> Inputs:
        """Return the same inputs with their tensors on a device."""
        from tracer.utils.internals.torch_internals import tree_leaves  # torch is loaded by now

        on_device = (
            leaf.device == device for leaf in tree_leaves((self.tensors, self.named)) if hasattr(leaf, "device")
        )
        return self if all(on_device) else self.map_tensors(lambda tensor: tensor.to(device))
