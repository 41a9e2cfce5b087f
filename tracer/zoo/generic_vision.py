"""Undescribed nets over photos and videos: their inputs, their outputs, and the sizes that are tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tracer.inputs.model_inputs import Inputs
from tracer.record import Segment
from tracer.shapes import Vocabulary
from tracer.shapes.probes import named_axes
from tracer.shapes.variation import parameters, shadow_copy, valueless_mode
from tracer.spec.preparation import photo_input
from tracer.spec.results import class_probabilities, tensors_by_name
from tracer.spec.spec import Spec
from tracer.utils.torch_internals import disable_dispatch_modes
from tracer.zoo.user_factory import SizeGroup, group, library_ways, valueless

MOVES = 3
"""Pixels by which a photo is moved from one frame of a video to the next."""

BATCH = group("B", (3, 5, 2, 7, 4), (1, 1, 1, 1, 1))
CLASSES = group("K", (11, 13, 17, 23, 29))
FRAMES = group("T_f", (18, 20, 34, 26, 22), (16, 32, 24, 40, 48))
SIDES = (
    ((67, 98, 81, 124, 150), (61, 92, 130, 107, 75)),
    ((64, 160, 96, 256, 128), (96, 128, 192, 320, 160)),
    ((160, 256, 352, 192, 288), (192, 288, 224, 320, 416)),
)
"""Heights and widths that are tried: odd ones, then multiples of 32, then larger ones."""
TIMES = ((2, 3, 5, 7, 4), (3, 2, 7, 4, 5))
"""Multiples of a net's own height and width."""


def sides(height: int, width: int) -> SizeGroup:
    """Return heights and widths of a photo; multiples of the net's own come last, for nets that cut it into whole
    windows."""
    multiples = tuple(tuple(side * times for times in row) for side, row in zip((height, width), TIMES, strict=True))
    squares = tuple((row, row) for row, _ in (*SIDES, multiples))
    return SizeGroup(("H", "W"), (*SIDES, multiples, *squares))


def spec(
    build: Callable[..., torch.nn.Module],
    *,
    side: tuple[int, int],
    channels: int = 3,
    classes: int | None = None,
    frames: int | None = None,
    pair: bool = False,
    shaped: bool = False,
) -> Spec:
    """Return the `Spec` of a vision net without a description of its own.

    `build(H=…, W=…, K=…)` builds it, `side` is the height and width of its training, `frames` the length of a video.
    With `pair` it takes two photos; with `shaped` its weights depend on H and W, which are sizes of the input
    elsewhere.
    """
    first = {"B": 1, "T_f": frames} if frames else {"B": 1}
    own, own_side = {"K": classes} if classes else {}, dict(zip("HW", side, strict=True))
    sizes = {**own, **(own_side if shaped else {})}
    runs = (*first, *(() if shaped else own_side))

    def example(at: dict) -> tuple:
        shape = (at["B"], channels, *([at["T_f"]] if frames else ()), at["H"], at["W"])
        return tuple(torch.randn(shape) for _ in range(2 if pair else 1))

    def net(**at: int) -> torch.nn.Module:
        return build(**{**own_side, **at})

    def prepare(model, image, text, wanted) -> Inputs:
        wanted = {**first, **({} if shaped else own_side), **wanted}
        prepared = photo_input(model, image, None, wanted)
        pixels = prepared[0]
        if frames:
            pixels = shifted_frames(pixels, wanted["T_f"], axis=2)
        return Inputs((pixels, shifted_frames(pixels, 2, axis=0)[pixels.shape[0] :]) if pair else (pixels,), wanted)

    def ways(model, inputs, recording):
        base = {**model.sizes, **inputs.sizes}
        symbols = [
            BATCH,
            *([FRAMES] if frames else ()),
            *([CLASSES] if classes and model.sizes["K"] == classes else ()),
        ]
        names = tuple(name for name in ("B", "K", "T_f", "H", "W") if name in base)
        mode = valueless_mode()

        def on_meta(at: dict) -> tuple:
            with disable_dispatch_modes(), torch.device("meta"):
                built = net(**{name: at[name] for name in ("K", "H", "W") if name in at}).eval()
                return model.intervene(built), example(at)

        def on_no_cpu(at: dict) -> tuple:
            return valueless(on_meta(at)[0], mode, model.device), example(at)

        groups = [*symbols, sides(*side)]
        full = Vocabulary(names, {}, on_no_cpu, lambda: mode, device=model.device)
        yield from library_ways(model, recording, base, groups, on_meta, full)
        if model.valueless:
            return
        named = {"B": 0, **({"T_f": 2} if frames else {}), "H": -2, "W": -1}
        yield from named_axes(model.net, recording, named, None)[1]  # one that reads values

    return generic_spec(
        channels, net=net, sizes=sizes, runs=runs, example=example, prepare=prepare, result=answer, ways=ways
    )


def leading_segments(start: int, registers: int, N: int, part: str = "") -> tuple[Segment, ...]:
    """Return CLS, so many registers, and N patches, of a sequence with `start` tokens before the patches."""
    named = (("CLS", 0, start - registers), ("registers", start - registers, start), ("image", start, start + N))
    return tuple(Segment(*segment, part) for segment in named if segment[1] < segment[2])


def generic_spec(channels: int = 3, **known: Any) -> Spec:
    """Return the `Spec` of a net over photos from nothing but `known`: its lines may leave ops out, its sizes are
    searched for, and it has no sequence."""
    return Spec(
        whole=False,
        takes=("image",),
        samples="photos",
        derived={"C": str(channels)},
        names=(),
        probes=(),
        segments=lambda sizes: (),
        **known,
    )


def shifted_frames(pixels: torch.Tensor, count: int, axis: int) -> torch.Tensor:
    """Return `count` frames, each the photo `[B, C, H, W]` shifted `MOVES` pixels to the right of the one before: along
    a new axis 2, or concatenated along the batch (axis 0)."""
    frames = [pixels.roll(MOVES * number, dims=-1) for number in range(count)]
    return torch.stack(frames, dim=axis) if axis else torch.cat(frames)


def answer(model, inputs, output) -> dict:
    """Return classes where there is one row of K logits for each photo; else the shapes of the outputs."""
    if isinstance(output, torch.Tensor) and output.shape == (inputs.sizes["B"], model.sizes.get("K")):
        return class_probabilities(model, inputs, output)
    return tensors_by_name(model, inputs, output)


class PhotoSizes:
    """Attributes that `photo_input` reads of a model whose sizes come from the photo."""

    def __init__(self, card: dict | None):
        self.card, self.sizes, self.vocabulary, self.spec = card, {}, self, self

    def complete(self, sizes: dict) -> dict:
        """Return the sizes as they are."""
        return sizes

    def segments(self, sizes: dict) -> tuple:
        """Return no stretches of the sequence: none are known."""
        return ()


# torchvision's detectors: a photo, and boxes around what it shows.

SIDE = 320
"""Side of the photo. Published detectors enlarge photos to 800 pixels and more; here they take them as they are."""
PROBES = 3
ONE_BY_ONE = "no symbol for B: a detector goes through the photos of a batch one by one"


def disable_resizing(net: torch.nn.Module, H: int, W: int, **others: int) -> torch.nn.Module:
    """Change a detector in place to take a photo of H × W pixels as it is, and return it."""
    net.transform.min_size, net.transform.max_size = (min(H, W),), max(H, W)
    net.transform.fixed_size = net.transform.fixed_size and (W, H)
    return net


def detection_spec(build: Callable[..., torch.nn.Module]) -> Spec:
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
