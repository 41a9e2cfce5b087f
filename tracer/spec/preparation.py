"""From a photo or a text to the tensors that a model takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tracer.inputs.images import MEAN, STD, centre_crop, sample_photo, to_array
from tracer.inputs.model_inputs import Inputs, Words
from tracer.inputs.synthetic import sample, sample_scene
from tracer.utils.errors import quote

if TYPE_CHECKING:
    from tracer.record import Segment
    from tracer.spec.spec import Model


# Model input tensors from a photo or a text, and those of probes.


def random_photos(sizes: Mapping[str, int]) -> tuple[torch.Tensor]:
    """Return pixels `[B, C, H, W]` of a probe."""
    return (torch.randn(sizes["B"], sizes["C"], sizes["H"], sizes["W"]),)


def counted_tokens(sizes: Mapping[str, int]) -> tuple[torch.Tensor]:
    """Return token numbers `[B, T]` of a probe, one after the other."""
    return (torch.arange(sizes["B"] * sizes["T"]).view(sizes["B"], sizes["T"]) % sizes["V"],)


def photo_input(
    model: Any, image, text, options: dict[str, int], *, sample=sample_photo, usual=(MEAN, STD), grey: bool = False
) -> Inputs:
    """Return a photo, cut and resized as in training, normalised: `[B, C, H, W]` float32. `sample` is the default
    photo, `usual` the mean and deviation where no card has them; with `grey` its colours are mixed."""
    sizes, card = model.vocabulary.complete({**options, **model.sizes}), model.card or {}
    photo = sample() if image is None else image
    photo = photo if photo.mode == "RGB" else photo.convert("RGB")
    shown = photo.convert("L") if grey else photo
    cut, crop = centre_crop(shown, sizes["H"], sizes["W"], share=card.get("crop", 1.0))
    mean, std = (card.get(name, default) for name, default in zip(("mean", "std"), usual, strict=True))
    pixels = torch.from_numpy(to_array(cut, mean, std))
    channels = pixels[torch.arange(sizes["C"]) % pixels.shape[0]]  # [C, H, W]
    batch = channels.expand(options["B"], *channels.shape).contiguous()
    return Inputs((batch,), options, photo=np.array(photo), crop=crop, segments=model.spec.segments(sizes))


def text_input(tokenizer: type, vocabulary, sample: str, pad: str = "") -> Callable[..., Inputs]:
    """Return a function from a text to token numbers `[B, T]`, with the vocabulary of the card, or this one.

    An argument T cuts or repeats the text to T tokens; without, `pad` fills a text up to T_max, where that is the
    length that the model was trained on. Raise ValueError for a text of more than T_max tokens: none is cut silently.
    """

    def prepare(model: Model, image, text: str | None, options: dict[str, int]) -> Inputs:

        known = tokenizer((model.card or {}).get("vocabulary", vocabulary)[: model.sizes["V"]])
        own, most, text = text is None, model.sizes["T_max"], sample if text is None else text
        try:
            numbers = known.encode(text)
        except ValueError:
            if not own:
                raise
            numbers = [number % model.sizes["V"] for number in tokenizer(vocabulary).encode(text)]
        if not numbers:
            raise ValueError(f"the text {quote(text)} has no token, expected at least one")
        if options.get("T", 0) > most:
            raise ValueError(f"T={options['T']} tokens are too many: the model reads at most T_max={most}")
        if "T" in options:
            numbers = (numbers * (options["T"] // len(numbers) + 1))[: options["T"]]
        elif own:
            numbers = numbers[-most:]
        elif len(numbers) > most:
            raise ValueError(
                f"{quote(text)} has T={len(numbers)} tokens, too many: the model reads at most T_max={most}"
            )
        elif pad:
            numbers += known.encode(pad) * (most - len(numbers))
        length = len(numbers)
        batch, sizes = torch.tensor(numbers).expand(options["B"], -1).contiguous(), {**options, "T": length}
        segments = model.spec.segments({**model.sizes, **sizes})
        return Inputs((batch,), sizes, words=known.words(numbers), segments=segments)

    return prepare


# Inputs of models that read a picture and its caption, and the caption that such a model generates.

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


def words_of(model: Model) -> Sequence[str]:
    """Return the vocabulary of a model: a string of characters, or a list of words."""
    return (model.card or {}).get("vocabulary", model.spec.vocabulary)


def names(model: Model) -> tuple[str, ...]:
    """Return the words of a model's V tokens, by its card or its file; without one, their ids."""
    known = tuple(words_of(model))[: model.sizes["V"]]
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


# Inputs of a model of two towers, from a photo and a list of sentences.

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

        words, sizes = (model.card or {}).get("vocabulary", vocabulary), model.sizes
        sentences = split_sentences(sample if text is None else text)
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
        at = {**options, "K": tokens.shape[0], "T": tokens.shape[1]}
        photo_inputs = photo_input(model, image, None, at, sample=lambda: sample_scene().image())
        return replace(
            photo_inputs,
            tensors=(photo_inputs[0], tokens),
            sentences=tuple(sentences),
            words=tuple(words[number] if number < len(words) else str(number) for number in tokens[0].tolist()),
        )

    return prepare


# Inputs of a masked encoder from a picture of a surface: pixels, and the list of visible patches.

MASKED_MEAN, MASKED_STD = (0.5,), (0.2,)
"""How grey pixels are normalised where no card says otherwise."""


def visible_patches(batch: int, patches: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Return `count` of the patches for each input, drawn without repetition, in raster order: int64 `[B, N_v]`.

    Source: He et al. 2022, section 3, "Simple implementation", by sorting random numbers.
    """
    return torch.rand(batch, patches, generator=generator).argsort(dim=1)[:, :count].sort(dim=1).values


def surface_input(model: Model, image, text, options: dict[str, int]) -> Inputs:
    """Return a picture, cut, resized and normalised, `[B, C, H, W]` float32, and the visible patches `[B, N_v]`.

    `seed` decides which patches are visible; half of them are where N_v is missing. For models of one channel the
    picture is converted to grey.
    """
    options = dict(options)
    generator = torch.Generator().manual_seed(options.pop("seed"))
    sizes = model.vocabulary.complete({**options, **model.sizes})
    count = options.setdefault("N_v", max(1, sizes["N"] // 2))
    if count > sizes["N"]:
        raise ValueError(f"N_v={count} patches can't be visible: there are N={sizes['N']}")
    grey, usual = model.sizes["C"] == 1, (MASKED_MEAN, MASKED_STD)
    inputs = photo_input(model, image, None, options, sample=sample, usual=usual, grey=grey)
    visible = visible_patches(1, sizes["N"], count, generator)  # [1, N_v]
    return replace(inputs, tensors=(*inputs, visible.repeat(options["B"], 1)))


def place_visible(segments: tuple[Segment, ...], order: Sequence[int]) -> tuple[Segment, ...]:
    """Return the segments, the one named "visible" with its patches' positions: the first patches of `order`, as many
    as the segment has tokens."""
    return tuple(
        replace(segment, places=tuple(order[: segment.stop - segment.start])) if segment.name == "visible" else segment
        for segment in segments
    )
