"""Inputs of a model of two towers, from a photo and a list of sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from tracer.inputs.images import MEAN, STD, centre_crop, to_array
from tracer.inputs.model_inputs import Inputs
from tracer.inputs.synthetic.scenes import sample_scene
from tracer.inputs.tokenizers import Words
from tracer.utils.error_text import quote

if TYPE_CHECKING:
    from tracer.models.shared.spec import Model

SAMPLE = "a red circle; a blue circle; a red square; a green star"
"""The sentences that are compared where none are given."""

BEGIN, END = 0, 1
"""Numbers of the tokens around a sentence."""


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text, one a line or separated by semicolons, each once. Raise ValueError where there is
    none."""
    sentences = [sentence.strip() for line in text.splitlines() for sentence in line.split(";") if sentence.strip()]
    if not sentences:
        raise ValueError(
            f"the text {quote(text)} has no sentence, expected at least one, on a line of its own or before a ';'"
        )
    return list(dict.fromkeys(sentences))


def encode_sentences(sentences: Sequence[str], vocabulary: Sequence[str], length: int | None = None) -> torch.Tensor:
    """Return token numbers `[K, T]`: each sentence with begin and end tokens, padded with end tokens to the longest, or
    to `length`.

    ValueError quotes the first word that the vocabulary lacks.
    """
    known = Words(vocabulary)
    rows = [[BEGIN, *known.encode(sentence), END] for sentence in sentences]
    width = length or max(map(len, rows))
    return torch.tensor([(row + [END] * width)[:width] for row in rows])


def sentences_input(vocabulary: Sequence[str], sample: str) -> Callable[..., Inputs]:
    """Return a function from a photo and sentences to pixels `[B, C, H, W]` and token numbers `[K, T]`.

    An argument K repeats or cuts the list, an argument T pads or cuts the sentences.
    """

    def prepare(model: Model, image, text: str | None, options: dict[str, int]) -> Inputs:

        sizes, card = model.vocabulary.complete({**options, **model.sizes}), model.card or {}
        sentences, words = split_sentences(sample if text is None else text), card.get("vocabulary", vocabulary)
        sentences = [sentences[i % len(sentences)] for i in range(options.get("K", len(sentences)))]
        tokens = encode_sentences(sentences, words, options.get("T"))
        if tokens.shape[1] > sizes["T_max"]:
            long = max(sentences, key=len)
            raise ValueError(
                f"{quote(long)} and its begin and end are T={tokens.shape[1]} tokens, too many: the model reads at "
                f"most T_max={sizes['T_max']}"
            )
        if text is None:
            tokens = tokens % sizes["V"]
        elif tokens.max() >= sizes["V"]:
            raise ValueError(f"{quote(text)} has words that this model, with V={sizes['V']}, does not know")
        photo = (sample_scene().image() if image is None else image).convert("RGB")
        cut, crop = centre_crop(photo, sizes["H"], sizes["W"])
        pixels = torch.from_numpy(to_array(cut, card.get("mean", MEAN), card.get("std", STD)))
        pixels = pixels[torch.arange(sizes["C"]) % pixels.shape[0]]  # [C, H, W]
        at = {**options, "K": tokens.shape[0], "T": tokens.shape[1]}
        return Inputs(
            (pixels.expand(options["B"], *pixels.shape).contiguous(), tokens),
            at,
            photo=np.array(photo),
            crop=crop,
            sentences=tuple(sentences),
            words=tuple(words[number] if number < len(words) else str(number) for number in tokens[0].tolist()),
            segments=model.spec.segments({**sizes, **at}),
        )

    return prepare
