"""What a model answers: classes, tokens, and places that it could not predict."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tracer.capture.tensors import named_tensors
from tracer.spec.preparation import MASKED_MEAN, MASKED_STD, generate_caption, names, words_of
from tracer.textbook.claims import Claim, Why
from tracer.textbook.explanations import WHY
from tracer.textbook.names import Hint

# Answer of a model as plain data, the `result` of a trace, and the hints of its embedding and its logits.


def class_names(model, count: int) -> list[str]:
    """Return the names of so many classes, from the card of a model; by their numbers where it has others."""
    names = (model.card or {}).get("classes", ())
    return list(names) if len(names) == count else [f"class {i}" for i in range(count)]


def class_probabilities(model, inputs, logits: torch.Tensor) -> dict:
    """Return the classes and their probabilities, `softmax(Z)` of logits `[B, K]`, for the first input of the batch."""
    names = class_names(model, logits.shape[-1])
    return {"kind": "classes", "classes": names, "probabilities": logits[0].softmax(-1).tolist()}


def token_names(model, numbers: Sequence[int]) -> list[str]:
    """Return the texts of tokens by their numbers, from the vocabulary of a model."""
    vocabulary = words_of(model)
    return [vocabulary[i] if i < len(vocabulary) else f"token {i}" for i in numbers]


def next_tokens(model, inputs, logits: torch.Tensor, *, count: int = 10) -> dict:
    """Return the most probable next tokens, from logits `[B, T, V]`, for the first input of the batch.

    `unit` is the word for a token.
    """
    shares = logits[0, -1].softmax(-1)
    best = shares.topk(min(count, len(shares)))
    unit = "character" if isinstance(words_of(model), str) else "token"
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
    names = class_names(model, logits.shape[-1])
    labels = logits[0].argmax(-1)
    shares = labels.flatten().bincount(minlength=len(names)) / labels.numel()
    return {"kind": "labels", "classes": names, "labels": labels.tolist(), "shares": shares.tolist()}


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


def embedding_hint(note: Why | str = ()) -> Hint:
    """Return the hint of the embedding of a text, with a note."""
    why = (*WHY["row of a table"], Claim("Training can set these numbers freely."))
    return Hint("embedding", title="Look up", letter=r"\mathbf{X}_t", why=why, note=note)


def logits_hints(note: Why | str = ()) -> tuple[Hint, Hint]:
    """Return the hints of the logits of next tokens: from the matrix of the embedding, or from a separate head, which
    has the note."""
    tied = Hint("logits", module="", title="Logits, tied", why=WHY["tied logits"])
    why = (*WHY["own logits"], *WHY["probable next"])
    return tied, Hint("logits", module="head", title="Logits", below=r"\mathrm{vocab}", why=why, note=note)


# Anomaly map of a masked autoencoder: errors of patches predicted from others (He et al. 2022; note 001).

ROUNDS, TRUSTED_SHARE = 3, 0.85
"""The number of rounds of an anomaly map, and the share of the other patches that it reads."""


def patches_of(image: torch.Tensor, side: int) -> torch.Tensor:
    """Return the pixels of each patch, in the layout that the model predicts: `[B, C, H, W]` to `[B, N, P²C]`."""
    B, C, H, W = image.shape
    cut = image.view(B, C, H // side, side, W // side, side)
    return cut.permute(0, 2, 4, 3, 5, 1).reshape(B, -1, side * side * C)


def image_of(patches: torch.Tensor, rows: int, columns: int, side: int) -> torch.Tensor:
    """Return the image of these patches: `[B, N, P²C]` to `[B, C, H, W]`."""
    B, _, width = patches.shape
    grid = patches.view(B, rows, columns, side, side, width // side**2)
    return grid.permute(0, 5, 1, 3, 2, 4).reshape(B, -1, rows * side, columns * side)


def complementary(rows: int, columns: int) -> list[torch.Tensor]:
    """Return four masks that together hide every patch once: the indices of the hidden patches, in raster order.

    Each hides every second patch of every second row, so that all neighbours of a hidden patch are visible. A mask that
    would hide nothing, or everything, is left out.
    """
    row, column = torch.arange(rows)[:, None], torch.arange(columns)
    visible = [((row % 2 == i) & (column % 2 == j)).reshape(-1).nonzero()[:, 0] for i in (0, 1) for j in (0, 1)]
    return [hidden for hidden in visible if 0 < len(hidden) < rows * columns]


@torch.no_grad()
def predict_hidden(net: torch.nn.Module, image: torch.Tensor, doubt: torch.Tensor | None = None) -> torch.Tensor:
    """Return each patch as predicted from the others, over complementary masks: `[B, N, P²C]` of `[B, C, H, W]`.

    With `doubt`, `[B, N]`, the prediction reads only the others with the least doubt: `TRUSTED_SHARE` of them.
    """
    rows, columns = image.shape[-2] // net.P, image.shape[-1] // net.P
    predicted = patches_of(image, net.P).clone()
    share = 1.0 if doubt is None else TRUSTED_SHARE
    doubt = torch.zeros(predicted.shape[:2], device=predicted.device) if doubt is None else doubt
    for masks in _alike(complementary(rows, columns)):
        count = max(1, round(share * (rows * columns - len(masks[0]))))
        ranked = [doubt.index_fill(1, hidden.to(doubt.device), torch.inf).argsort(dim=1) for hidden in masks]
        visible = torch.cat([each[:, :count].sort(dim=1).values for each in ranked])
        batch = image.repeat(len(masks), 1, 1, 1)  # one run for all masks that hide as many patches
        for hidden, output in zip(masks, net(batch, visible).split(len(image)), strict=True):
            predicted[:, hidden] = output[:, hidden]
    return predicted


def _alike(masks: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return masks in groups that hide as many patches each."""
    groups: dict[int, list[torch.Tensor]] = {}
    for hidden in masks:
        groups.setdefault(len(hidden), []).append(hidden)
    return list(groups.values())


def anomaly_map(net: torch.nn.Module, image: torch.Tensor) -> torch.Tensor:
    """Return the error of each patch predicted from the others: the root mean square, `[B, N]`.

    A visible defect would be continued into its neighbours. So the prediction is repeated `ROUNDS` times, and each time
    the patches with the largest errors before are hidden from all.
    """
    prediction = None
    for _ in range(ROUNDS):
        prediction = (predict_hidden(net, image, prediction) - patches_of(image, net.P)).square().mean(dim=-1).sqrt()
    return prediction


@torch.no_grad()
def reconstruction(model, inputs, output: torch.Tensor) -> dict:
    """Return the visible patches of the first input, the picture with predicted ones, and the anomaly map.

    `pixels` are 0 to 255, `[H][W][C]`; `anomaly` is `[rows][columns]`, in grey levels of 255.
    """
    image, visible = inputs[0][:1], inputs[1][0]
    side, card = model.sizes["P"], model.card or {}
    rows, columns = image.shape[-2] // side, image.shape[-1] // side
    patches = output[:1].clone()
    patches[0, visible] = patches_of(image, side)[0, visible]
    mean, std = (
        torch.tensor(card.get(name, default)).view(-1, 1, 1)
        for name, default in (("mean", MASKED_MEAN), ("std", MASKED_STD))
    )
    pixels = (image_of(patches, rows, columns, side)[0] * std + mean).mul(255).round().clamp(0, 255)
    levels = anomaly_map(model.net, image)[0] * float(std.mean()) * 255
    return {
        "kind": "reconstruction",
        "visible": visible.tolist(),
        "pixels": pixels.permute(1, 2, 0).int().tolist(),
        "anomaly": levels.view(rows, columns).tolist(),
    }
