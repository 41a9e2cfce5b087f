"""A run as a handout: one HTML file for print, with the photo, the answer, maps, equations, shapes and verdicts.

It holds all that it shows, runs nothing and loads nothing. Equations that repeat from block to block are printed once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from PIL import Image

from tracer.export import rows
from tracer.export.repeated_blocks import as_printed
from tracer.export.to_html import equation, text
from tracer.figures.equation_strip import SIGNS
from tracer.figures.handout.attention_maps import maps
from tracer.figures.predictions import class_bars, model_output
from tracer.figures.tensors.image_patches import data_uri, rescale
from tracer.record import MOVED_TOKENS, Step, Trace
from tracer.symbols import notation
from tracer.utils import note_titles
from tracer.utils.error_text import shorten

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
.disproven { color: #a3102f; font-weight: 600; } .sizes { columns: 2; list-style: none; padding: 0; font-size: 0.9em; }
@media print { @page { margin: 14mm; } body { padding: 0; max-width: none; font-size: 9.5pt; }
  .step .equation { overflow: visible; } }
"""


def render(trace: Trace) -> str:
    """Return the handout as HTML that ends with a newline."""
    title = f"A run of {trace.model}"
    parts = (
        f"<h1>{text(title)}</h1>",
        f'<p class="quiet">{text(_weights(trace))}</p>',
        '<div class="in">' + _inputs(trace) + _outputs(trace) + "</div>",
        f"<p>{text(MOVED_TOKENS)}</p>" if MOVED_TOKENS in trace.notes else "",
        maps(trace),
        _sizes(trace),
        "".join(_equations(trace)),
        _proof(trace),
    )
    head = f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{text(title)}</title>\n'
    view = '<meta name="viewport" content="width=device-width">\n'
    return f"{head}{view}<style>{STYLE}</style>\n<body>\n" + "\n".join(filter(None, parts)) + "\n</body>\n</html>\n"


def _weights(trace: Trace) -> str:
    return f"Weights: {trace.weights}." if trace.weights else ""


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
    if kind == "reconstruction":
        error = np.asarray(result["anomaly"], dtype=float)
        row, column = np.unravel_index(int(error.argmax()), error.shape)
        return f"<p>The hardest patch to foresee: row {row + 1}, column {column + 1}.</p>"
    if not names or shares is None:
        return first
    lines = "".join(
        f"<tr><td>{text(shorten(model_output.visible_token(str(name)), 60))}</td>"
        f'<td class="share"><i style="width:{100 * min(1, max(0, share)):.1f}%"></i></td>'
        f'<td class="number">{class_bars.percent(share)}</td></tr>'
        for name, share in class_bars.ranking(names, shares)[:CLASSES]
        if share or kind != "labels"
    )
    return f"{first}<table>{lines}</table>"


def _sizes(trace: Trace) -> str:
    lines = "".join(
        f"<li>{equation(notation.latex(size.name))} = {size.value}"
        + (f" = {equation(notation.latex(size.equals))}" if size.equals not in ("", str(size.value)) else "")
        + f" – {text(size.meaning)}</li>"
        for size in trace.symbols
    )
    return f'<h2>Sizes</h2><ul class="sizes">{lines}</ul>' if lines else ""


def _equations(trace: Trace) -> Iterator[str]:
    """Yield each line of the textbook, under its heading."""
    last = None
    for repeat, steps in as_printed(trace):
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
    why = f"<p>{text(note_titles.with_titles(step.why))}</p>" if step.why else ""
    note = (
        f'<p class="quiet">{text(note_titles.with_titles(step.note))}</p>'
        if step.note and step.error is not None
        else ""
    )
    return (
        f'<div class="step"><h4>{text(step.title)}</h4><div class="equation">{equation(step.latex)}</div>'
        f"<p>{equation(inside)} = {text(rows.numbers(step.shape))} · {_verdict(step)}</p>{why}{note}</div>"
    )


def _verdict(step: Step) -> str:
    error = f": largest difference {rows.error(step.error)} of the largest value" if step.error is not None else ""
    error = f". {text(step.replayed)}" if step.refuted else error
    sign = SIGNS.get(step.verdict, "")
    return f'<span class="{text(step.verdict).replace(" ", "-")}">{sign} {text(step.verdict)}{error}</span>'


def _proof(trace: Trace) -> str:
    """Return the method of the proof and the notes on the run, as HTML."""
    counts = Counter(step.verdict for step in trace.steps)
    sentence = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    about = (
        f"<p>The equations: {sentence}. “Proven” or “disproven” is one that was executed on the tensors of this run "
        "and compared with what the model computed, “recomputed” what a fused operation goes through and never "
        "holds.</p>"
        if trace.steps
        else ""
    )
    others = "".join(f"<p class=quiet>{text(sentence)}</p>" for sentence in trace.notes[:20])
    return f"<h2>How it is proven</h2>{about}<p>{text(rows.totals(trace))}.</p>{others}"
