"""Inputs of a forward pass, and their metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from PIL import Image

from tracer.inputs import images
from tracer.record import Segment
from tracer.utils.errors import quote
from tracer.utils.lazy_import import lazy_import

if TYPE_CHECKING:
    import numpy as np
    import torch

    from tracer.inputs import synthetic
    from tracer.inputs.images import Crop
    from tracer.utils import torch_internals
else:  # imported when first used
    torch = lazy_import("torch")
    synthetic = lazy_import("tracer.inputs.synthetic")
    torch_internals = lazy_import("tracer.utils.torch_internals")


# A tokenizer from text to token numbers and back: characters, or words with a token that begins the sentence.


class Characters:
    """A tokenizer of characters: each of the vocabulary is a token; numbers count from 0."""

    def __init__(self, vocabulary: Sequence[str]):
        self.vocabulary = vocabulary
        self._numbers = {token: number for number, token in enumerate(vocabulary)}

    def encode(self, text: str) -> list[int]:
        """Return the token numbers of a text. ValueError quotes the first token that the model does not know."""
        tokens = self._split(text)
        for token in tokens:
            if token not in self._numbers:
                raise ValueError(f"{quote(text)} contains {quote(token)}, which is not one of the {self._known()}")
        return [self._numbers[token] for token in tokens]

    def words(self, numbers: Sequence[int]) -> tuple[str, ...]:
        """Return the tokens as text, one by one."""
        return tuple(self.vocabulary[number] for number in numbers)

    def decode(self, numbers: Sequence[int]) -> str:
        """Return the text of these tokens."""
        return "".join(self.words(numbers))

    def _split(self, text: str) -> Sequence[str]:
        return text

    def _known(self) -> str:
        return f"{len(self.vocabulary)} characters that the model knows"


class Words(Characters):
    """A tokenizer of words: each of the vocabulary is a token; the first entry begins a sentence, the second ends
    it."""

    def decode(self, numbers: Sequence[int]) -> str:
        """Return the sentence of these tokens, without its begin and end."""
        return " ".join(self.vocabulary[number] for number in numbers if number > 1)

    def _split(self, text: str) -> Sequence[str]:
        return text.lower().replace(",", " ").replace(".", " ").split()

    def _known(self) -> str:
        words = self.vocabulary[2:]
        return f"{len(words)} words that the model knows: {', '.join(words)}"


# Samples for a model, by kind: photos, drawn scenes, surfaces. Torch-free.

SCENES = {"two objects": (12, 2), "one object": (11, 1), "three objects": (13, 3)}
SURFACES = {"stain": ("checks", "stain"), "dent": ("stripes", "dent"), "brick": ("brick", "scratch")}


@cache
def samples(kind: str) -> dict[str, Callable[[], Image.Image]]:
    """Return names and loaders of the samples of a kind ("photos", "scenes", "surfaces"); none for a model of text.

    The list is read once, and each sample is opened or drawn once: all callers get the same picture.
    """
    loaders = {"photos": images.sample_photos, "scenes": _scenes, "surfaces": _surfaces}.get(kind, dict)()
    return {name: cache(opened) for name, opened in loaders.items()}


def _scenes() -> dict[str, Callable[[], Image.Image]]:
    scenes = {name: lambda of=of: synthetic.scene(*of).image() for name, of in SCENES.items()}
    return {"scene": lambda: synthetic.sample_scene().image(), **scenes}


def _surfaces() -> dict[str, Callable[[], Image.Image]]:
    def damaged_surface(name: str, defect: str) -> Image.Image:
        return Image.fromarray(synthetic.damage(synthetic.surface(name, 7), 3, defect)[0])

    surfaces = {name: partial(damaged_surface, *of) for name, of in SURFACES.items()}
    sound = {"no defect": lambda: Image.fromarray(synthetic.surface("weave", 5))}
    return {"scratch": synthetic.sample, **surfaces, **sound}


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
        keywords = self.named if names is None else {name: self.named[name] for name in names}
        tensors, named = torch_internals.tree_map_only(torch.Tensor, function, (self.tensors, keywords))
        return replace(self, tensors=tensors, named=self.named | named)

    def on(self, device: torch.device) -> Inputs:
        """Return the same inputs with their tensors on a device."""
        on_device = (
            leaf.device == device
            for leaf in torch_internals.tree_leaves((self.tensors, self.named))
            if hasattr(leaf, "device")
        )
        return self if all(on_device) else self.map_tensors(lambda tensor: tensor.to(device))
