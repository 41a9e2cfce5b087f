"""Attention of a run for a handout: one query's row over the photo or the words, by blocks and by heads."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from tracer.attention import parts, places, segments
from tracer.export.to_html import text
from tracer.figures.attention import attention_payload as drawn
from tracer.figures.attention import lit_photo
from tracer.figures.palette import AMBER, ATTENTION, table
from tracer.figures.predictions import class_bars
from tracer.figures.tensors.heatmap import as_array
from tracer.figures.tensors.image_patches import data_uri
from tracer.record import Picture, Trace

BLOCKS, HEADS, WORDS, SIDE = 24, 16, 400, 360
"""Limits of the drawing: blocks of a tower, heads of its last block, words of a text, pixels of a map's longer side."""
TOP_TOKENS = 5
"""Tokens that are named with their weights."""


def maps(trace: Trace) -> str:
    """Return the maps of all towers, as HTML; "" for a run without attention that can be drawn."""
    return "".join(_tower(trace, part) for part in parts(trace))


def _tower(trace: Trace, part: str) -> str:
    chosen = drawn.blocks(trace, part)
    if not chosen:
        return ""
    picture = trace.picture if chosen[0] in drawn.layers(trace, part) else None
    last = as_array(trace.attention(chosen[-1], part=part))[0]
    query = _query(trace, part, picture, last.shape[1])
    names = drawn.names(trace, part, max(last.shape[1:]))
    title = f"What {names[query]} attends to" + (f", in the {part} tower" if part else "")
    shown = [
        (f"Block {layer + 1}, {_mean(heads)}", heads.mean(0))
        for layer in _spread(chosen)
        for heads in (as_array(trace.attention(layer, part=part))[0],)
    ]
    if len(last) > 1:
        shown += [(f"Block {chosen[-1] + 1}, head {head + 1}", last[head]) for head in range(min(HEADS, len(last)))]
    drawings = (
        _lit(trace, part, picture, weights[query], name) if picture else _matrix(weights, name)
        for name, weights in shown
    )
    figures = "".join(
        f"<figure>{drawing}<figcaption>{text(name)}</figcaption></figure>"
        for drawing, (name, _) in zip(drawings, shown, strict=True)
    )
    weights = last.mean(0)[query]
    most = np.argsort(-weights)[:TOP_TOKENS]
    first = ", ".join(f"{text(names[key])} {class_bars.percent(float(weights[key]))}" for key in most)
    how = (
        "The brighter a patch, the larger its weight; framed are those with at least half of the largest. Each map has "
        "its own scale."
        if picture
        else ("A row for each query, a column for each key; the brighter, the larger. Each map has its own scale.")
    )
    return (
        f"<h2>{text(title)}</h2>"
        f"<p class=quiet>{how} In block {chosen[-1] + 1}, {_mean(last)}, most goes to {first}.</p>"
        f"{_words(trace, part, weights)}<div class=maps>{figures}</div>"
    )


def _mean(heads: np.ndarray) -> str:
    return f"mean of {len(heads)} heads" if len(heads) > 1 else "its one head"


def _spread(chosen: list[int]) -> list[int]:
    """Return a limited number of blocks, evenly spread, the first and the last among them."""
    if len(chosen) <= BLOCKS:
        return chosen
    return [chosen[round(place)] for place in np.linspace(0, len(chosen) - 1, BLOCKS)]


def _query(trace: Trace, part: str, picture: Picture | None, queries: int) -> int:
    """Return the query that the page shows first.

    That is the last if the model writes words, else CLS, else the middle patch.
    """
    own = {segment.name: segment for segment in segments(trace, part)}
    if picture is None or "text" in own:
        return queries - 1
    if "CLS" in own:
        return own["CLS"].start
    middle = np.array([picture.rows // 2, picture.columns // 2])
    lying = places(trace, part)
    return min(lying, key=lambda token: np.hypot(*(np.divmod(lying[token], picture.columns) - middle)))


def _lit(trace: Trace, part: str, picture: Picture, row: np.ndarray, name: str) -> str:
    """Return the photo as a sketch, lit where the query's row has weight, as HTML."""
    photo = Image.fromarray(np.asarray(trace.values[picture.value])).convert("RGB")
    scale = SIDE / max(photo.size)
    photo = photo.resize([max(1, round(side * scale)) for side in photo.size], Image.Resampling.BICUBIC)
    shares = np.zeros((picture.rows, picture.columns))
    for token, patch in places(trace, part).items():
        shares[divmod(patch, picture.columns)] = row[token]
    shares /= max(shares.max(), 1e-12)
    crop = left, top, right, bottom = [side * scale for side in picture.crop]
    greys = lit_photo.sketch(np.asarray(photo), crop, picture.rows, picture.columns)
    drawing = Image.fromarray(lit_photo.light(greys, crop, shares))
    frames = ImageDraw.Draw(drawing)
    wide, high = (right - left) / picture.columns, (bottom - top) / picture.rows
    for r, c in np.argwhere(shares >= 0.5):
        place = left + c * wide, top + r * high
        frames.rectangle((*place, place[0] + wide, place[1] + high), outline="#fff")
    return f'<img src="{data_uri(drawing)}" alt="{text(name)}: the photo, lit where the weight is">'


def _matrix(weights: np.ndarray, name: str) -> str:
    """Return all rows as a picture of one pixel for each cell."""
    colours = np.frombuffer(table(ATTENTION), np.uint8).reshape(256, 3)
    top = float(np.quantile(weights, 0.995)) or float(weights.max()) or 1.0
    cells = Image.fromarray(colours[np.uint8(255 * np.clip(weights / top, 0, 1))])
    return f'<img class="cells" src="{data_uri(cells, "PNG")}" alt="{text(name)}: {len(weights)} queries by keys">'


def _words(trace: Trace, part: str, weights: np.ndarray) -> str:
    """Return the words of the run, each on a background that is stronger for a larger weight, as HTML."""
    words = [(token, word) for token, word in drawn.words(trace, part, len(weights)) if token < len(weights)][:WORDS]
    if not words:
        return ""
    most = max(float(weights[token]) for token, _ in words) or 1.0
    between = "" if all(len(word) == 1 for _, word in words) else " "
    amber = " ".join(map(str, AMBER))
    spans = between.join(
        f'<span style="background:rgb({amber} / {0.85 * float(weights[token]) / most:.2f})">'
        f"{text(word if word != chr(10) else '⏎ ')}</span>"
        for token, word in words
    )
    return f'<p class="words">{spans}</p>'
