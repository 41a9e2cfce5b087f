"""Captions of pictures in a line: the equation of a step, its tensor's shape in symbols and numbers, the verdict."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tracer.attention import layers
from tracer.export import rows
from tracer.export.math_labels import scientific
from tracer.export.to_html import equation, text
from tracer.figures.tensors.heatmap import as_array
from tracer.record import AttentionRecord, Step, Trace, tolerance
from tracer.symbols import notation

SIGNS = {"proven": "✓", "disproven": "✕"}


def lines(steps: Iterable[Step]) -> str:
    """Return steps as HTML, a line each: the equation as MathML, the shape, the verdict, and a button to the step."""
    return "".join(f"<p>{_line(step)}</p>" for step in steps)


def _line(step: Step) -> str:
    inside = f"{step.symbol} \\in {notation.shape_latex(step.symbolic)}" if step.shape else step.symbol
    sign = f"{SIGNS.get(step.verdict, '')} {step.verdict}".strip()
    return (
        f'<span class="formula">{equation(step.latex)}</span>'
        f'<span class="formula">{equation(inside)} = {text(rows.numbers(step.shape))}</span>'
        f'<button type="button" data-step="{text(step.id)}">{text(step.title)}: {text(sign)}</button>'
    )


def of_attention(trace: Trace, record: AttentionRecord, letters: str = "A") -> str:
    """Return the lines of an attention's mask "M", scores "S" and weights "A", as far as the run has them, and after
    each the line that changes it.

    The mask is among them if its scores name it.
    """
    tensors = {"A": _weights(trace, record)}
    if tensors["A"] is not None:
        tensors["S"] = _before(trace, tensors["A"], "S")
    if (scores := tensors.get("S")) is not None:
        mask = _before(trace, scores, "M")
        tensors["M"] = mask if mask is not None and mask.symbol in scores.latex else None
    chosen = [step for letter in letters if (step := tensors.get(letter)) is not None]
    return lines(line for step in chosen for line in (step, trace.changed_step(step.id)) if line is not None)


def _weights(trace: Trace, record: AttentionRecord) -> Step | None:
    """Return the step of an attention's weights: the softmax that the record names, or the one inside the fused op."""
    steps = (step for step in trace.steps if record.op in step.ops or step.inside == record.op)
    return next((step for step in steps if step.symbol.startswith(_bold("A"))), None)


ROLLOUT = (
    r"\mathbf{R} = \prod_{\ell = L}^{1} \frac{1}{2}"
    r"\left(\frac{1}{h}\sum_{i = 1}^{h} \mathbf{A}^{(\ell)}_{i} + \mathbf{1}\right)"
)
"""Attention rollout (Abnar and Zuidema 2020, section 3): the last block stands on the left."""


def of_rollout(trace: Trace, part: str | None, shown: np.ndarray) -> str:
    """Return the line of a rollout `[S, S]` as displayed: its equation, its shape, and whether it fulfils the equation,
    recomputed from the weights of each block."""
    error = rollout_error(trace, part, shown)
    verdict = "proven" if error <= tolerance("float32") else "disproven"
    shape = ", ".join(map(str, shown.shape))
    sentence = f"Rollout: {SIGNS[verdict]} {verdict}"
    hint = (
        "The equation, executed on the attention weights of this run, differs by at most "
        f"{scientific(error)} of the largest."
    )
    symbol, sign = (
        equation(r"\mathbf{R}"),
        f'<span class="proof {verdict}" title="{text(hint)}">{text(sentence)}</span>',
    )
    return (
        f'<p><span class="formula">{equation(ROLLOUT)}</span>'
        f'<span class="formula">{symbol} ∈ [{shape}]</span>{sign}</p>'
    )


def rollout_error(trace: Trace, part: str | None, shown: np.ndarray) -> float:
    """Return the largest difference of a rollout to its equation, as a share of the largest value.

    It is computed from the last block to the first, in float64 and with NumPy alone.
    """
    product = np.eye(len(shown))
    for record in reversed(layers(trace, part)):
        heads = as_array(trace.attention(record.layer, part=part))[0].astype(np.float64)
        product = product @ ((heads.mean(0) + np.eye(len(shown))) / 2)
    return float(np.abs(product - shown).max() / np.abs(product).max())


def weights_step(trace: Trace, record: AttentionRecord) -> str:
    """Return the id of the step whose tensor has a cell for each weight of an attention, changed or not,
    `[B, h, S_q, S_k]`; "" where there is none."""
    step = _weights(trace, record)
    step = (step and trace.changed_step(step.id)) or step
    return step.id if step and step.shape[1:] == (record.heads, record.queries, record.keys) else ""


def _before(trace: Trace, step: Step, letter: str) -> Step | None:
    """Return the nearest step before this one whose symbol has that letter."""
    earlier = trace.steps[: trace.steps.index(step)]
    return next(
        (earlier_step for earlier_step in reversed(earlier) if earlier_step.symbol.startswith(_bold(letter))), None
    )


def _bold(letter: str) -> str:
    return rf"\mathbf{{{letter}}}"
