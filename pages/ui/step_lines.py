"""Steps as lines of a textbook: title, equation, the tensor's shape in symbols and numbers, and its proof."""

from collections.abc import Iterable

import streamlit as st

from pages.ui.texts import plain, prose
from tracer.export import rows
from tracer.export.math_labels import scientific
from tracer.record import Step
from tracer.symbols import notation

SIGNS = {"proven": ":green[:material/check_circle:]", "disproven": ":red[:material/cancel:]"}


def show(steps: Iterable[Step]) -> None:
    """Show the lines of these steps, one below the other, in one message."""
    st.markdown("\n\n".join(map(line, steps)))


def line(step: Step) -> str:
    """Return one step in markdown."""
    shape = f" \\in {notation.shape_latex(step.symbolic)}" if step.shape else "\\text{ is a number}"
    why = f"  \n{prose(step.why)}" if step.why else ""
    note = f"\n\n:small[{prose(step.note)}]" if step.note else ""
    numbers = f" = {rows.numbers(step.shape)}" if step.shape else ""
    return (
        f"**{plain(step.title)}** {SIGNS.get(step.verdict, '')} {_verdict_text(step)}{why}\n\n"
        f"$$\n{step.latex}\n$$\n\n${step.symbol}{shape}${numbers}{note}"
    )


def _verdict_text(step: Step) -> str:
    """Return the verdict in words, with the error where there is one, or the failures on other runs."""
    if step.refuted:
        return f"{step.verdict}: {prose(step.replayed)}"
    return step.verdict if step.error is None else f"{step.verdict}, largest difference {scientific(step.error)}"
