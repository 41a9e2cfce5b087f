"""Lens: the answer as it forms, block by block, by the model's own last norm and head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from pages import components
from pages.sections.attention import mask_controls
from pages.state import session
from pages.ui import texts
from tracer.attention import parts, places
from tracer.figures.html_bars import Bar, BarPart, bars
from tracer.figures.palette import OTHER_COLOR, stage_colour
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
    key = f"lens of {trace.model}"
    if trace.flops > CHEAP and not st.session_state.get(key):
        if not st.button("Read the answer after every block", icon=":material/visibility:"):
            st.caption("This runs the model once more.")
            return
        st.session_state[key] = True
    lens = _answers(trace)
    if isinstance(lens, str):
        st.caption(texts.plain(f"The answer can’t be read before the last block: {lens}."))
        return
    last = lens.answers[-1]
    answer = visible_token(last.answer)
    rows = [
        Bar(_depth(depth), [_part(depth, last)], f"{_short(depth.answer)} {percent(depth.probability)}")
        for depth in lens.answers
    ]
    summary = "; ".join(
        f"{_depth(depth)}: {_short(depth.answer)} {percent(depth.probability)}" for depth in lens.answers
    )
    ticks = {at / 4: f"{25 * at}\N{NO-BREAK SPACE}%" for at in range(5)}
    keys = [(stage_colour("head"), "the answer of the run"), (OTHER_COLOR, "another answer")]
    axes = ("read", "probability of the most probable answer")
    components.drawing(bars(rows, ticks, axes, summary, "The answer as it forms", keys), "lens")
    st.markdown(texts.plain(_describe(lens, answer)))
    _over_photo(trace, lens, answer)
    st.latex(lens.latex)
    st.caption(
        texts.plain(
            "The model’s own last norm and head are applied to the residual stream X after every block (nostalgebraist "
            f"2020, “the logit lens”). On the last block, this equation is {lens.proof.verdict} like any line of this "
            "run. In the model, the head reads the last block alone: what it reads earlier is not an answer "
            "that the model gives."
            + (
                " Over the photo, the norm and the head read the patches instead of that token."
                if lens.answers[-1].patches is not None
                else ""
            )
        )
    )


def _answers(trace: Trace) -> LensAnswers | str:
    request = mask_controls.MaskRequest.now().with_text_of(trace)
    make_arguments, known = session.inputs, session.options()

    def run() -> LensAnswers | str:
        from tracer.models.shared.lens_answers import lens_answers
        from tracer.tracing import AT_HAND

        part = (parts(trace) or ("",))[0]
        try:
            try:
                return request.of(lens_answers, trace, part)
            except ValueError as error:
                if "was not kept" not in str(error):
                    raise

            def again(model, inputs) -> LensAnswers:
                arguments = make_arguments(model, request.chosen, known)
                run = model.trace(**arguments, keep=AT_HAND, prove="later")
                return lens_answers(model, inputs, run, part)

            return request.of(again)
        except ValueError as error:
            return str(error)

    return mask_controls.once("lens", request, (), run, DOING)


def _depth(depth: LensAnswer) -> str:
    return "before block 1" if depth.layer is None else f"after block {depth.layer + 1}"


def _short(name: str) -> str:
    return shorten(str(visible_token(name)), 40)


def _part(depth: LensAnswer, last: LensAnswer) -> BarPart:
    colour = stage_colour("head") if depth.answer == last.answer else OTHER_COLOR
    return BarPart(depth.probability, colour, f"{_depth(depth)}: {_short(depth.answer)} {depth.probability:.4f}")


def _describe(lens: LensAnswers, answer: str) -> str:
    """Return since when the answer stands, computed from the depths on screen."""
    *_, last = lens.answers
    since = len(lens.answers)
    while since and lens.answers[since - 1].answer == last.answer:
        since -= 1
    if since == 0:
        return f"The run’s answer, “{_short(answer)}”, is the most probable one everywhere, even before block 1."
    before, first = lens.answers[since - 1], lens.answers[since]
    later = "" if first is last else " and after every later block"
    earlier = [_depth(depth) for depth in lens.answers[:since] if depth.answer == last.answer]
    lost = f" It was so {' and '.join(earlier)} already, and was lost again." if earlier else ""
    return (
        f"The run’s answer, “{_short(answer)}”, is the most probable one {_depth(first)}{later}. "
        f"{_depth(before).capitalize()}, the most probable is “{_short(before.answer)}”, and “{_short(answer)}” has "
        f"a probability of {percent(before.final)}.{lost}"
    )


def _over_photo(trace: Trace, lens: LensAnswers, answer: str) -> None:
    """Draw over the photo how probable the head finds the answer at each patch."""
    view = session.traced_view(trace)
    if view is None or lens.answers[-1].patches is None:
        return
    numbers = range(len(lens.answers))
    at = st.select_slider(
        "Read each patch", numbers, numbers[-1], format_func=lambda at: _depth(lens.answers[at]), key="lens depth"
    )
    shares = lens.answers[at].patches
    patches = {patch: float(shares[token]) for token, patch in places(trace, (parts(trace) or ("",))[0]).items()}
    grid = np.array([patches.get(patch, 0.0) for patch in range(view.rows * view.columns)]).reshape(view.rows, -1)
    best = int(grid.argmax())
    summary = (
        f"{_depth(lens.answers[at]).capitalize()}, the head gives “{_short(answer)}” the largest probability at patch "
        f"{best + 1}: {percent(float(grid.max()))}. The mean over patches is {percent(float(grid.mean()))}."
    )
    left, _ = st.columns([2, 3])
    with left:
        what = f"for “{_short(answer)}”"
        components.drawing(image_patches.spotlight(view.photo, view.crop, grid, summary, what), "lens photo")
    st.caption(texts.plain(f"{summary} Lighter patches have more."))
