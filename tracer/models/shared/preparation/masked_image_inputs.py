"""Inputs of a masked encoder from a picture of a surface: pixels, and the list of visible patches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from tracer.inputs.images import centre_crop, to_array
from tracer.inputs.model_inputs import Inputs
from tracer.inputs.synthetic.textures import sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracer.models.shared.spec import Model
    from tracer.record import Segment

MEAN, STD = (0.5,), (0.2,)
"""How grey pixels are normalised where no card says otherwise."""


def visible_patches(batch: int, patches: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Return `count` of the patches for each input, drawn without repetition, in raster order: int64 `[B, N_v]`.

    Source: He et al. 2022, section 3, "Simple implementation", by sorting random numbers.
    """
    return torch.rand(batch, patches, generator=generator).argsort(dim=1)[:, :count].sort(dim=1).values


def surface_input(model: Model, image, text, options: dict[str, int]) -> Inputs:
    """Return a picture, cut, resized and normalised, `[B, C, H, W]` float32, and the visible patches `[B, N_v]`.

    `seed` decides which patches are visible; half of them are where N_v is missing. For models of one channel the
    picture is converted to grey.
    """

    options = dict(options)
    generator = torch.Generator().manual_seed(options.pop("seed"))
    sizes, card = model.vocabulary.complete({**options, **model.sizes}), model.card or {}
    count = options.setdefault("N_v", max(1, sizes["N"] // 2))
    if count > sizes["N"]:
        raise ValueError(f"N_v={count} patches can't be visible: there are N={sizes['N']}")
    photo = (sample() if image is None else image).convert("RGB")
    cut, crop = centre_crop(photo.convert("L") if model.sizes["C"] == 1 else photo, sizes["H"], sizes["W"])
    pixels = torch.from_numpy(to_array(cut, card.get("mean", MEAN), card.get("std", STD)))
    pixels = pixels[torch.arange(sizes["C"]) % pixels.shape[0]]  # [C, H, W]
    visible = visible_patches(1, sizes["N"], count, generator)  # [1, N_v]
    batch = pixels.expand(options["B"], *pixels.shape).contiguous(), visible.repeat(options["B"], 1)
    segments = model.spec.segments({**sizes, **options})
    return Inputs(batch, options, photo=np.array(photo), crop=crop, segments=segments)


def place_visible(segments: tuple[Segment, ...], order: Sequence[int]) -> tuple[Segment, ...]:
    """Return the segments, the one named "visible" with its patches' positions: the first patches of `order`, as many
    as the segment has tokens."""
    return tuple(
        replace(segment, places=tuple(order[: segment.stop - segment.start])) if segment.name == "visible" else segment
        for segment in segments
    )
