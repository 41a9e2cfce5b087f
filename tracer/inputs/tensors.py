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


def photo_input(model: Model, image, text, given: dict[str, int]) -> Inputs:
    """A photo, cut and resized as in training, normalised: `[B, C, H, W]` float32."""
    from tracer.model import Inputs

    sizes, card = model.vocabulary.complete({**given, **model.sizes}), model.card or {}
    photo = sample_photo() if image is None else image.convert("RGB")
    cut, crop = centre_crop(photo, sizes["H"], sizes["W"])
    pixels = torch.from_numpy(to_array(cut, card.get("mean", MEAN), card.get("std", STD)))
    channels = pixels[torch.arange(sizes["C"]) % pixels.shape[0]]  # [C, H, W]
    inputs = Inputs((channels.expand(given["B"], *channels.shape).contiguous(),))
    inputs.sizes, inputs.photo, inputs.crop = given, np.array(photo), crop
    inputs.segments = model.spec.segments(sizes)
    return inputs
