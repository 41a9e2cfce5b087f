"""Attention packed for drawing in the browser: many heads and all queries at once, so pointing costs no request."""

import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from tracer.attention import layers as of_part
from tracer.attention import places, segments, unseen, windows
from tracer.attention import rollout as over_blocks
from tracer.figures.attention.mask_payload import labels
from tracer.figures.palette import ATTENTION, MASK, table
from tracer.figures.payload_budget import can_draw
from tracer.figures.tensors.heatmap import as_array
from tracer.figures.tensors.image_patches import rescale
from tracer.record import AttentionRecord, Picture, Trace

MAX_BYTES = 2_000_000
"""Bytes of weights in one message, if they are several views."""
ONE_VIEW = 3_000_000
"""Bytes of one view of a layer; a larger one is not shown."""
ROLLOUT = 1_400_000
"""Bytes of a rollout in one message."""
PRODUCTS = 2 * 10**10
"""Most multiplications of a rollout."""


def layers(trace: Trace, part: str | None = None) -> list[int]:
    """Return the layers of a tower that can be laid over the photo.

    These are self-attention of tokens over its patches, all of one size, none lost.
    """
    records, patches = _records(trace, part), places(trace, part)
    if not patches:
        return []
    last = max(patches)
    sizes = [
        (record.heads, record.keys)
        if record.queries == record.keys > last and record.over == "tokens" and not record.problem
        else None
        for record in records
    ]
    first = next((size for size in sizes if size), None)
    return [layer for layer, size in enumerate(sizes) if size and size == first]


def blocks(trace: Trace, part: str | None = None) -> list[int]:
    """Return the layers of a tower to choose from: those over the photo if any, else all whose attention was kept."""
    records = _records(trace, part)
    layer_numbers = layers(trace, part) or [layer for layer, record in enumerate(records) if not record.problem]
    return [layer for layer in layer_numbers if _fits(trace, records[layer])]


def too_large(trace: Trace, part: str | None = None) -> bool:
    """Return whether a tower has attention that was kept, but none that fits on a page."""
    return not blocks(trace, part) and any(not record.problem for record in _records(trace, part))


def _fits(trace: Trace, record: AttentionRecord) -> bool:
    return 4 * record.queries * record.keys <= ONE_VIEW and can_draw(trace, record)


def _records(trace: Trace, part: str | None) -> tuple[AttentionRecord, ...]:
    return of_part(trace, part) if trace.attentions else ()


def portion(
    trace: Trace, choices: Sequence[int], part: str | None = None, wanted: Mapping[str, Any] | None = None
) -> tuple[list[int], list[str]]:
    """Return (layers, views) that fit in one message to the browser, with the `wanted` {"layer", "view"} among them.

    All layers of the wanted one's size with all their heads are sent if they fit; else that layer alone; else one view
    of it, "mean" or the number of a head. A layer or view that `wanted` names wrongly becomes the last layer, or the
    mean.
    """
    records, wanted = _records(trace, part), wanted if isinstance(wanted, Mapping) else {}
    layer = next((choice for choice in choices if choice == wanted.get("layer")), choices[-1])
    size, heads = _size(records[layer]), [str(head) for head in range(records[layer].heads)]
    alike = [choice for choice in choices if _size(records[choice]) == size]
    if 4 * len(alike) * size[0] * size[1] * size[2] <= MAX_BYTES:
        return alike, heads
    if 4 * size[0] * size[1] * size[2] <= MAX_BYTES:
        return [layer], heads
    return [layer], [next((head for head in heads if head == wanted.get("view")), "mean")]


def _size(record: AttentionRecord) -> tuple[int, int, int, str]:
    return record.heads, record.queries, record.keys, record.over


def rollout(trace: Trace, chosen: Sequence[int], part: str | None = None) -> np.ndarray | None:
    """Return attention rollout over all blocks of a tower, `[S, S]` of the first input of the batch, or None.

    Source: Abnar and Zuidema (2020).
    """
    return as_array(over_blocks(trace, part=part))[0] if rolls(trace, chosen, part) else None


def rolls(trace: Trace, chosen: Sequence[int], part: str | None = None) -> bool:
    """Return whether a tower has a rollout.

    It has none if the maps of a block are lost or don't fit, since the product would leave that block out.
    """
    records = _records(trace, part)
    sizes = {(record.queries, record.keys) for record in records}
    # what channels mix, and what windows hold, no token hands on to all others
    sizes |= {(0, 1) for record in records if record.over != "tokens" or windows(trace, record) > 1}
    whole = bool(chosen) and len(chosen) == len(records) and len(sizes) == 1 and len(set(*sizes)) == 1
    small = whole and 4 * records[0].keys ** 2 <= ROLLOUT and len(records) * records[0].keys ** 3 <= PRODUCTS
    return small and all(can_draw(trace, record) for record in records)


def pack(
    trace: Trace,
    chosen: Sequence[int],
    rollout: np.ndarray | None = None,
    part: str | None = None,
    *,
    views: Sequence[str] = (),
    choices: Sequence[int] = (),
) -> bytes:
    """Return the map as bytes: header length, JSON header, float32 weights, masks, colours, JPEG of the photo.

    The weights are `[chosen, views, S_q, S_k]` of the first input of the batch, then `[S, S]` of the rollout if there
    is one; `views` are numbers of heads or "mean", by default all heads. A mask has a byte for each cell, 1 if it is
    closed: no mask if all cells are open, one if all layers have the same, else one for each. The header's length is
    four bytes, little end first, and the weights start at a multiple of four. `choices` are the layers to choose from.
    The photo is included if the chosen layers lie over it.
    """
    weights = np.stack([_views(as_array(trace.attention(layer, part=part))[0], views) for layer in chosen])
    closed, kind = masks(trace, chosen, part)
    floats = [weights.ravel()] + ([as_array(rollout).ravel()] if rollout is not None else [])
    lies = trace.picture if chosen[0] in layers(trace, part) else None
    over, photo = _photo(trace, lies, part) if lies else ({}, b"")
    queries, keys = weights.shape[2:]
    channels = [f"channel {i + 1}" for i in range(max(queries, keys))]
    channels = channels if _records(trace, part)[chosen[0]].over == "channels" else None
    header = over | {
        "names": channels or names(trace, part, max(queries, keys)),
        "marks": channels or labels(trace, part, max(queries, keys)),
        "others": name_other_tokens(trace, part) if over else [],
        "words": words(trace, part, max(queries, keys)),
        "text": "text" in [segment.name for segment in segments(trace, part)],
        "edges": [segment.start for segment in segments(trace, part) if segment.start > 0],
        "part": part or "",
        "choices": list(choices or chosen),
        "layers": list(chosen),
        "heads": _records(trace, part)[chosen[0]].heads,
        "views": list(views) or [str(head) for head in range(weights.shape[1])],
        "queries": queries,
        "keys": keys,
        "rollout": rollout is not None,
        "masks": len(closed),
        "kind": kind,
        "closed": MASK[0],
        "jpeg": len(photo),
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 4)
    numbers = np.concatenate(floats).astype("<f4").tobytes()
    return b"".join([len(text).to_bytes(4, "little"), text, numbers, closed.tobytes(), table(ATTENTION), photo])


def _views(heads: np.ndarray, views: Sequence[str]) -> np.ndarray:
    return np.stack([heads.mean(0) if view == "mean" else heads[int(view)] for view in views]) if views else heads


def _photo(trace: Trace, picture: Picture, part: str | None) -> tuple[dict[str, Any], bytes]:
    """Return the position of the patches on the photo, and the photo as JPEG.

    `tokens` has for each patch its token, or null; `unseen` the patches that are not an input of the tower. `side` is
    that of a patch in pixels of the picture that the model sees, null if the run does not name it.
    """
    file = BytesIO()
    tokens = {patch: token for token, patch in places(trace, part).items()}
    tower, missing = unseen(trace)
    photo = Image.fromarray(np.asarray(trace.values[picture.value]))
    rescale(photo).save(file, "JPEG", quality=88)
    return {
        "photo": list(photo.size),
        "crop": list(picture.crop),
        "rows": picture.rows,
        "columns": picture.columns,
        "side": _side(trace, picture),
        "tokens": [tokens.get(patch) for patch in range(picture.rows * picture.columns)],
        "unseen": list(missing),
        "tower": tower or "model",
    }, file.getvalue()


def _side(trace: Trace, picture: Picture) -> int | None:
    sizes = {size.name: size.value for size in trace.symbols}
    grid = tuple(side * sizes.get("P", 0) for side in (picture.rows, picture.columns))
    return sizes["P"] if "P" in sizes and grid == (sizes.get("H"), sizes.get("W")) else None


def masks(trace: Trace, chosen: Sequence[int], part: str | None = None) -> tuple[np.ndarray, str]:
    """Return the closed cells of layers as they ran, uint8 `[0, 1 or layers, S_q, S_k]`, and the kind of the first."""
    from tracer.attention.masks import kind, visible  # here, since a page is drawn before torch is imported

    cells = [visible(trace, layer, part=part) for layer in chosen]
    closed = np.stack([~each.numpy() for each in cells]).astype(np.uint8)
    if (closed == closed[:1]).all():
        closed = closed[:1] if closed.any() else closed[:0]
    return closed, kind(cells[0])


def names(trace: Trace, part: str | None, tokens: int) -> list[str]:
    """Return a name for each of `tokens` positions that holds over the photo and in the matrix.

    Examples: `patch 39 (row 5, column 7)`, `75: 'square'`.
    """
    token_labels, hidden = labels(trace, part, tokens), set(unseen(trace)[1])
    if (picture := trace.picture) is None or not layers(trace, part):
        return token_labels
    lying = places(trace, part)
    for token in lying.keys() & range(tokens):
        row, column = divmod(lying[token], picture.columns)
        mask = ", mask token" if lying[token] in hidden else ""
        token_labels[token] = f"patch {lying[token] + 1} (row {row + 1}, column {column + 1}{mask})"
    return token_labels


def words(trace: Trace, part: str | None, tokens: int) -> list[tuple[int, str]]:
    """Return (token, word) of the first `tokens` positions that are words of the run's text, in its spelling."""
    text_segments = [segment for segment in segments(trace, part) if segment.name == "text"]
    text_words = [(segment.start + place, word) for segment in text_segments for place, word in enumerate(trace.words)]
    return [
        (token, word)
        for token, word in text_words
        if token < min(tokens, max(candidate.stop for candidate in text_segments))
    ]


def name_other_tokens(trace: Trace, part: str | None = None) -> list[tuple[str, int]]:
    """Return (name, token) of the tokens that are not patches, such as CLS or the words of a text."""
    patches = places(trace, part)
    tokens = [token for own in segments(trace, part) for token in range(own.start, own.stop)]
    names = labels(trace, part, max(tokens, default=-1) + 1)
    return [(names[token], token) for token in tokens if token not in patches]
