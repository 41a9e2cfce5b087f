"""Model input tensors from a photo or a text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tracer.inputs.images import MEAN, STD, centre_crop, sample_photo, to_array
from tracer.inputs.model_inputs import Inputs
from tracer.utils.error_text import quote

if TYPE_CHECKING:
    from tracer.models.shared.spec import Model


def photo_input(model: Any, image, text, options: dict[str, int], *, sample=sample_photo) -> Inputs:
    """Return a photo, cut and resized as in training, normalised: `[B, C, H, W]` float32. `sample` is the default
    photo."""

    sizes, card = model.vocabulary.complete({**options, **model.sizes}), model.card or {}
    photo = sample() if image is None else image if image.mode == "RGB" else image.convert("RGB")
    cut, crop = centre_crop(photo, sizes["H"], sizes["W"], share=card.get("crop", 1.0))
    pixels = torch.from_numpy(to_array(cut, card.get("mean", MEAN), card.get("std", STD)))
    channels = pixels[torch.arange(sizes["C"]) % pixels.shape[0]]  # [C, H, W]
    batch = channels.expand(options["B"], *channels.shape).contiguous()
    return Inputs((batch,), options, photo=np.array(photo), crop=crop, segments=model.spec.segments(sizes))


def text_input(tokenizer: type, vocabulary, sample: str, pad: str = "") -> Callable[..., Inputs]:
    """Return a function from a text to token numbers `[B, T]`, with the vocabulary of the card, or this one.

    An argument T cuts or repeats the text to T tokens; without, `pad` fills a text up to T_max, where that is the
    length that the model was trained on. Raise ValueError for a text of more than T_max tokens: none is cut silently.
    """

    def prepare(model: Model, image, text: str | None, options: dict[str, int]) -> Inputs:

        known = tokenizer((model.card or {}).get("vocabulary", vocabulary)[: model.sizes["V"]])
        own, most, text = text is None, model.sizes["T_max"], sample if text is None else text
        try:
            numbers = known.encode(text)
        except ValueError:
            if not own:
                raise
            numbers = [number % model.sizes["V"] for number in tokenizer(vocabulary).encode(text)]
        if not numbers:
            raise ValueError(f"the text {quote(text)} has no token, expected at least one")
        if options.get("T", 0) > most:
            raise ValueError(f"T={options['T']} tokens are too many: the model reads at most T_max={most}")
        if "T" in options:
            numbers = (numbers * (options["T"] // len(numbers) + 1))[: options["T"]]
        elif own:
            numbers = numbers[-most:]
        elif len(numbers) > most:
            raise ValueError(
                f"{quote(text)} has T={len(numbers)} tokens, too many: the model reads at most T_max={most}"
            )
        elif pad:
            numbers += known.encode(pad) * (most - len(numbers))
        length = len(numbers)
        batch, sizes = torch.tensor(numbers).expand(options["B"], -1).contiguous(), {**options, "T": length}
        segments = model.spec.segments({**model.sizes, **sizes})
        return Inputs((batch,), sizes, words=known.words(numbers), segments=segments)

    return prepare
