"""A model of ours: a net, its sizes, its textbook, and how a photo or a sentence becomes its input."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np
import torch

from tracer.inputs.images import Crop, centre_crop, sample_photo, to_array
from tracer.notation import MEANINGS
from tracer.probe import Vocabulary
from tracer.record import Picture, Segment, Trace
from tracer.steps import Line
from tracer.tracing import assemble, record_or_explain, solved

MEAN, STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
"""How pixels are normalised where no card says otherwise."""


@dataclass(frozen=True)
class Spec:
    """All that a model's file says about it besides the net.

    `sizes` are the underived sizes and their defaults, `derived` what the others equal, `names` what a dimension
    may be, in order of preference, and `probes` the tiny sizes at which dimensions are solved, all distinct.
    `example(sizes, B)` gives args for a probe; `prepare(model, image, text, batch)` gives `Inputs`; `lines(sizes)`
    the equations; `result(model, output)` what the model says, as plain data.
    """

    net: Callable[..., torch.nn.Module]
    lines: Callable[[dict[str, int]], list[Line]]
    takes: tuple[str, ...]
    sizes: dict[str, int]
    derived: dict[str, str]
    names: tuple[str, ...]
    probes: tuple[dict[str, int], ...]
    example: Callable
    prepare: Callable
    result: Callable
    segments: Callable


class Inputs(tuple):
    """The tensors that forward takes, in its order; also knows the photo, its crop, the words and the segments."""

    photo: np.ndarray | None = None
    crop: Crop | None = None
    words: tuple[str, ...] = ()
    segments: tuple[Segment, ...] = ()


@dataclass
class Model:
    """A model that is ready to run; made by `tracer.load`."""

    name: str
    net: torch.nn.Module
    spec: Spec
    sizes: dict[str, int]
    weights: str
    card: dict | None = None
    _solutions: dict = field(default_factory=dict, repr=False)

    @property
    def takes(self) -> tuple[str, ...]:
        """What `inputs` and `trace` may be given: "image", "text" or both."""
        return self.spec.takes

    @cached_property
    def lines(self) -> list[Line]:
        """The model's textbook at these sizes."""
        return self.spec.lines(self.sizes)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """What dimensions are solved over, and how the net is built at other sizes."""

        def build(sizes):
            return seeded(self.spec.net, {**self.sizes, **sizes}), self.spec.example(sizes, sizes["B"])

        return Vocabulary(self.spec.names, self.spec.derived, build)

    def inputs(self, image=None, text: str | None = None, *, batch: int = 1) -> Inputs:
        """The tensors that forward takes, from a PIL photo or a text, repeated `batch` times.

        Without either: the model's own sample. ValueError for an input that the model does not take.
        """
        for kind, given in (("image", image), ("text", text)):
            if given is not None and kind not in self.takes:
                raise ValueError(f"{self.name!r} takes {' and '.join(self.takes)}, but was given {_article(kind)}")
        if batch < 1:
            raise ValueError(f"B={batch} inputs can't run: B must be at least 1")
        return self.spec.prepare(self, image, text, batch)

    def trace(self, image=None, text: str | None = None, *, batch: int = 1, keep=None, prove: bool = True) -> Trace:
        """Runs the model once and proves what it shows; see `tracer.trace` for `keep` and `prove`."""
        inputs = self.inputs(image, text, batch=batch)
        with torch.no_grad():
            recording = record_or_explain(self.net, tuple(inputs), {}, keep, prove)
        sizes = {"B": batch, **self.sizes}
        solution, notes = self._solved(recording.ops, sizes)
        picture, values = None, {}
        if inputs.crop is not None:
            rows, columns = self.sizes["H"] // self.sizes["P"], self.sizes["W"] // self.sizes["P"]
            first = next(segment.start for segment in inputs.segments if segment.name == "image")
            picture = Picture("photo", inputs.crop.box, rows, columns, first)
            values["photo"] = torch.from_numpy(inputs.photo)
        return assemble(
            self.net,
            recording,
            model=self.name,
            sizes=self.vocabulary.complete(sizes),
            derived=self.spec.derived,
            solution=solution,
            lines=self.lines,
            execute=prove,
            notes=notes,
            picture=picture,
            values=values,
            words=inputs.words,
            segments=inputs.segments,
            result=self.spec.result(self, recording.output),
            weights=self.weights,
        )

    def _solved(self, ops, sizes):
        """The solution of this op list at these sizes; it does not depend on values, so it is solved once."""
        key = (tuple(sorted(sizes.items())), hash(tuple((op.name, op.module, op.line) for op in ops)))
        if key not in self._solutions:
            if len(self._solutions) >= 16:
                self._solutions.clear()
            probes = [{**self.sizes, **probe} for probe in self.spec.probes]
            self._solutions[key] = solved(ops, sizes, self.vocabulary, probes)
        return self._solutions[key]


def photo_input(model: Model, image, text, batch: int) -> Inputs:
    """A photo, cut and resized as in training, normalised: `[B, C, H, W]` float32."""
    sizes, card = model.vocabulary.complete({"B": batch, **model.sizes}), model.card or {}
    photo = sample_photo() if image is None else image.convert("RGB")
    cut, crop = centre_crop(photo, sizes["H"], sizes["W"])
    pixels = torch.from_numpy(to_array(cut, card.get("mean", MEAN), card.get("std", STD)))
    channels = pixels[torch.arange(sizes["C"]) % pixels.shape[0]]  # [C, H, W]
    inputs = Inputs((channels.expand(batch, *channels.shape).contiguous(),))
    inputs.photo, inputs.crop = np.array(photo), crop
    inputs.segments = model.spec.segments(sizes, inputs)
    return inputs


def class_probabilities(model: Model, logits: torch.Tensor) -> dict:
    """The classes and their probabilities, `softmax(Z)`, of the first input of the batch."""
    names = (model.card or {}).get("classes", ())
    if len(names) != logits.shape[-1]:
        names = [f"class {i}" for i in range(logits.shape[-1])]
    return {"kind": "classes", "classes": list(names), "probabilities": logits[0].softmax(-1).tolist()}


def seeded(net: Callable[..., torch.nn.Module], sizes: dict[str, int], seed: int = 0) -> torch.nn.Module:
    """The net at these sizes with seeded random weights, in eval mode; the global RNG is left alone.

    Parameters that start as zeros get small random values, so that no proof on them is empty.
    """
    sizes = {name: value for name, value in sizes.items() if name != "B"}
    with forked_rng(seed):
        module = net(**sizes).eval()
        for parameter in module.parameters():
            if not parameter.any():
                torch.nn.init.normal_(parameter, std=0.02)
    return module


@contextmanager
def forked_rng(seed: int):
    """Seeds torch's RNG inside the block and puts it back after it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def check_sizes(spec: Spec, name: str, given: dict) -> None:
    """ValueError with one sentence for a size that the model lacks, that is derived, or that is no positive integer."""
    for symbol, value in given.items():
        if symbol == "B":
            raise ValueError("B is no size of a model but how many inputs run at once: give batch=… to inputs or trace")
        if symbol in spec.derived or symbol == "S":
            equals = spec.derived.get(symbol)
            of = [other for other in spec.sizes if equals and other in _names(equals)]
            how = f" ({symbol} = {equals.replace('**', '^')}): set {' or '.join(of)} instead" if equals else ""
            raise ValueError(f"{symbol}={value} can't be set, since {symbol} is derived{how or ' from the others'}")
        if symbol not in spec.sizes:
            known = MEANINGS.get(symbol)
            what = f"has no size {symbol!r} ({known})" if known else f"has no size {symbol!r}"
            raise ValueError(f"{name!r} {what}; its sizes are {', '.join(spec.sizes)}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{symbol}={value!r} is no size: a whole number from 1 up was expected")


def parameters_of(spec: Spec, sizes: dict[str, int]) -> int:
    """How many parameters the net has at these sizes, counted on `meta`, where they cost no memory."""
    with forked_rng(0), torch.device("meta"):
        return sum(prod(parameter.shape) for parameter in spec.net(**sizes).parameters())


def _names(text: str) -> set[str]:
    from tracer.notation import parse

    return {str(found) for found in parse(text).free_symbols}


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
