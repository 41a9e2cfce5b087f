"""Attention over a photo, packed for drawing in the browser: all heads and queries at once, so pointing is free."""

import json
from io import BytesIO

import numpy as np
from PIL import Image

from tracer.attention import segments
from tracer.figures.colours import table
from tracer.figures.photos import shown
from tracer.figures.tensors import as_array
from tracer.record import Trace

MAX_BYTES = 6_000_000


def layers(trace: Trace) -> list[int]:
    """The layers that can be laid over the photo: self-attention over its patches, all of one size, none lost."""
    records = [record for record in trace.attentions if record.part == trace.attentions[0].part]
    enough = trace.picture.first + trace.picture.rows * trace.picture.columns if trace.picture else 0
    sizes = [
        (record.heads, record.keys)
        if trace.picture and record.queries == record.keys >= enough and not record.problem
        else None
        for record in records
    ]
    first = next((size for size in sizes if size), None)
    return [layer for layer, size in enumerate(sizes) if size and size == first]


def fit(trace: Trace, chosen: list[int]) -> bool:
    """Whether the maps of these layers fit in one message to the browser."""
    records = (trace.attentions[layer] for layer in chosen)
    return sum(4 * record.heads * record.queries * record.keys for record in records) <= MAX_BYTES


def rollout(trace: Trace, chosen: list[int]) -> np.ndarray | None:
    """Attention rollout over all blocks, `[S, S]` of the first input of the batch (Abnar and Zuidema 2020).

    None where the maps of a block are lost or don't fit, since the product would leave that block out.
    """
    from tracer.attention import rollout as over_blocks

    whole = len(chosen) == sum(record.part == trace.attentions[0].part for record in trace.attentions)
    return as_array(over_blocks(trace))[0] if whole else None


def pack(trace: Trace, layers: list[int], rollout: np.ndarray | None = None) -> bytes:
    """What the overlay needs, as bytes: header length, JSON header, float32 weights, colour scale, JPEG of the photo.

    The weights are `[layers, h, S_q, S_k]` of the first input of the batch, then `[S, S]` of the rollout if given.
    The header's length is four bytes, little end first, and the weights start at a multiple of four.
    """
    picture = trace.picture
    weights = np.stack([as_array(trace.attention(layer))[0] for layer in layers])
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
        "others": others(trace),
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


def others(trace: Trace) -> list[tuple[str, int]]:
    """(name, token) of the tokens that are no patch, such as CLS."""
    picture = trace.picture
    patches = range(picture.first, picture.first + picture.rows * picture.columns)
    found = [(part.name, token) for part in segments(trace) for token in range(part.start, part.stop)]
    return [(name, token) for name, token in found if token not in patches]
