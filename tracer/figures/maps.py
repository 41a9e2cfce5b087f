"""Attention over a photo, packed for drawing in the browser: all heads and queries at once, so pointing is free."""

import json
from io import BytesIO

import numpy as np
from PIL import Image

from tracer.attention import layers as of_part
from tracer.attention import rollout as over_blocks
from tracer.attention import segments
from tracer.figures.colours import table
from tracer.figures.masks import labels
from tracer.figures.photos import shown
from tracer.figures.tensors import as_array
from tracer.record import AttentionRecord, Trace

MAX_BYTES = 6_000_000


def layers(trace: Trace, part: str | None = None) -> list[int]:
    """The layers of a tower that can be laid over the photo: self-attention over its patches, all of one size, none
    lost."""
    records = _records(trace, part)
    named = [segment.name for segment in segments(trace, part)]
    if not trace.picture or (named and "image" not in named):
        return []
    enough = trace.picture.first + trace.picture.rows * trace.picture.columns
    sizes = [
        (record.heads, record.keys) if record.queries == record.keys >= enough and not record.problem else None
        for record in records
    ]
    first = next((size for size in sizes if size), None)
    return [layer for layer, size in enumerate(sizes) if size and size == first]


def _records(trace: Trace, part: str | None) -> tuple[AttentionRecord, ...]:
    return of_part(trace, part) if trace.attentions else ()


def fit(trace: Trace, chosen: list[int], part: str | None = None) -> bool:
    """Whether the maps of these layers fit in one message to the browser."""
    records = _records(trace, part)
    return sum(4 * records[i].heads * records[i].queries * records[i].keys for i in chosen) <= MAX_BYTES


def rollout(trace: Trace, chosen: list[int], part: str | None = None) -> np.ndarray | None:
    """Attention rollout over all blocks of a tower, `[S, S]` of the first input of the batch (Abnar and Zuidema 2020).

    None where the maps of a block are lost or don't fit, since the product would leave that block out.
    """
    whole = chosen and len(chosen) == len(_records(trace, part))
    return as_array(over_blocks(trace, part=part))[0] if whole else None


def pack(trace: Trace, layers: list[int], rollout: np.ndarray | None = None, part: str | None = None) -> bytes:
    """What the overlay needs, as bytes: header length, JSON header, float32 weights, colour scale, JPEG of the photo.

    The weights are `[layers, h, S_q, S_k]` of the first input of the batch, then `[S, S]` of the rollout if given.
    The header's length is four bytes, little end first, and the weights start at a multiple of four.
    """
    picture = trace.picture
    weights = np.stack([as_array(trace.attention(layer, part=part))[0] for layer in layers])
    photo = Image.fromarray(np.asarray(trace.values[picture.value]))
    file = BytesIO()
    shown(photo).save(file, "JPEG", quality=88)
    floats = [weights.ravel()] + ([as_array(rollout).ravel()] if rollout is not None else [])
    header = {
        "photo": list(photo.size),
        "crop": list(picture.crop),
        "rows": picture.rows,
        "columns": picture.columns,
        "first": picture.first,
        "others": others(trace, part),
        "part": part or "",
        "layers": layers,
        "heads": weights.shape[1],
        "tokens": weights.shape[3],
        "rollout": rollout is not None,
        "jpeg": file.tell(),
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 4)
    numbers = np.concatenate(floats).astype("<f4").tobytes()
    return b"".join([len(text).to_bytes(4, "little"), text, numbers, table(), file.getvalue()])


def others(trace: Trace, part: str | None = None) -> list[tuple[str, int]]:
    """(name, token) of the tokens that are no patch, such as CLS or the words of a text."""
    picture = trace.picture
    patches = range(picture.first, picture.first + picture.rows * picture.columns)
    found = [token for own in segments(trace, part) for token in range(own.start, own.stop)]
    names = labels(trace, part, max(found, default=-1) + 1)
    return [(names[token], token) for token in found if token not in patches]
