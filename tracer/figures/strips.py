"""What a picture is of, in a line: the equation of a step, its tensor in symbols and numbers, and what the run says."""

from __future__ import annotations

from collections.abc import Iterable

from tracer.figures.views import rows
from tracer.figures.views.to_html import equation, text
from tracer.record import AttentionRecord, Step, Trace
from tracer.symbols import notation

SIGNS = {"proven": "✓", "disproven": "✕"}


def lines(steps: Iterable[Step]) -> str:
    """Steps as HTML, a line each: the equation as MathML, the shape, the verdict, and a button that opens the step."""
    return "".join(f"<p>{_line(step)}</p>" for step in steps)


def answering(trace: Trace) -> list[Step]:
    """What the first look is of: the attention weights of the last block and the step that gives the answer."""
    weights = [step for step in trace.steps if step.symbol.startswith(_bold("A"))]
    return [*weights[-1:], *trace.steps[-1:]]


def _line(step: Step) -> str:
    inside = f"{step.symbol} \\in {notation.shape_latex(step.symbolic)}" if step.shape else step.symbol
    sign = f"{SIGNS.get(step.verdict, '')} {step.verdict}".strip()
    return (
        f'<span class="formula">{equation(step.latex)}</span>'
        f'<span class="formula">{equation(inside)} = {text(rows.numbers(step.shape))}</span>'
        f'<button type="button" data-step="{text(step.id)}">{text(step.title)}: {text(sign)}</button>'
    )


def of_attention(trace: Trace, record: AttentionRecord, letters: str = "A") -> str:
    """The lines of an attention's mask "M", scores "S" and weights "A", as far as the run has them; the mask where its
    scores name it."""
    own = [step for step in trace.steps if step.id.startswith(record.part)]
    found = {letter: _of(own, letter, record.layer) for letter in "SA"}
    if (scores := found["S"]) is not None and _bold("M") in scores.latex:
        found["M"] = _of(own, "M", None) or _of(own, "M", record.layer)
    return lines(step for letter in letters if (step := found.get(letter)) is not None)


def _of(steps: Iterable[Step], letter: str, layer: int | None) -> Step | None:
    return next((step for step in steps if step.layer == layer and step.symbol.startswith(_bold(letter))), None)


def _bold(letter: str) -> str:
    return rf"\mathbf{{{letter}}}"
