"""Names of answers: trained models see pictures of known names.

Shapes are drawn here with Pillow, photos are the samples, which are named after what they show. CIFAR-10 and the
characters of a text number their names in the order of the alphabet (`batches.meta`; Unicode), so that no two of them
can be exchanged where there is no picture of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import cos, pi, sin
from typing import Any

import torch
from PIL import Image, ImageDraw

from tracer.inputs.images import SAMPLES, sample_photo
from tracer.verify.checks.reference_run import PlainRun, array, tensors

COLOURS = {
    "red": "#d63031",
    "orange": "#f08c1e",
    "yellow": "#f5d232",
    "green": "#32a050",
    "blue": "#3264d2",
    "purple": "#8c46aa",
}
BARS = [(-1, -0.36), (-0.36, -0.36), (-0.36, -1), (0.36, -1), (0.36, -0.36), (1, -0.36)]
STAR = [(sin(i * pi / 5) * (0.45 if i % 2 else 1), -cos(i * pi / 5) * (0.45 if i % 2 else 1)) for i in range(10)]
CORNERS: dict[str, Any] = {
    "circle": [(cos(i * pi / 60), sin(i * pi / 60)) for i in range(120)],
    "square": [(-1, -1), (1, -1), (1, 1), (-1, 1)],
    "triangle": [(0, -1), (1, 1), (-1, 1)],
    "cross": [*BARS, *((-x, -y) for x, y in BARS)],
    "star": STAR,
}
"""The corners of each shape, half of whose width is 1; y points down."""

MIN_ACCURACY = 0.75
"""The least share of pictures whose answer has to be their name: models that are right most of the time."""


def draw_shape(shape: str, colour: str, x: float = 32, y: float = 32, radius: float = 10) -> Image.Image:
    """Draw a shape on a light ground, 64×64, its edges antialiased."""
    picture = Image.new("RGB", (512, 512), "#ececec")
    ImageDraw.Draw(picture).polygon([(8 * (x + radius * a), 8 * (y + radius * b)) for a, b in CORNERS[shape]], colour)
    return picture.resize((64, 64), Image.Resampling.BOX)


def problems(run: PlainRun) -> Iterator[str]:
    """Show a trained model pictures whose names are known, and check its answers."""
    yield from _options(run)
    shown, trained = run.trace.result, str(getattr(run.model, "weights", "")).startswith("trained on")
    if not trained or "run here with" in run.model.weights:
        return
    if shown.get("kind") == "classes":
        names = list(shown["classes"])
        if "CIFAR-10" in run.model.weights and names != sorted(names):
            yield f"the classes of CIFAR-10 are numbered by the alphabet, not {', '.join(names)}"
        photos = {name: sample_photo(name) for name in SAMPLES if name in names}
        yield from _right(photos, {name: names[_logits(run, photo)[0].argmax()] for name, photo in photos.items()})
    elif shown.get("kind") == "labels":
        pictures = {shape: draw_shape(shape, COLOURS["red"]) for shape in CORNERS}
        answers = {shape: shown["classes"][_logits(run, p)[0, 32, 32].argmax()] for shape, p in pictures.items()}
        answers |= {"background": shown["classes"][_logits(run, pictures["circle"])[0, 4, 4].argmax()]}
        yield from _right(answers, answers)
    elif shown.get("kind") == "sentences":
        names = [f"a {colour} {shape}" for colour in COLOURS for shape in CORNERS]
        answers = {}
        for name in names:
            _, colour, shape = name.split()
            logits = _logits(run, draw_shape(shape, COLOURS[colour]), "; ".join(names))
            answers[name] = names[logits[0].argmax()]
        yield from _right(answers, answers)
    elif shown.get("kind") == "caption":
        yield from _captions(run)
    elif shown.get("kind") == "next":
        known = (run.model.card or {}).get("vocabulary", "")
        if isinstance(known, str) and list(known) != sorted(known):
            yield "the characters are not numbered in their order"
    elif shown.get("kind") == "tokens":
        for text in ("A string to turn", "a few letters"):
            filled = text.ljust(run.model.sizes["T_max"], str(shown.get("pad", " ")))
            captions = _names(run, _logits(run, None, text)[0].argmax(axis=-1))
            if captions != filled[::-1]:
                yield f"{text!r} is answered by {captions!r}, trained to be reversed"


def _options(run: PlainRun) -> Iterator[str]:
    """Check that weights with other options than those of their training are reported as such."""
    match = re.search(r"; trained with (.*), run here with (.*)$", str(getattr(run.model, "weights", "")))
    if match:
        trained, here = (dict(part.split("=") for part in group.split(" and ")) for group in match.groups())
        own = {name: str(value) for name, value in run.model.options.items()}
        if any(own.get(name) != value or trained.get(name) == value for name, value in here.items()):
            yield f"the weights are said to be {match[0].removeprefix('; ')}, the options are {own}"


def _captions(run: PlainRun) -> Iterator[str]:
    """Check the model's captions of one drawn shape: of every colour, of every shape, large and small."""
    captions = {}
    for size, radius in (("large", 10.0), ("small", 5.8)):
        for number, shape in enumerate(CORNERS):
            colour = list(COLOURS)[(number + (size == "small")) % len(COLOURS)]
            inputs = run.model.inputs(image=draw_shape(shape, COLOURS[colour], radius=radius))
            captions[f"a {size} {colour} {shape}"] = " ".join(inputs.words[1:])
    yield from _right(captions, captions)


def _right(expected, answers: dict[str, str]) -> Iterator[str]:
    wrong = [f"{name} is called {answers[name]}" for name in expected if answers[name] != name]
    if len(wrong) > (1 - MIN_ACCURACY) * len(answers):
        yield f"{len(wrong)} of {len(answers)} have another's name: {', '.join(wrong[:4])}"


def _logits(run: PlainRun, image, text: str | None = None):
    options = {"image": image} if text is None else {"text": text} if image is None else {"image": image, "text": text}
    inputs = run.model.inputs(**options)
    with torch.no_grad():
        return array(tensors(run.model.net(*inputs, **inputs.named))[0])


def _names(run: PlainRun, numbers) -> str:
    known = (run.model.card or {}).get("vocabulary", run.model.spec.vocabulary)
    return "".join(known[number] for number in numbers)
