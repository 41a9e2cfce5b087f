"""Attention over a photo, packed for drawing in the browser: all heads and queries at once, so pointing is free."""

import json
from io import BytesIO

import numpy as np
from PIL import Image

from tracer.figures.colours import table
from tracer.figures.photos import shown
from tracer.figures.tensors import as_array
from tracer.record import Trace

MAX_BYTES = 6_000_000


def layers_at_once(trace: Trace) -> list[int]:
    """The layers whose maps fit in one message to the browser, or an empty list if only one at a time does."""
    sizes = {record.layer: 4 * record.heads * record.queries * record.keys for record in trace.attentions}
    return sorted(sizes) if sum(sizes.values()) <= MAX_BYTES else []


def rollout(trace: Trace) -> np.ndarray:
    """Attention rollout over all blocks, `[S, S]` of the first input of the batch (Abnar and Zuidema 2020)."""
    from tracer.attention import rollout as over_blocks

    return as_array(over_blocks(trace))[0]


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
    found = [(part.name, token) for part in trace.segments for token in range(part.start, part.stop)]
    return [(name, token) for name, token in found if token not in patches]
