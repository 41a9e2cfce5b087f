"""torchvision's detectors: a photo, and boxes around what it shows."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tracer.inputs.model_inputs import Inputs
from tracer.models.shared.predictions import tensors_by_name
from tracer.models.shared.preparation.to_tensors import photo_input
from tracer.models.shared.spec import Spec
from tracer.shapes import Vocabulary
from tracer.shapes.shadow_module import parameters, shadow_copy
from tracer.zoo.vision.generic_vision import SIDES, generic_spec

SIDE = 320
"""Side of the photo. Published detectors enlarge photos to 800 pixels and more; here they take them as they are."""
PROBES = 3
ONE_BY_ONE = "no symbol for B: a detector goes through the photos of a batch one by one"


def disable_resizing(net: torch.nn.Module, H: int, W: int, **others: int) -> torch.nn.Module:
    """Change a detector in place to take a photo of H × W pixels as it is, and return it."""
    net.transform.min_size, net.transform.max_size = (min(H, W),), max(H, W)
    net.transform.fixed_size = net.transform.fixed_size and (W, H)
    return net


def spec(build: Callable[..., torch.nn.Module]) -> Spec:
    """Return the `Spec` of a detector; `build()` builds it."""

    def example(at: dict) -> tuple:
        return (list(torch.rand(at["B"], 3, at["H"], at["W"])),)

    def prepare(model, image, text, sizes) -> Inputs:
        photo_inputs = photo_input(model, image, None, sizes)
        return Inputs((list(photo_inputs[0]),), sizes)

    def ways(model, inputs, recording):
        def at_size(at: dict) -> tuple:
            return disable_resizing(shadow_copy(model.net, parameters(model.net)), **at), example(at)

        base = {**model.sizes, **inputs.sizes}
        probes = [{**base, "H": height, "W": width} for height, width in zip(*SIDES[1], strict=True)]
        yield (
            Vocabulary(("H", "W"), {}, at_size, missing_ops=True, note=ONE_BY_ONE, device=model.device),
            probes[:PROBES],
        )

    return generic_spec(
        net=lambda H, W: disable_resizing(build(), H, W),
        sizes={"H": SIDE, "W": SIDE},
        example=example,
        prepare=prepare,
        result=tensors_by_name,
        ways=ways,
    )
