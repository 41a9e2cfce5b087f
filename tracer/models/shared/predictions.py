"""Answer of a model as plain data, the `result` of a trace, and the hints of its logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tracer.capture.tensors.pytree import named_tensors
from tracer.models.shared.preparation.captioning_inputs import generate_caption, names
from tracer.textbook.claims import Why
from tracer.textbook.explanations import WHY
from tracer.textbook.hints import Hint


def class_probabilities(model, inputs, logits: torch.Tensor) -> dict:
    """Return the classes and their probabilities, `softmax(Z)` of logits `[B, K]`, for the first input of the batch."""
    names = (model.card or {}).get("classes", ())
    if len(names) != logits.shape[-1]:
        names = [f"class {i}" for i in range(logits.shape[-1])]
    return {"kind": "classes", "classes": list(names), "probabilities": logits[0].softmax(-1).tolist()}


def token_names(model, numbers: Sequence[int]) -> list[str]:
    """Return the texts of tokens by their numbers, from the vocabulary of a model."""
    vocabulary = (model.card or {}).get("vocabulary", model.spec.vocabulary)
    return [vocabulary[i] if i < len(vocabulary) else f"token {i}" for i in numbers]


def next_tokens(model, inputs, logits: torch.Tensor, *, count: int = 10) -> dict:
    """Return the most probable next tokens, from logits `[B, T, V]`, for the first input of the batch.

    `unit` is the word for a token.
    """
    shares = logits[0, -1].softmax(-1)
    best = shares.topk(min(count, len(shares)))
    vocabulary = (model.card or {}).get("vocabulary", model.spec.vocabulary)
    unit = "character" if isinstance(vocabulary, str) else "token"
    names = token_names(model, best.indices.tolist())
    prediction = {"text": list(inputs.words), "tokens": names, "probabilities": best.values.tolist()}
    return {"kind": "next", "unit": unit, **prediction}


def token_at_each_place(model, inputs, probabilities: torch.Tensor) -> dict:
    """Return the most probable token at every position, from probabilities `[B, T, V]`, for the first input."""
    best = probabilities[0].max(-1)
    names = token_names(model, best.indices.tolist())
    return {"kind": "tokens", "text": list(inputs.words), "tokens": names, "probabilities": best.values.tolist()}


def pixel_classes(model, inputs, logits: torch.Tensor) -> dict:
    """Return the most probable class of every pixel, from logits `[B, H, W, K]`, for the first input of the batch.

    `labels` has H rows of W indices into `classes`; `shares` is each class's share of the picture, 0 to 1.
    """
    names = (model.card or {}).get("classes", ())
    if len(names) != logits.shape[-1]:
        names = [f"class {i}" for i in range(logits.shape[-1])]
    labels = logits[0].argmax(-1)
    shares = labels.flatten().bincount(minlength=len(names)) / labels.numel()
    return {"kind": "labels", "classes": list(names), "labels": labels.tolist(), "shares": shares.tolist()}


def picture_caption(model, inputs, logits: torch.Tensor) -> dict:
    """Return the greedy caption of the picture, its words, and the most probable words after the input text.

    The latter are from logits `[B, T, V]`; all are for the first input of the batch. `pointing` are the attentions
    whose maximum lies most often on the object of a word, by the card of these weights: each a `layer`, a `head` or
    none for the mean over heads, and the `share`, 0 to 1. It is empty if none was measured.
    """
    known, card = names(model), model.card or {}
    measured = all(model.options.get(name) == value for name, value in card.get("options", {}).items())
    pointing = [card.get(f"pointing, {which}") for which in ("best head", "mean over heads")]
    words = [known[number] for number in generate_caption(model, inputs[0])]
    best = logits[0, -1].softmax(-1).topk(min(10, logits.shape[-1]))
    return {
        "kind": "caption",
        "caption": " ".join(words),
        "words": words,
        "text": list(inputs.words),
        "tokens": [known[number] for number in best.indices.tolist()],
        "probabilities": best.values.tolist(),
        "pointing": [region for region in pointing if region and measured],
    }


def sentence_probabilities(model, inputs, logits: torch.Tensor) -> dict:
    """Return the sentences and their probabilities, `softmax(Z)` of logits `[B, K]`, for the first photo."""
    shares = logits[0].softmax(-1)
    return {"kind": "sentences", "sentences": list(inputs.sentences), "probabilities": shares.tolist()}


def embedding(model, inputs, output) -> dict:
    """Return the size of the features, `[B, S, D]` or `[B, D]`, and their mean norm, for the first input of the batch.

    A model without a head has no answer of its own.
    """
    hidden = output if isinstance(output, torch.Tensor) else output["last_hidden_state"]
    return {"kind": "embedding", "shape": list(hidden.shape), "norm": float(hidden[0].norm(dim=-1).mean())}


def tensors_by_name(model, inputs, output) -> dict:
    """Return the names and shapes of an output that has no form of its own here."""
    return {"kind": "tensors", "shapes": {name: list(tensor.shape) for name, tensor in named_tensors("output", output)}}


def logits_hints(note: Why | str = ()) -> tuple[Hint, Hint]:
    """Return the hints of the logits of next tokens: from the matrix of the embedding, or from a separate head, which
    has the note."""
    tied = Hint("logits", module="", title="Logits, tied", why=WHY["tied logits"])
    why = (*WHY["own logits"], *WHY["probable next"])
    return tied, Hint("logits", module="head", title="Logits", below=r"\mathrm{vocab}", why=why, note=note)
