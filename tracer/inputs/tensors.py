"""From a photo or a text to the tensors that a model takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tracer.inputs.images import centre_crop, sample_photo, to_array

if TYPE_CHECKING:
    from tracer.model import Inputs, Model

MEAN, STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
"""How pixels are normalised where no card says otherwise."""


def photo_input(model: Model, image, text, given: dict[str, int], *, sample=sample_photo) -> Inputs:
    """A photo, cut and resized as in training, normalised: `[B, C, H, W]` float32. `sample` gives one without."""
    from tracer.model import Inputs

    sizes, card = model.vocabulary.complete({**given, **model.sizes}), model.card or {}
    photo = sample() if image is None else image.convert("RGB")
    cut, crop = centre_crop(photo, sizes["H"], sizes["W"], share=card.get("crop", 1.0))
    pixels = torch.from_numpy(to_array(cut, card.get("mean", MEAN), card.get("std", STD)))
    channels = pixels[torch.arange(sizes["C"]) % pixels.shape[0]]  # [C, H, W]
    inputs = Inputs((channels.expand(given["B"], *channels.shape).contiguous(),))
    inputs.sizes, inputs.photo, inputs.crop = given, np.array(photo), crop
    inputs.segments = model.spec.segments(sizes)
    return inputs


def text_input(tokenizer: type, vocabulary, sample: str):
    """How a text becomes token numbers `[B, T]`, with the vocabulary of the card, or this one.

    The last T_max tokens of a longer text are taken; a given T cuts or repeats the text to T tokens.
    """

    def prepare(model: Model, image, text: str | None, given: dict[str, int]) -> Inputs:
        from tracer.model import Inputs

        known = tokenizer((model.card or {}).get("vocabulary", vocabulary)[: model.sizes["V"]])
        text = sample if text is None else text
        try:
            numbers = known.encode(text)
        except ValueError:
            if text is not sample:
                raise
            numbers = [number % model.sizes["V"] for number in tokenizer(vocabulary).encode(text)]
        if not numbers:
            raise ValueError(f"the text {text!r} has no token; at least one was expected")
        length = given.get("T", min(len(numbers), model.sizes["T_max"]))
        if length > model.sizes["T_max"]:
            raise ValueError(f"T={length} tokens are too many: the model reads at most T_max={model.sizes['T_max']}")
        numbers = (numbers * (length // len(numbers) + 1))[:length] if "T" in given else numbers[-length:]
        inputs = Inputs((torch.tensor(numbers).expand(given["B"], -1).contiguous(),))
        inputs.sizes = {**given, "T": length}
        inputs.words = known.words(numbers)
        inputs.segments = model.spec.segments({**model.sizes, **inputs.sizes})
        return inputs

    return prepare
