"""Inputs of models that read a picture and its caption, and the caption that such a model generates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

import torch

from tracer.inputs.model_inputs import Inputs
from tracer.inputs.synthetic.scenes import sample_scene
from tracer.inputs.tokenizers import Words
from tracer.models.shared.preparation.to_tensors import photo_input

if TYPE_CHECKING:
    from tracer.models.shared.spec import Model

BEGIN, END = 0, 1
"""The numbers of the tokens that begin and end a caption."""

MAX_CAPTION_TOKENS = 32
"""Tokens after which a caption is not written on, also where T_max is longer."""

LAST = 64
"""Pictures whose captions a fixed model remembers."""


@torch.no_grad()
def greedy(net: torch.nn.Module, image: torch.Tensor, longest: int) -> list[list[int]]:
    """Return the captions that the net generates for pictures `[B, C, H, W]` by greedy decoding.

    Token numbers without begin and end, fewer than `longest`.
    """
    tokens = torch.full((len(image), 1), BEGIN, device=image.device)
    ended = torch.zeros(len(image), dtype=torch.bool, device=image.device)
    for _ in range(longest):
        best = net(image, tokens)[:, -1].argmax(-1)  # [B]
        ended |= best == END
        if ended.all() or tokens.shape[1] == longest:
            break
        tokens = torch.cat([tokens, best[:, None]], dim=1)
    rows = [row[1:] for row in tokens.tolist()]
    return [row[: row.index(END)] if END in row else row for row in rows]


def generate_caption(model: Model, image: torch.Tensor) -> list[int]:
    """Return the caption that the model generates for the first of pictures `[B, C, H, W]`, as token ids; a `fixed`
    model caches those of its last pictures."""
    picture = image[:1].contiguous()
    key = sha256(picture.numpy()).digest()
    if (known := model.captions.get(key)) is None:
        known = greedy(model.net, picture.to(model.device), min(model.sizes["T_max"], MAX_CAPTION_TOKENS))[0]
        if model.fixed:
            remember_captions(model, {key: known})
    return known


def remember_captions(model: Model, captions: Mapping[bytes, list[int]]) -> None:
    """Cache captions by their pictures' hashes, `LAST` at most; a process may have them from the one that ran it."""
    model.captions.update(captions)
    for oldest in list(model.captions)[:-LAST]:
        model.captions.pop(oldest, None)


def names(model: Model) -> tuple[str, ...]:
    """Return the words of a model's V tokens, by its card or its file; without one, their ids."""
    known = tuple((model.card or {}).get("vocabulary", model.spec.vocabulary))[: model.sizes["V"]]
    return known + tuple(f"token {number}" for number in range(len(known), model.sizes["V"]))


def captioned_input(model: Model, image, text: str | None, options: dict[str, int]) -> Inputs:
    """Return a picture `[B, C, H, W]` and token numbers `[B, T]`, the first the begin token.

    For a picture alone the model generates the words; without either, the sample scene and its caption. An argument T
    cuts or repeats the words to T tokens. Raise ValueError for a text that is longer than T_max.
    """

    longest, known = model.sizes["T_max"], Words(names(model))
    photo_inputs = photo_input(model, image, None, {"T": 1, **options}, sample=lambda: sample_scene().image())
    if text is not None:
        words = known.encode(text)
    elif image is not None:
        words = generate_caption(model, photo_inputs[0])
    else:
        every = Words(model.spec.vocabulary).encode(sample_scene().caption)
        words = [number % model.sizes["V"] for number in every][: longest - 1]
    length = options.get("T", len(words) + 1)
    if length > longest:
        raise ValueError(
            f"T={length} tokens, with the one that begins, are too many: the model reads at most T_max={longest}"
        )
    numbers = [BEGIN, *(words * length if "T" in options else words)][:length]
    numbers += [BEGIN] * (length - len(numbers))
    tokens, sizes = torch.tensor(numbers).expand(options["B"], -1).contiguous(), {**options, "T": length}
    segments = model.spec.segments(model.vocabulary.complete({**sizes, **model.sizes}))
    return replace(
        photo_inputs, tensors=(photo_inputs[0], tokens), sizes=sizes, words=known.words(numbers), segments=segments
    )
