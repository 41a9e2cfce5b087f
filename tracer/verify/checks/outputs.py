"""Answers and places, computed again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass
from math import cos, pi, sin
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from tracer.attention import layers, places
from tracer.inputs.images import SAMPLES, Crop, centre_crop, patch_boxes, sample_photo
from tracer.lessons.training_step import training_step
from tracer.record import Trace
from tracer.tracing.logit_lens import LogitLens
from tracer.verify.checks import check
from tracer.verify.checks.changes import module_outputs, run_with_hook
from tracer.verify.checks.reference_run import PlainRun, array, softmax, tensors

# Anomaly map of a masked autoencoder, in grey levels of 255, recomputed in NumPy (He et al. 2022; note 001).

LEVELS = 0.05
"""Largest difference between two anomaly maps, in grey levels of 255."""


@check
def check_anomaly_maps(run: PlainRun) -> Iterator[str]:
    """Compare the map, the visible patches and the painted picture with those computed here."""
    shown = run.trace.result
    if shown.get("kind") != "reconstruction":
        return
    image, listed = array(run.inputs[0])[:1], run.inputs[1][0].tolist()
    side, card = run.model.sizes["P"], run.model.card or {}
    mean, std = np.array(card.get("mean", [0.5])), np.array(card.get("std", [0.2]))
    rows, columns = image.shape[-2] // side, image.shape[-1] // side
    if list(shown["visible"]) != listed:
        yield f"{len(shown['visible'])} patches are called visible, others than the {len(listed)} that were given"
    levels = _map(run.model.net, image, side) * std.mean() * 255
    anomaly = np.array(shown["anomaly"])
    if anomaly.shape != (rows, columns) or not abs(anomaly.ravel() - levels).max() <= LEVELS:
        yield f"the anomaly is {anomaly.ravel()[:3]} … grey levels, expected {levels[:3]} …"
    painted, reconstruction = _pixels(image, array(run.output)[0], listed, side), np.array(shown["pixels"], dtype=float)
    expected = np.clip(np.rint((painted * std + mean) * 255), 0, 255)
    if reconstruction.shape != expected.shape or not abs(reconstruction - expected).max() <= 1:
        yield "the painted picture is not made of the visible patches and of what the net predicts for the others"


def _map(net, image: np.ndarray, side: int) -> np.ndarray:
    """Return the root of the mean squared error of each patch `[N]`, predicted from the others: four times, with every
    second patch of every second row hidden; and that three times, each time from the 85 % of the others that were
    predicted best before."""
    columns, count = image.shape[-1] // side, image.shape[-2] // side * (image.shape[-1] // side)
    errors = np.zeros(count)
    for turn in range(3):
        before, patches = errors.copy(), []
        for group in range(4):
            hidden = [n for n in range(count) if (n // columns % 2, n % columns % 2) == divmod(group, 2)]
            others = [n for n in range(count) if n not in hidden]
            if not hidden or not others:
                continue
            trusted = len(others) if turn == 0 else max(1, round(0.85 * len(others)))
            context = sorted(sorted(others, key=lambda n: before[n])[:trusted])
            with torch.no_grad():
                predicted = net(torch.from_numpy(image).float(), torch.tensor([context]))
            patches += [(n, array(predicted)[0, n]) for n in hidden]
        for n, pixels in patches:
            errors[n] = np.sqrt(((pixels - _patch(image[0], n, side)) ** 2).mean())
    return errors


def _patch(image: np.ndarray, number: int, side: int) -> np.ndarray:
    """Return the pixels of a patch of `[C, H, W]`, pixel by pixel with its channels together."""
    row, column = divmod(number, image.shape[-1] // side)
    cut = image[:, row * side : (row + 1) * side, column * side : (column + 1) * side]
    return np.array([cut[:, y, x] for y in range(side) for x in range(side)]).ravel()


def _pixels(image: np.ndarray, predicted: np.ndarray, visible: list[int], side: int) -> np.ndarray:
    """Return the picture `[H, W, C]` of visible patches as they are and of the others as predicted."""
    canvas = image[0].transpose(1, 2, 0).copy()
    columns = canvas.shape[1] // side
    for number in set(range(len(predicted))) - set(visible):
        top, left = number // columns * side, number % columns * side
        canvas[top : top + side, left : left + side] = predicted[number].reshape(side, side, -1)
    return canvas


# Names of answers: trained models see pictures of known names.
#
# Shapes are drawn here with Pillow, photos are the samples, which are named after what they show. CIFAR-10 and the
# characters of a text number their names in the order of the alphabet (its file `batches.meta`; Unicode), so that no
# two of them can be exchanged where there is no picture of each.

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


@check
def check_class_names(run: PlainRun) -> Iterator[str]:
    """Show a trained model pictures whose names are known, and check its answers."""
    yield from _options(run)
    shown, trained = run.trace.result, str(getattr(run.model, "weights", "")).startswith("trained on")
    if not trained or "run here with" in run.model.weights:
        return
    if shown.get("kind") == "classes":
        names = list(shown["classes"])
        if "CIFAR-10" in run.model.weights and names != sorted(names):
            yield f"the classes of CIFAR-10 are numbered by the alphabet, not {', '.join(names)}"
        known = [name for name in SAMPLES if name in names]
        yield from _right({name: names[_logits(run, sample_photo(name))[0].argmax()] for name in known})
    elif shown.get("kind") == "labels":
        pictures = {shape: draw_shape(shape, COLOURS["red"]) for shape in CORNERS}
        answers = {shape: shown["classes"][_logits(run, p)[0, 32, 32].argmax()] for shape, p in pictures.items()}
        answers |= {"background": shown["classes"][_logits(run, pictures["circle"])[0, 4, 4].argmax()]}
        yield from _right(answers)
    elif shown.get("kind") == "sentences":
        names = [f"a {colour} {shape}" for colour in COLOURS for shape in CORNERS]
        answers = {}
        for name in names:
            _, colour, shape = name.split()
            logits = _logits(run, draw_shape(shape, COLOURS[colour]), "; ".join(names))
            answers[name] = names[logits[0].argmax()]
        yield from _right(answers)
    elif shown.get("kind") == "caption":
        yield from _captions(run)
    elif shown.get("kind") == "next":
        known = (run.model.card or {}).get("vocabulary", "")
        if isinstance(known, str) and list(known) != sorted(known):
            yield "the characters are not numbered in their order"
    elif shown.get("kind") == "tokens":
        for text in ("A string to turn", "a few letters"):
            filled = text.ljust(run.model.sizes["T_max"], str(shown.get("pad", " ")))
            captions = "".join(_name(run, number) for number in _logits(run, None, text)[0].argmax(axis=-1))
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
    yield from _right(captions)


def _right(answers: dict[str, str]) -> Iterator[str]:
    wrong = [f"{name} is called {answer}" for name, answer in answers.items() if answer != name]
    if len(wrong) > (1 - MIN_ACCURACY) * len(answers):
        yield f"{len(wrong)} of {len(answers)} have another's name: {', '.join(wrong[:4])}"


def _logits(run: PlainRun, image, text: str | None = None):
    options = {"image": image} if text is None else {"text": text} if image is None else {"image": image, "text": text}
    inputs = run.model.inputs(**options)
    with torch.no_grad():
        return array(tensors(run.model.net(*inputs, **inputs.named))[0])


# Logit lens, compared with a plain run in which a hook puts the stream of an earlier block behind the last one.

SCORE_TOLERANCE = 1e-4
"""Largest difference of scores, as a share of the largest."""


@check
def check_lens_answers(run: PlainRun) -> Iterator[str]:
    """Yield a sentence for each depth whose scores are not those of the model's own norm and head there."""
    try:
        lens = LogitLens(run.trace)
    except ValueError:  # it has no one stream, or no head
        return
    last = run.trace.value(run.trace.step(lens.depths[-1].id))
    outputs = module_outputs(run)
    same = (path for path, output in outputs.items() if isinstance(output, Tensor) and last is not None)
    path = next((path for path in same if torch.equal(outputs[path], last)), None)
    for depth in {0, len(lens.depths) // 2} if path is not None else ():
        stream = run.trace.value(run.trace.step(lens.depths[depth].id))
        if stream is None:
            continue
        scores = lens.scores(depth)
        alike = [one for one in run_with_hook(run, path, lambda args, output: stream) if one.shape == scores.shape]  # noqa: B023
        wanted = next((one for one in alike if one.is_floating_point()), None)
        if wanted is None:
            continue
        error = float((scores - wanted).abs().max())
        if not error <= SCORE_TOLERANCE * float(wanted.abs().max()):
            yield f"the lens after {lens.depths[depth].id!r} differs from the model's own head there, by {error}"


# Positions of a run's patches on the photo, on photos of odd sizes whose colours encode the position.
#
# A grey ramp across the photo tells of every pixel that the model is given from which column it comes, one down the
# photo from which row. Then single patches are painted, to see which token of the first attention changes.

PHOTOS = ((97, 61), (45, 71))
"""Width and height in pixels."""

MAX_DISTANCE = 0.25
"""Largest distance between the centre of a patch and where its pixels come from, in pixels of the photo."""


@check
def check_patch_positions(run: PlainRun) -> Iterator[str]:
    """Check every patch of the grid by its position, and some by their token."""
    picture = run.trace.picture
    pixels = _input(run)
    if picture is None or "image" not in run.model.takes or pixels is None:
        return
    yield from _lies(picture.crop, run.trace.values[picture.value].shape, pixels.shape[-2:], run)
    for size in PHOTOS:
        yield from _from(run, (picture.rows, picture.columns), pixels.shape[-2:], size)
    yield from _share()
    yield from _patch_tokens(run, (picture.rows, picture.columns), (3 * PHOTOS[0][0], 3 * PHOTOS[0][1]))


def _lies(box, shape, size: tuple[int, int], run: PlainRun) -> Iterator[str]:
    """Check that the crop is the largest one of the model's shape in the middle of the photo, or a share of that."""
    (left, top, right, bottom), (height, width), (rows, columns) = box, shape[:2], size
    share = (run.model.card or {}).get("crop", 1.0)
    if max(abs(left + right - width), abs(top + bottom - height)) > 1e-6:
        yield f"the crop {tuple(box)} is not in the middle of a photo of {width} × {height}"
    if abs((right - left) * rows - (bottom - top) * columns) > 1e-6 * width * rows:
        yield f"the crop {tuple(box)} has not the shape of the model's input"
    if abs(max((right - left) / width, (bottom - top) / height) - share) > 1e-6:
        yield f"the crop {tuple(box)} is not {share:g} of what fits into {width} × {height}"


def _from(run: PlainRun, grid: tuple[int, int], photo_size: tuple[int, int], size: tuple[int, int]) -> Iterator[str]:
    """Check that each patch lies where its pixels come from."""
    positions, crop = [], None
    for axis in (0, 1):
        length = size[axis]
        levels = np.rint(np.arange(length) * (254 / length)).astype(np.uint8)
        ramp = np.broadcast_to(levels[None, :] if axis == 0 else levels[:, None], size[::-1])
        inputs = run.model.inputs(image=Image.fromarray(np.repeat(ramp[..., None], 3, axis=2)))
        crop = inputs.crop
        pixels = _grey(run, inputs) / (254 / length) + 0.5
        positions.append(pixels.reshape(grid[0], pixels.shape[0] // grid[0], grid[1], -1).mean(axis=(1, 3)).ravel())
    if crop is None:
        yield f"of a photo of {size[0]} × {size[1]} it is not said which part the model sees"
        return
    yield from _lies(crop.box, size[::-1], photo_size, run)
    boxes = np.array(patch_boxes(crop, *grid))
    off = np.hypot((boxes[:, 0] + boxes[:, 2]) / 2 - positions[0], (boxes[:, 1] + boxes[:, 3]) / 2 - positions[1])
    yield from _points(crop, boxes)
    inner = off.reshape(grid)[1:-1, 1:-1] if min(grid) > 2 else off  # at the edge the filter has less to read
    if not inner.max() <= MAX_DISTANCE:
        yield f"patches of a photo of {size[0]} × {size[1]} are drawn up to {inner.max():.2f} pixels off their place"


def _share() -> Iterator[str]:
    """Check that a crop of a share of the photo, as libraries cut it, is that share of the largest one."""
    photo, share = Image.new("RGB", PHOTOS[0]), 0.875
    _, crop = centre_crop(photo, 32, 48, share=share)
    height = min(PHOTOS[0][1], PHOTOS[0][0] * 32 / 48) * share
    width = height * 48 / 32
    expected = [(PHOTOS[0][0] - width) / 2, (PHOTOS[0][1] - height) / 2]
    expected += [expected[0] + width, expected[1] + height]
    if np.abs(np.subtract(crop.box, expected)).max() > 1e-6:
        yield f"{share} of a photo is said to lie at {crop.box}, expected {tuple(expected)}"


def _points(crop: Crop, boxes: np.ndarray) -> Iterator[str]:
    """Check that points of the model's input map to the photo as the crop does, and back."""
    (left, top), (right, bottom) = boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)
    for across, down in ((0.0, 0.0), (0.25, 0.75), (1.0, 1.0)):
        expected = left + across * (right - left), top + down * (bottom - top)
        point = (across * crop.width, down * crop.height)
        shown, back = crop.to_photo(*point), crop.to_input(*expected)
        if max(np.abs(np.subtract(shown, expected)).max(), np.abs(np.subtract(back, point)).max()) > 1e-6:
            yield f"the point {point} of the input is said to lie at {shown} of the photo, expected {expected}"


def _patch_tokens(run: PlainRun, grid: tuple[int, int], size: tuple[int, int]) -> Iterator[str]:
    """Check that painting a patch changes its token, more than any other, if the first attention reads tokens."""
    trace = run.trace
    part, stop = next(((s.part, s.stop) for s in trace.segments if s.name in ("visible", "image")), ("", None))
    if part not in {record.part for record in trace.attentions}:
        return
    at = {patch: token for token, patch in places(trace, part).items()}
    known = sorted(at)
    if not known:
        yield f"no token of {part!r} is said to be a patch"
        return
    samples = {known[number * (len(known) - 1) // 6] for number in range(7)}
    photo = np.random.default_rng(0).integers(64, 192, (size[1], size[0], 3)).astype(np.uint8)
    first = layers(trace, part)[0].module
    before, crop = _entering(run, first, photo)
    if before is None or crop is None:
        return
    for patch in sorted(samples):
        left, top, right, bottom = patch_boxes(crop, *grid)[patch]
        painted = photo.copy()
        inner = [(3 * a + b) / 4 for a, b in ((top, bottom), (bottom, top), (left, right), (right, left))]
        first_row, last_row, first_column, last_column = map(round, inner)
        painted[first_row : last_row + 1, first_column : last_column + 1] = 255
        after, _ = _entering(run, first, painted)
        moved = np.abs(after[:stop] - before[:stop]).sum(axis=-1)  # a text that the model writes may be another now
        token = int(moved.argmax()) if moved.any() else None
        if token != at[patch]:
            yield f"patch {patch} is said to be token {at[patch]}, painting it changes token {token}"


def _entering(run: PlainRun, path: str, photo: np.ndarray):
    """Return the first attention's input for a photo, `[S, D]` float64, and the crop; None if it is not a sequence."""
    inputs, read = run.model.inputs(image=Image.fromarray(photo)), []

    def keep(module, args, kwargs):
        read.extend(x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor) and x.dim() == 3)

    first = run.model.net.get_submodule(path)
    with torch.no_grad(), first.register_forward_pre_hook(keep, with_kwargs=True):
        run.model.net(*inputs, **inputs.named)
    return array(read[0])[0] if read else None, inputs.crop


def _input(run: PlainRun, inputs=None) -> torch.Tensor | None:
    """Return the pixels of forward's input, `[B, C, H, W]`; None if it takes patches."""
    arguments = run.inputs if inputs is None else inputs
    return next((x for x in (*arguments, *arguments.named.values()) if x.is_floating_point() and x.dim() == 4), None)


def _grey(run: PlainRun, inputs) -> np.ndarray:
    """Return the first channel of the pixels of forward's input, as levels of 255, `[H, W]`."""
    card = run.model.card or {}
    usual = (0.5, 0.2 if run.model.sizes.get("C") == 1 else 0.5)
    mean, std = (np.ravel(card.get(name, statistic))[0] for name, statistic in zip(("mean", "std"), usual, strict=True))
    return (array(_input(run, inputs))[0, 0] * std + mean) * 255


# Answer of a run, recomputed in NumPy from the output of forward.

TOLERANCE = 1e-5
"""Largest difference of a probability; other numbers may differ by this share of the largest."""


@check
def check_predictions(run: PlainRun) -> Iterator[str]:
    """Compare the trace's result with the same numbers computed here, by the kind of the answer."""
    kind = run.trace.result.get("kind")
    if kind in KINDS:
        yield from KINDS[kind](run, run.trace.result)


def _classes(run: PlainRun, shown) -> Iterator[str]:
    logits = array(tensors(run.output)[0])[0]
    yield from _differs("probabilities", shown["probabilities"], softmax(logits))
    if len(shown["classes"]) != len(logits) or len(set(shown["classes"])) != len(logits):
        yield f"{len(shown['classes'])} names for {len(logits)} classes"


def _sentences(run: PlainRun, shown) -> Iterator[str]:
    logits = next((x for x in tensors(run.output) if x.shape == (len(run.inputs[0]), len(shown["sentences"]))), None)
    if logits is not None:
        yield from _differs("probabilities", shown["probabilities"], softmax(array(logits)[0]))
    if list(shown["sentences"]) != list(run.inputs.sentences):
        yield f"the sentences {shown['sentences']} are not those that were asked"


def _labels(run: PlainRun, shown) -> Iterator[str]:
    logits = array(tensors(run.output)[0])[0]
    best = logits.argmax(axis=-1)
    if len(shown["classes"]) != logits.shape[-1]:
        yield f"{len(shown['classes'])} names for {logits.shape[-1]} classes"
    if np.array(shown["labels"]).tolist() != best.tolist():
        yield "the label of a pixel is not its largest logit"
    shares = [(best == number).mean() for number in range(len(shown["classes"]))]
    yield from _differs("shares", shown["shares"], np.array(shares))


def _importance(run: PlainRun, shown) -> Iterator[str]:
    values = array(tensors(run.output)[0])[0].astype(np.float64)
    starts = [range(0, side, 2) for side in values.shape]
    cells = np.array([[values[i : i + 2, j : j + 2].mean() for j in starts[1]] for i in starts[0]])
    if np.abs(np.array(shown["map"], float) - 100 * cells).max() > 0.5 + 1e-3:
        yield "a cell of the map is not the mean of its pixels"
    yield from _differs("the share of the picture", [shown["share"]], np.array([(values > 0.5).mean()]))
    yield from _differs("the largest value", [shown["peak"]], np.array([values[shown["row"], shown["column"]]]))
    if values[shown["row"], shown["column"]] < values.max():
        yield "another pixel has a larger value than the one that is named"


def _next(run: PlainRun, shown) -> Iterator[str]:
    yield from _likeliest(run, shown, softmax(array(tensors(run.output)[0])[0, -1]))


def _tokens(run: PlainRun, shown) -> Iterator[str]:
    rows = array(tensors(run.output)[0])[0]
    if not (rows.min() >= 0 and np.allclose(rows.sum(axis=-1), 1, atol=1e-4)):  # logits; some models end in a softmax
        rows = softmax(rows)
    yield from _differs("probabilities", shown["probabilities"], rows.max(axis=-1))
    classes = run.model.card["classes"] if shown.get("unit") == "class" else None
    if list(shown["tokens"]) != [classes[n] if classes else _name(run, n) for n in rows.argmax(axis=-1)]:
        yield "the tokens are not the likeliest ones"


def _caption(run: PlainRun, shown) -> Iterator[str]:
    """Generate the caption again word by word, each the likeliest after all before it, from one run of the net for
    each."""
    yield from _likeliest(run, shown, softmax(array(tensors(run.output)[0])[0, -1]))
    image, written = run.inputs[0][:1], [0]
    most = min(run.model.sizes["T_max"], 32)
    while len(written) < most + 1:
        with torch.no_grad():
            best = int(array(run.model.net(image, torch.tensor([written])))[0, -1].argmax())
        if best == 1 or len(written) == most:
            break
        written.append(best)
    if list(shown["words"]) != [_name(run, number) for number in written[1:]]:
        yield f"the caption {shown['caption']!r} is not what the net writes"
    if shown["caption"].split() != list(shown["words"]):
        yield f"the caption {shown['caption']!r} is not its words"


def _embedding(run: PlainRun, shown) -> Iterator[str]:
    vectors = next((array(x) for x in tensors(run.output) if list(x.shape) == list(shown.get("shape", ()))), None)
    if vectors is not None and "norm" in shown:
        lengths = np.sqrt((vectors[0] ** 2).sum(axis=-1))
        yield from _differs("the mean length", [shown["norm"]], np.array([lengths.mean()]))


KINDS = {
    "classes": _classes,
    "sentences": _sentences,
    "labels": _labels,
    "map": _importance,
    "next": _next,
    "tokens": _tokens,
    "caption": _caption,
    "embedding": _embedding,
}


def _likeliest(run: PlainRun, shown, shares: np.ndarray) -> Iterator[str]:
    """Check the likeliest tokens, first the largest, and their probabilities; the text is the net's input."""
    best = np.argsort(-shares, kind="stable")[: len(shown["tokens"])]
    yield from _differs("probabilities", shown["probabilities"], shares[best])
    if len(shown["tokens"]) != min(10, len(shares)):
        yield f"{len(shown['tokens'])} tokens are listed, expected {min(10, len(shares))}"
    if list(shown["tokens"]) != [_name(run, number) for number in best]:
        yield f"the likeliest tokens are not {shown['tokens']}"
    numbers = next(x for x in run.inputs if not x.is_floating_point())[0].tolist()
    if _vocabulary(run) and list(shown["text"]) != [_name(run, number) for number in numbers]:
        yield "the text is not what the net was given"


def _name(run: PlainRun, number: int) -> str:
    """Return a token's name: by the card, else by the model's file; the id of one without a name."""
    known = _vocabulary(run)
    return known[number] if number < len(known) else f"token {number}"


def _vocabulary(run: PlainRun) -> Sequence[str]:
    return (run.model.card or {}).get("vocabulary", run.model.spec.vocabulary)


def _differs(what: str, shown, expected: np.ndarray) -> Iterator[str]:
    shown, scale = np.array(shown, dtype=float), max(1.0, abs(expected).max(initial=0))
    if shown.shape != expected.shape or not abs(shown - expected).max(initial=0) <= TOLERANCE * scale:
        yield f"{what} {shown.ravel()[:3]} … expected {expected.ravel()[:3]} …"


# Every tensor that forward returned must be the tensor of a step, bit by bit, and no other is called the output.


@check
def check_returned_tensors(run: PlainRun) -> Iterator[str]:
    """Compare the output of forward with the traced tensors of all steps."""
    own = [*run.inputs, *run.inputs.named.values(), *run.model.net.state_dict().values()]
    yield from find_unaccounted(run.trace, own)


def find_unaccounted(trace: Trace, inputs: Iterable) -> Iterator[str]:
    """Yield a sentence on each returned tensor that no step has, `inputs` being the inputs that the run may return
    unchanged; and on each step that is named the output and is not returned."""
    leaves = dict(_leaves("", trace.output, set()))
    values = {step.id: value for step in trace.steps if (value := trace.value(step)) is not None}
    if (names := [returned.name for returned in trace.returned]) != list(leaves):
        yield f"forward returns {', '.join(map(repr, leaves))}; the trace has {', '.join(map(repr, names))}"
    for returned in trace.returned:
        tensor = leaves.get(returned.name)
        if tensor is None:
            continue
        if returned.step and returned.step not in values and any(step.id == returned.step for step in trace.steps):
            continue  # the cap on kept values was reached
        same = [values[returned.step]] if returned.step in values else list(inputs) if returned.of else []
        if not returned.of.startswith("constant ") and not any(_same(tensor, value) for value in same):
            place = f" as {returned.name!r}" if returned.name else ""
            yield f"no step has what forward returns{place}, {returned.dtype} {list(returned.shape)}"
    for step in trace.steps:
        called = step.title == "Output" or step.title.startswith("Output: ")
        if called and step.id in values and not any(_same(values[step.id], tensor) for tensor in leaves.values()):
            yield f"step {step.id!r} is called {step.title!r}, and forward does not return it"


def _same(tensor: torch.Tensor, value: object) -> bool:
    """Return whether two tensors are the same numbers of the same dtype, also where these are NaN."""
    if not isinstance(value, torch.Tensor) or (tensor.shape, tensor.dtype) != (value.shape, value.dtype):
        return False
    return torch.equal(*(array.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for array in (tensor, value)))


def _leaves(name: str, value: object, visited: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of forward's output, by their Python paths."""
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    if id(value) in visited or isinstance(value, (type, torch.nn.Module)):
        return
    visited.add(id(value))
    if isinstance(value, (list, tuple)):
        items = [(f"{name}[{i}]", item) for i, item in enumerate(value)]
    else:
        own: Mapping = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
        if is_dataclass(value) and not isinstance(value, Mapping):
            own = {field.name: getattr(value, field.name, None) for field in fields(value)}
        hidden = not (isinstance(value, Mapping) or is_dataclass(value))
        items = [
            (f"{name}.{key}".lstrip("."), item)
            for key, item in own.items()
            if not (hidden and str(key).startswith("_"))
        ]
    for place, item in items:
        yield from _leaves(place, item, visited)


# A step of training: each gradient is verified, and the slope of the loss along all of them, measured by two runs of a
# copy in float64, is the displayed norm.

WAY = 1e-4
"""How far the weights go to either side, as a length."""
GRADIENT_TOLERANCE = 1e-3
"""Share of the slope by which the norm may differ: gradients are in float32."""


@check
def check_training_gradient(run: PlainRun) -> Iterator[str]:
    """Check the step of a model of ours that predicts the next token."""
    if run.trace.result.get("kind") not in ("next", "caption") or not hasattr(run.model.net, "blocks"):
        return
    tokens = run.inputs[-1]
    step = training_step(run.model.net, tuple(run.inputs), tokens, run.trace)
    for line in (step.logits, *step.lines):
        if line.verdict != "verified":
            yield f"the gradient of {', '.join(line.paths) or 'the logits'} is {line.verdict}: {line.problem}"
    net = deepcopy(run.model.net).double()
    inputs = [each.double() if each.is_floating_point() else each for each in run.inputs]
    with torch.enable_grad():
        logits = net(*inputs)
        shares = logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])
        gradients = torch.autograd.grad(-shares.mean(), list(net.parameters()))
    length = float(np.sqrt(sum((array(each) ** 2).sum() for each in gradients)))
    ends = []
    with torch.no_grad():
        for way in (WAY, -2 * WAY):
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter += way / length * gradient
            ends.append(_loss(array(net(*inputs)), tokens.numpy()))
    slope = (ends[0] - ends[1]) / (2 * WAY)
    if abs(step.squared_norm**0.5 - slope) > GRADIENT_TOLERANCE * slope:
        yield f"the norm of the gradient is {step.squared_norm**0.5:.6g}, and the slope of the loss {slope:.6g}"


def _loss(logits: np.ndarray, tokens: np.ndarray) -> float:
    """Return the mean cross-entropy of the next token."""
    rows = logits[:, :-1] - logits[:, :-1].max(-1, keepdims=True)
    chosen = np.take_along_axis(rows, tokens[:, 1:, None], -1)[..., 0]
    return float((np.log(np.exp(rows).sum(-1)) - chosen).mean())
