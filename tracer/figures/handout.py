"""A run as a handout: one HTML file for print, with the photo, the answer, maps, equations, shapes and verdicts.

It holds all that it shows, runs nothing and loads nothing. Equations that repeat from block to block are printed once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from tracer.attention import parts, places, segments
from tracer.export import rows, verdicts
from tracer.export.letters import as_printed, letters_of, sizes_with_letters
from tracer.export.rows import with_titles
from tracer.export.to_html import equation, text
from tracer.figures import attention_maps, drawing, predictions
from tracer.figures.drawing import AMBER, ATTENTION, table
from tracer.figures.tensors import as_array, data_uri, rescale
from tracer.record import MOVED_TOKENS, Picture, Step, Symbol, Trace
from tracer.symbols import notation
from tracer.symbols.letters import OURS, Letters
from tracer.utils.errors import shorten
from tracer.utils.text import percent, shape_numbers

# Attention of a run for a handout: one query's row over the photo or the words, by blocks and by heads.

BLOCKS, HEADS, WORDS, SIDE = 24, 16, 400, 360
"""Limits of the drawing: blocks of a tower, heads of its last block, words of a text, pixels of a map's longer side."""
TOP_TOKENS = 5
"""Tokens that are named with their weights."""


def maps(trace: Trace) -> str:
    """Return the maps of all towers, as HTML; "" for a run without attention that can be attention_maps."""
    return "".join(_tower(trace, part) for part in parts(trace))


def _tower(trace: Trace, part: str) -> str:
    chosen = attention_maps.blocks(trace, part)
    if not chosen:
        return ""
    picture = trace.picture if chosen[0] in attention_maps.layers(trace, part) else None
    last = as_array(trace.attention(chosen[-1], part=part))[0]
    query = _query(trace, part, picture, last.shape[1])
    names = attention_maps.names(trace, part, max(last.shape[1:]))
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
    first = ", ".join(f"{text(names[key])} {percent(float(weights[key]))}" for key in most)
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
    shares = attention_maps.patch_shares(picture, places(trace, part), row)
    crop = left, top, right, bottom = [side * scale for side in picture.crop]
    greys = attention_maps.sketch(np.asarray(photo), crop, picture.rows, picture.columns)
    drawing = Image.fromarray(attention_maps.light(greys, crop, shares))
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
    words = [(token, word) for token, word in attention_maps.words(trace, part, len(weights)) if token < len(weights)][
        :WORDS
    ]
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


TEXT = 4_000
"""Characters of a text that are printed; of a longer one the beginning and the end."""
CLASSES = 8
"""Of the probabilities, the largest."""
STYLE = """
:root { color-scheme: light; }
body { font: 11pt/1.45 system-ui, sans-serif; color: #111; background: #fff;
  max-width: 52rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.7rem; margin: 0; }
h2 { font-size: 1.25rem; margin: 1.6rem 0 0.5rem; }
h3 { font-size: 1rem; margin: 1rem 0 0.3rem; }
h1, h2, h3 { break-after: avoid; }
p, ul { margin: 0.3rem 0; } .quiet { color: #444; font-size: 0.9em; }
.in { display: grid; grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); gap: 1.5rem; align-items: start; }
.in > :only-child { grid-column: 1 / -1; }
img { max-width: 100%; display: block; image-rendering: auto; } img.cells { image-rendering: pixelated; width: 100%; }
figure { margin: 0; break-inside: avoid; } figcaption { font-size: 0.85em; }
.maps { display: grid; grid-template-columns: repeat(auto-fill, minmax(10.5rem, 1fr)); gap: 0.8rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f2f4f7; padding: 0.5rem; margin: 0.3rem 0; }
.words { line-height: 2; overflow-wrap: anywhere; }
.words span { print-color-adjust: exact; padding: 0.15em 0.1em; white-space: pre-wrap; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; padding: 0.2rem 0.6rem 0.2rem 0; vertical-align: baseline; }
tr { break-inside: avoid; } .number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.share { width: 40%; } .share i { display: block; height: 0.8em; background: #2589c7; print-color-adjust: exact; }
.step { border-top: 1px solid #bbb; padding: 0.5rem 0; break-inside: avoid; }
.step h4 { margin: 0; font-size: 1rem; } .step .equation { padding: 0.35rem 0; overflow-x: auto; }
math { font-size: 112%; math-style: normal; } .step p { font-size: 0.9em; }
.refuted { color: #a3102f; font-weight: 600; } .sizes { columns: 2; list-style: none; padding: 0; font-size: 0.9em; }
@media print { @page { margin: 14mm; } body { padding: 0; max-width: none; font-size: 9.5pt; }
  .step .equation { overflow: visible; } }
"""


def render(trace: Trace, text_of: str = OURS) -> str:
    """Return the handout as HTML that ends with a newline, with lines and sizes in the letters of a text."""
    letters = letters_of(trace, text_of)
    title, weights = f"A run of {trace.model}", f"Weights: {trace.weights}." if trace.weights else ""
    parts = (
        f"<h1>{text(title)}</h1>",
        f'<p class="quiet">{text(weights)}</p>',
        '<div class="in">' + _inputs(trace) + _outputs(trace) + "</div>",
        f"<p>{text(MOVED_TOKENS)}</p>" if MOVED_TOKENS in trace.notes else "",
        maps(trace),
        _sizes(sizes_with_letters(trace, letters)),
        "".join(_equations(trace, letters)),
        _proof(trace),
    )
    head = f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{text(title)}</title>\n'
    view = '<meta name="viewport" content="width=device-width">\n'
    return f"{head}{view}<style>{STYLE}</style>\n<body>\n" + "\n".join(filter(None, parts)) + "\n</body>\n</html>\n"


def _inputs(trace: Trace) -> str:
    """Return the inputs as HTML: the photo, the text."""
    parts = []
    if trace.picture is not None:
        photo = Image.fromarray(np.asarray(trace.values[trace.picture.value]))
        photo.thumbnail((720, 720))
        parts.append(f'<img src="{data_uri(rescale(photo))}" alt="The photo that went in">')
    if trace.words:
        between = "" if all(len(word) == 1 for word in trace.words) else " "
        parts.append(f"<pre>{text_lines(shorten(between.join(trace.words), TEXT))}</pre>")
    return f"<section><h2>What went in</h2>{''.join(parts)}</section>" if parts else ""


def text_lines(value: str) -> str:
    """Return escaped text with its line breaks."""
    return "\n".join(map(text, value.split("\n")))


def _outputs(trace: Trace) -> str:
    """Return the outputs as HTML."""
    try:
        answer = _answer(trace.result)
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError):  # out of a stranger's file
        answer = "<p>The answer recorded in this run can’t be read.</p>"
    return f"<section><h2>What came out</h2>{answer}</section>" if answer else ""


def _answer(result: Mapping[str, Any]) -> str:
    kind = result.get("kind")
    first = ""
    if kind == "caption":
        first = f"<p>The caption: <b>{text(result['caption'])}</b></p>"
    if kind == "tokens":
        between = " " if "unit" in result else ""
        return f"<pre>{text_lines(shorten(between.join(map(str, result['tokens'])), TEXT))}</pre>"
    names = next((result[name] for name in ("classes", "sentences", "tokens") if name in result), ())
    shares = result.get("probabilities", result.get("shares"))
    if kind == "map":
        return f"<p>{text(predictions.map_sentence(result))}</p>"
    if kind == "reconstruction":
        error = np.asarray(result["anomaly"], dtype=float)
        row, column = np.unravel_index(int(error.argmax()), error.shape)
        return f"<p>The hardest patch to foresee: row {row + 1}, column {column + 1}.</p>"
    if not names or shares is None:
        return first
    lines = "".join(
        f"<tr><td>{text(shorten(predictions.visible_token(str(name)), 60))}</td>"
        f'<td class="share"><i style="width:{100 * min(1, max(0, share)):.1f}%"></i></td>'
        f'<td class="number">{percent(share)}</td></tr>'
        for name, share in drawing.ranking(names, shares)[:CLASSES]
        if share or kind != "labels"
    )
    return f"{first}<table>{lines}</table>"


def _sizes(sizes: Sequence[Symbol]) -> str:
    lines = "".join(
        f"<li>{equation(notation.latex(size.name))} = {size.value}"
        + (f" = {equation(notation.latex(size.equals))}" if size.equals not in ("", str(size.value)) else "")
        + f" – {text(size.meaning)}</li>"
        for size in sizes
    )
    return f'<h2>Sizes</h2><ul class="sizes">{lines}</ul>' if lines else ""


def _equations(trace: Trace, letters: Letters) -> Iterator[str]:
    """Yield each line of the textbook, under its heading."""
    last = None
    for repeat, steps in as_printed(trace, letters):
        if repeat is not None:
            last = f"Each block, {repeat.times} times"
            yield f"<h2>{last}: {equation(repeat.numbers)}</h2>"
        for step in steps:
            here = last if repeat is not None else f"Block {step.layer + 1}" if step.layer is not None else "Equations"
            if here != last:
                yield f"<h2>{here}</h2>"
            last = here
            yield _step(step)
        last = None


def _step(step: Step) -> str:
    shape = notation.shape_latex(step.symbolic) if step.shape else ""
    inside = f"{step.symbol} \\in {shape}" if shape else f"{step.symbol} \\text{{ is a scalar}}"
    why = f"<p>{text(with_titles(step.why))}</p>" if step.why else ""
    note = f'<p class="quiet">{text(with_titles(step.note))}</p>' if step.note and step.error is not None else ""
    return (
        f'<div class="step"><h4>{text(step.title)}</h4><div class="equation">{equation(step.latex)}</div>'
        f"<p>{equation(inside)} = {text(shape_numbers(step.shape))} · {_verdict(step)}</p>{why}{note}</div>"
    )


def _verdict(step: Step) -> str:
    error = f": largest difference {rows.error(step.error)} of the largest value" if step.error is not None else ""
    error = f". {text(step.replayed)}" if step.refuted else error
    return f'<span class="{text(step.verdict).replace(" ", "-")}">{text(verdicts.sentence(step))}{error}</span>'


def _proof(trace: Trace) -> str:
    """Return what the verdicts mean and the notes on the run, as HTML."""
    counts = Counter(step.verdict for step in trace.steps)
    sentence = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    about = (
        f"<p>The equations: {sentence}. “Verified” means: {verdicts.MEANING} “Recomputed” is "
        "what a fused operation goes through and never holds.</p>"
        if trace.steps
        else ""
    )
    others = "".join(f"<p class=quiet>{text(sentence)}</p>" for sentence in trace.notes[:20])
    return f"<h2>How it is verified</h2>{about}<p>{text(rows.totals(trace))}.</p>{others}"
