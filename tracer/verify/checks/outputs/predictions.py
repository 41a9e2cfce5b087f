"""Answer of a run, recomputed in NumPy from the output of forward."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from tracer.verify.checks.reference_run import PlainRun, array, softmax, tensors

TOLERANCE = 1e-5
"""Largest difference of a probability; other numbers may differ by this share of the largest."""


def problems(run: PlainRun) -> Iterator[str]:
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
    named = (run.model.card or {}).get("vocabulary", run.model.spec.vocabulary)
    if named and list(shown["text"]) != [_name(run, number) for number in numbers]:
        yield "the text is not what the net was given"


def _name(run: PlainRun, number: int) -> str:
    """Return a token's name: by the card, else by the model's file; the id of one without a name."""
    known = (run.model.card or {}).get("vocabulary", run.model.spec.vocabulary)
    return known[number] if number < len(known) else f"token {number}"


def _differs(what: str, shown, expected: np.ndarray) -> Iterator[str]:
    shown, scale = np.array(shown, dtype=float), max(1.0, abs(expected).max(initial=0))
    if shown.shape != expected.shape or not abs(shown - expected).max(initial=0) <= TOLERANCE * scale:
        yield f"{what} {shown.ravel()[:3]} … expected {expected.ravel()[:3]} …"
