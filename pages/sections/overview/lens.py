"""The lens: the answer as it forms, block by block, by the model's own last norm and head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from pages import components
from pages.sections.attention import mask_controls
from pages.state import session
from pages.ui import texts
from tracer.attention import parts, places
from tracer.figures.html_bars import Part, Row, bars
from tracer.figures.palette import OTHER, stage_colour
from tracer.figures.predictions.class_bars import percent
from tracer.figures.predictions.model_output import visible_token
from tracer.figures.tensors import image_patches
from tracer.record import Trace
from tracer.utils.error_text import shorten

if TYPE_CHECKING:
    from tracer.models.shared.lens_answers import LensAnswer, LensAnswers

KINDS = ("classes", "sentences", "next", "caption")
"""Kinds of results that are one of several choices."""
CHEAP = 2e9
"""FLOPs of a run up to which the lens is computed without asking."""
DOING = "Reading the answer after every block"


def has_lens(trace: Trace) -> bool:
    """Return whether a run may have a lens: it has blocks, and an answer that is one choice."""
    blocks = any(step.layer is not None for step in trace.steps)
    return blocks and trace.result.get("kind") in KINDS and session.user_input().kind != "trace"


@st.fragment
def show(trace: Trace) -> None:
    """Draw the most probable answer after every block, and over the patches where the head reads one token."""
    asked = f"lens of {trace.model}"
    if trace.flops > CHEAP and not st.session_state.get(asked):
        if not st.button("Read the answer after every block", icon=":material/visibility:"):
            st.caption("This runs the model once more.")
            return
        st.session_state[asked] = True
    found = _answers(trace)
    if isinstance(found, str):
        st.caption(texts.plain(f"The answer can’t be read before the last block: {found}."))
        return
    last = found.answers[-1]
    answer = visible_token(last.answer)
    rows = [
        Row(_depth(one), [_part(one, last)], f"{_short(one.answer)} {percent(one.probability)}")
        for one in found.answers
    ]
    said = "; ".join(f"{_depth(one)}: {_short(one.answer)} {percent(one.probability)}" for one in found.answers)
    ticks = {at / 4: f"{25 * at}\N{NO-BREAK SPACE}%" for at in range(5)}
    keys = [(stage_colour("head"), "the answer of the run"), (OTHER, "another answer")]
    axes = ("read", "probability of the most probable answer")
    components.drawing(bars(rows, ticks, axes, said, "The answer as it forms", keys), "lens")
    st.markdown(texts.plain(_describe(found, answer)))
    _over_photo(trace, found, answer)
    st.latex(found.latex)
    st.caption(
        texts.plain(
            "The model’s own last norm and head are applied to the residual stream X after every block (nostalgebraist "
            f"2020, “the logit lens”). On the last block, this equation is {found.proof.verdict} like any line of this "
            "run. In the model, the head reads the last block alone: what it reads earlier is not an answer "
            "that the model gives."
        )
    )


def _answers(trace: Trace) -> LensAnswers | str:
    asked = mask_controls.MaskRequest.now()
    given, known = session.inputs, session.options()

    def run() -> LensAnswers | str:
        from tracer.models.shared.lens_answers import lens_answers
        from tracer.tracing import AT_HAND

        part = (parts(trace) or ("",))[0]
        try:
            try:
                return asked.of(lens_answers, trace, part)
            except ValueError as error:
                if "was not kept" not in str(error):
                    raise

            def again(made, inputs) -> LensAnswers:
                arguments = given(made, asked.chosen, known)
                run = made.trace(**arguments, keep=AT_HAND, prove="later")
                return lens_answers(made, inputs, run, part)

            return asked.of(again)
        except ValueError as error:
            return str(error)

    return mask_controls.once("lens", asked, (), run, DOING)


def _depth(one: LensAnswer) -> str:
    return "before block 1" if one.layer is None else f"after block {one.layer + 1}"


def _short(name: str) -> str:
    return shorten(str(visible_token(name)), 40)


def _part(one: LensAnswer, last: LensAnswer) -> Part:
    colour = stage_colour("head") if one.answer == last.answer else OTHER
    return Part(one.probability, colour, f"{_depth(one)}: {_short(one.answer)} {one.probability:.4f}")


def _describe(found: LensAnswers, answer: str) -> str:
    """Return since when the answer stands, computed from the depths on screen."""
    *_, last = found.answers
    since = len(found.answers)
    while since and found.answers[since - 1].answer == last.answer:
        since -= 1
    if since == 0:
        return f"The run’s answer, “{_short(answer)}”, is the most probable one everywhere, even before block 1."
    before, first = found.answers[since - 1], found.answers[since]
    later = "" if first is last else " and after every later block"
    return (
        f"The run’s answer, “{_short(answer)}”, is the most probable one {_depth(first)}{later}. "
        f"{_depth(before).capitalize()}, the most probable is “{_short(before.answer)}”, and “{_short(answer)}” has "
        f"a probability of {percent(before.final)}."
    )


def _over_photo(trace: Trace, found: LensAnswers, answer: str) -> None:
    """Draw over the photo how probable the head finds the answer at each patch."""
    view = session.traced_view(trace)
    if view is None or found.answers[-1].patches is None:
        return
    numbers = range(len(found.answers))
    at = st.select_slider(
        "Read each patch", numbers, numbers[-1], format_func=lambda at: _depth(found.answers[at]), key="lens depth"
    )
    shares = found.answers[at].patches
    patches = {patch: float(shares[token]) for token, patch in places(trace, (parts(trace) or ("",))[0]).items()}
    grid = np.array([patches.get(patch, 0.0) for patch in range(view.rows * view.columns)]).reshape(view.rows, -1)
    best = int(grid.argmax())
    said = (
        f"{_depth(found.answers[at]).capitalize()}, the head gives “{_short(answer)}” the largest probability at patch "
        f"{best}: {percent(float(grid.max()))}. The mean over patches is {percent(float(grid.mean()))}."
    )
    left, _ = st.columns([2, 3])
    with left:
        what = f"for “{_short(answer)}”"
        components.drawing(image_patches.spotlight(view.photo, view.crop, grid, said, what), "lens photo")
    st.caption(texts.plain(f"{said} Lighter patches have more."))
