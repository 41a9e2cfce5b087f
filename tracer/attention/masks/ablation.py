"""Ablation of attention from words to the picture: mask it and predict again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from tracer import changes
from tracer.inputs.model_inputs import Inputs
from tracer.models.shared.preparation.captioning_inputs import names
from tracer.utils.error_text import quote

if TYPE_CHECKING:
    from tracer.models.shared.spec import Model


class AblationResult(NamedTuple):
    """Model's predictions with the picture masked in some blocks, one entry for each word that it predicts.

    `words` are the words of the text and, last, the most probable next one; `open` and `closed` their probabilities
    with all blocks open and with some closed, `best` and `instead` the most probable words at these places.
    """

    words: tuple[str, ...]
    open: tuple[float, ...]
    closed: tuple[float, ...]
    best: tuple[str, ...]
    instead: tuple[str, ...]


@torch.no_grad()
def close_picture(model: Model, inputs: Inputs, layers: Sequence[int]) -> AblationResult:
    """Mask the picture from the words in these blocks, which count from 0, and predict each word of the text again.

    Each word is predicted from the true words before it, in the run and with the picture closed, so that no difference
    comes from another beginning. What a word has read in an open block stays: only all blocks closed hide the picture.
    ValueError for a model without picture and text in one stream, and for a block that it does not have.
    """
    own = {segment.name: segment for segment in inputs.segments}
    if not {"image", "text"} <= own.keys() or len({segment.part for segment in inputs.segments}) > 1:
        raise ValueError(f"{quote(model.name)} has no picture and text in one sequence, so the picture can't be closed")
    blocks = getattr(model.net, "blocks", ())
    for layer in layers:
        if not 0 <= layer < len(blocks):
            raise ValueError(f"layer {layer} is not in this model, expected 0 to {len(blocks) - 1}")
    image, text = own["image"], own["text"]
    close = changes.close(range(image.start, image.stop), range(text.start, text.stop))
    closed = model.with_changes({f"{blocks[layer]}.attention.scores": close for layer in layers}, inputs)
    before = model.net(*inputs)[0].softmax(-1).cpu()  # [T, V]
    after = closed.net(*inputs)[0].softmax(-1).cpu()  # [T, V]
    known = names(model)
    best, instead = ([known[number] for number in shares.argmax(-1).tolist()] for shares in (before, after))
    following = torch.cat([inputs[1][0, 1:].cpu(), before[-1:].argmax(-1)])  # [T]
    place = torch.arange(len(following))
    return AblationResult(
        words=tuple(known[number] for number in following.tolist()),
        open=tuple(before[place, following].tolist()),
        closed=tuple(after[place, following].tolist()),
        best=tuple(best),
        instead=tuple(instead),
    )
