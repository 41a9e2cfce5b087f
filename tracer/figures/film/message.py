"""Film as one message for the browser: the texts of each beat, and the numbers that the stage draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from tracer.export import verdicts
from tracer.export.to_html import equation, text
from tracer.figures import attention_maps, predictions
from tracer.figures.envelope import half
from tracer.figures.film import sentences
from tracer.figures.film.storyboard import Beat, Storyboard, heads_weights
from tracer.figures.predictions import visible_token
from tracer.figures.tensors import data_uri, encode_image
from tracer.record import Step, Trace
from tracer.symbols import notation
from tracer.symbols.letters import OWN, Letters
from tracer.utils.errors import shorten
from tracer.utils.text import percent, scientific, shape_numbers

ROOM = 300_000
"""Bytes of attention in a message: all heads if they fit, else their mean, else the rows of the token in focus."""
PHOTO = 420
"""Pixels of the longer side of the part of the photo that the model gets, at most."""
PHOTO_SIDE = 640
"""Pixels of the longer side of the whole photo, at most."""
LIT_SIDE = 336
"""Pixels of the height of the photo that the answer lights."""
MAX_ANSWER_LETTERS = 64
"""Characters of the tokens that a model answers with: as many as stand beside the lanes."""
BARS = 10
"""Bars of the answer."""
CLASSES = ("#3b4254", "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#d55e00", "#cc79a7", "#0072b2")
"""Colours of the classes of pixels, which are told apart without red and green (Okabe and Ito 2008)."""


def build(board: Storyboard, room: int = ROOM, letters: Letters = OWN) -> dict[str, Any]:
    """Return what the film shows, for its message, with equations and shapes in these letters; `room` is the number of
    bytes for attention."""
    trace, snapshots, looks, beats = board.trace, [], [], []
    level = _level(board, room)
    for id, beat in zip(ids(board), board.beats, strict=True):
        entry = line_facts(beat, letters) | {"id": id}
        if beat.snapshot is not None:
            read = board.streams[beat.snapshot.stream].read
            like = None
            if read is not None and beat.snapshot.present[read]:
                like = half(beat.snapshot.likeness(read))
            snapshots.append(
                {
                    "stream": beat.snapshot.stream,
                    "present": beat.snapshot.present.astype(np.uint8),
                    "change": half(beat.snapshot.change),
                    "like": like,
                    "length": half(beat.snapshot.lengths),
                    **{
                        name: None if moved is None else half(moved)
                        for name, moved in (("attention", beat.snapshot.attention), ("mlp", beat.snapshot.mlp))
                    },
                }
            )
            entry["snapshot"] = len(snapshots) - 1
        if beat.record is not None:
            looks.append(_look(board, beat, level))
            entry["look"] = len(looks) - 1
            if len(looks[-1]["weights"].scaled) > 1:
                entry |= {"heads": list(beat.caption.heads), "rest": beat.caption.rest}
        beats.append(entry)
    return {
        "model": trace.model,
        "weights": shorten(trace.weights, 120),
        "photo": _photo(trace),
        "input": next((sentences.build_input(beat.cells) for beat in board.beats if beat.cells is not None), None),
        "streams": [
            {
                "lanes": [[lane.name, lane.mark, lane.patch, lane.word] for lane in stream.lanes],
                "read": stream.read,
                "focus": next((beat.focus for beat in reversed(board.beats) if beat.stream == index), 0),
                "rollout": _rollout(board, index, level, room),
            }
            for index, stream in enumerate(board.streams)
        ],
        "beats": beats,
        "snapshots": snapshots,
        "looks": looks,
        "answer": _answer(trace),
        "proofs": _proofs(trace),
        "unit": trace.result.get("unit", "token"),
    }


def ids(board: Storyboard) -> list[str]:
    """Return the names of the beats in addresses: "photo", "block3", and "image.block3" where there are towers."""
    several = len({beat.part for beat in board.beats if beat.number}) > 1
    names, counts = [], Counter[str]()
    for beat in board.beats:
        name = f"{beat.kind}{beat.number or ''}"
        name = f"{beat.part.replace('/', '')}.{name}" if several and beat.part else name
        counts[name] += 1
        names.append(name if counts[name] == 1 else f"{name}.{counts[name]}")
    return names


def _rollout(board: Storyboard, index: int, level: str, room: int) -> dict[str, Any] | None:
    """Return the rollout of the last tower in a stream, `[1, queries, keys]`, in the form of `_look`."""
    beats = [beat for beat in board.beats if beat.stream == index and beat.record is not None and not beat.across]
    if len(beats) < 2:
        return None
    last = beats[-1]
    part = last.part.partition("/")[0]
    slots = board.streams[index].slots[last.part]
    try:
        choices = attention_maps.blocks(board.trace, part or None)
        matrix = attention_maps.rollout(board.trace, choices, part or None) if choices else None
    except (LookupError, ValueError):
        return None
    if matrix is None or matrix.shape != (len(slots), len(slots)):
        return None
    alone = level.endswith("one") or 2 * matrix.size > room // 3
    queries = [slots.index(last.focus)] if alone else None
    rows = matrix if queries is None else matrix[queries]
    return {"slots": slots, "keys": None, "queries": queries, "weights": half(rows[None])}


def line_facts(beat: Beat, letters: Letters = OWN) -> dict[str, Any]:
    """Return the texts of a beat: title, sentence, equation, shape and proof."""
    shape = ""
    if beat.shape:
        symbolic = notation.shape_latex(letters.shape(beat.symbolic))
        inside = f"{letters.line(beat.symbol)} \\in {symbolic}" if beat.symbol else ""
        shape = f"{equation(inside)} = {text(shape_numbers(beat.shape))}" if inside else text(shape_numbers(beat.shape))
    lines = (beat.also.latex if beat.also else "", beat.latex)
    return {
        "kind": beat.kind,
        "label": beat.label,
        "title": beat.caption.title,
        "sentence": beat.caption.sentence,
        "equation": " ".join(f"<span>{equation(letters.line(line))}</span>" for line in lines if line),
        "shape": shape,
        "proof": (said := verdict_text(beat)),
        "verdict": beat.shown.verdict if beat.shown and said else "",
        "steps": list(beat.steps),
        "shown": beat.shown.id if beat.shown else "",
        "stream": beat.stream,
        "focus": beat.focus,
        "number": beat.number,
        "snapshot": None,
        "look": None,
    }


def verdict_text(beat: Beat) -> str:
    """Return the verdict on the equations of a beat. The answer has none unless it is a bad one: a tick beside it would
    say that the answer is right."""
    if beat.kind == "answer" and beat.shown is not None and beat.shown.verdict == "verified":
        return ""
    return proof(beat.shown, beat.also)


def proof(step: Step | None, also: Step | None = None) -> str:
    """Return the verdict on a step's equation as text, with its error; empty for an input, which needs no proof.

    Where `also` has the same verdict, the text is of both, with the larger error and the fewer runs; else of the one
    that is worse off.
    """
    if step is None:
        return ""
    if also is not None and also.verdict != step.verdict and step.verdict == "verified":
        return proof(also)
    both = also is not None and also.verdict == step.verdict == "verified"
    checked = min(step.checked, also.checked) if also is not None and both else step.checked
    if also is not None and both and (also.error or 0) > (step.error or 0):
        step = also
    if step.verdict == "recomputed":
        return "recomputed: a fused operation never holds this tensor"
    error = f", error {scientific(step.error)}" if step.error is not None and not step.refuted else ""
    said = verdicts.sentence(replace(step, checked=checked))
    return (said.replace("verified", "both verified") if both else said) + error


def _proofs(trace: Trace) -> str:
    """Return how many of all equations are verified, where no proof is pending."""
    if not trace.steps or any(step.pending for step in trace.steps):
        return ""
    count = sum(step.verdict == "verified" for step in trace.steps)
    return f"{count:,} of {len(trace.steps):,} equations verified"


def _level(board: Storyboard, room: int) -> str:
    """Return how much of the attention fits: "heads", "mean", or of the focus alone "heads of one", "mean of one"."""
    records = [beat.record for beat in board.beats if beat.record is not None]
    sizes = {
        "heads": sum(record.heads * record.queries * record.keys for record in records),
        "mean": sum(record.queries * record.keys for record in records),
        "heads of one": sum(record.heads * record.keys for record in records),
    }
    return next((level for level, count in sizes.items() if 2 * count <= room), "mean of one")


def _look(board: Storyboard, beat: Beat, level: str) -> dict[str, Any]:
    """Return the weights of one attention, `[views, queries, keys]`, the lanes of its tokens, and the kinds of its
    rows: a digit for each query of each view and of their mean, "" for a view without any.

    `keys` are None where they are the same tokens, and `queries` where they are all of them.
    """
    record = beat.record
    assert record is not None and beat.stream is not None
    slots = board.streams[beat.stream].slots[beat.part]
    query = slots.index(beat.focus) if level.endswith("one") else None
    if level == "mean" and beat.weights is not None:
        weights = beat.weights[None]
    else:
        weights = heads_weights(board.trace, record, query)
        weights = weights[:, None] if query is not None else weights
    closed = int((weights == 0).all(0).sum()) if query is None else None
    weights = weights.mean(0, keepdims=True) if level.startswith("mean") else weights
    views = np.concatenate([weights, weights.mean(0, keepdims=True)]) if len(weights) > 1 else weights
    shut = partial(sentences.closed_keys, board.trace, record, query) if record.mask != "none" else None
    return {
        "slots": slots,
        "from": beat.across[0] if beat.across else beat.stream,
        "keys": beat.across[1] if beat.across else None,
        "heads": record.heads,
        "queries": None if query is None else [query],
        "mask": record.mask,
        "closed": closed,
        "kinds": ["".join(map(str, view)) if view.any() else "" for view in sentences.kinds(views, shut)],
        "weights": half(weights),
    }


def _photo(trace: Trace) -> dict[str, Any] | None:
    """Return the whole photo with the model's crop, in its pixels, as `attention_maps` does."""
    picture = trace.picture
    if picture is None or picture.value not in trace.values:
        return None
    photo = Image.fromarray(np.asarray(trace.values[picture.value])).convert("RGB")
    left, top, right, bottom = picture.crop
    scale = min(1.0, PHOTO / max(right - left, bottom - top), PHOTO_SIDE / max(photo.size))
    whole = max(1, round(photo.width * scale)), max(1, round(photo.height * scale))
    resized = photo.resize(whole, Image.Resampling.BICUBIC)
    return {
        "image": encode_image(resized, "JPEG" if max(whole) > 128 else "PNG"),
        "photo": list(whole),
        "crop": [side * scale for side in picture.crop],
        "rows": picture.rows,
        "columns": picture.columns,
    }


def _answer(trace: Trace) -> dict[str, Any] | None:
    """Return the model's answer for drawing: bars, tokens or a picture; None where it has none of these."""
    try:
        if trace.result.get("kind") == "map":
            return _map(trace)
        return _drawable_result(trace.result)
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError):  # out of a stranger's file
        return None


def _map(trace: Trace) -> dict[str, Any] | None:
    """Return the photo lit by a map of importance; None for a run without its photo."""
    picture, photo = trace.picture, trace.values.get("photo")
    if picture is None or photo is None:
        return None
    rows = trace.result["map"]
    size = (LIT_SIDE * len(rows[0]) // len(rows), LIT_SIDE)
    seen = Image.fromarray(np.asarray(photo)).resize(size, Image.Resampling.BICUBIC, box=tuple(picture.crop))
    image = data_uri(predictions.spotlight(rows, seen), "JPEG")
    return {"bars": [], "image": image, "label": "The photo, as bright as the map says that it matters"}


def _drawable_result(result: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = result.get("kind")
    if kind == "tokens":
        tokens = [visible_token(str(token)) for token in result["tokens"]]
        room = next(
            (count for count in range(len(tokens)) if sum(map(len, tokens[: count + 1])) > MAX_ANSWER_LETTERS),
            len(tokens),
        )
        return {"tokens": tokens[:room] + ["…"] * (room < len(tokens)), "bars": []}
    if kind == "reconstruction":
        pixels = np.asarray(result["pixels"], float)
        pixels = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[-1] == 1 else pixels
        image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
        return {"bars": [], "image": data_uri(image, "PNG"), "label": "The picture with the hidden patches predicted"}
    if kind == "labels":
        labels = np.asarray(result["labels"])
        labels = labels[0] if labels.ndim == 3 else labels
        colours = np.array([[int(code[at : at + 2], 16) for at in (1, 3, 5)] for code in CLASSES], np.uint8)
        image = Image.fromarray(colours[labels % len(CLASSES)])
        bars = _bars(result["classes"], result["shares"])
        for bar in bars:
            bar["colour"] = CLASSES[list(result["classes"]).index(bar["full"]) % len(CLASSES)]
        return {"bars": bars, "image": data_uri(image, "PNG"), "label": "The class of every pixel"}
    names = next((result[key] for key in ("classes", "sentences", "tokens") if key in result), ())
    if names and "probabilities" in result:
        return {"bars": _bars(names, result["probabilities"])}
    return None


def _bars(names: Sequence[str], shares: Sequence[float]) -> list[dict[str, Any]]:
    """Return the largest shares as bars, in the model's order."""
    pairs = list(zip(names, map(float, shares), strict=True))
    order = sorted(range(len(pairs)), key=lambda place: -pairs[place][1])[:BARS]
    return [
        {
            "name": shorten(visible_token(str(pairs[place][0])), 32),
            "full": str(pairs[place][0]),
            "share": pairs[place][1],
            "text": percent(pairs[place][1]),
            "rank": order.index(place),
        }
        for place in sorted(order)
    ]
