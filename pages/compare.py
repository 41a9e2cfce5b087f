"""Two runs side by side, step by step, the first difference open: equations, shapes, numbers, attention, answers."""

from functools import partial
from typing import TYPE_CHECKING

import streamlit as st

from pages import components
from pages.jobs import single_flight
from pages.jobs.single_flight import of
from pages.sections import answer, second_run
from pages.state import session
from pages.ui import page_frame, screen, texts, widgets
from tracer.figures import comparison_payload, drawing, predictions
from tracer.record import Trace
from tracer.utils.errors import shorten
from tracer.utils.lazy_import import lazy_import

if TYPE_CHECKING:
    from tracer import comparison
else:  # imported when first used
    comparison = lazy_import("tracer.comparison")


TITLE = "Compare"
ICON = ":material/compare_arrows:"
ORDER = 6
PLACES = ("beside", "other", "line", "step")

page_frame.enter()
trace = screen.trace()
st.title("Where two runs diverge")
if not trace.steps:
    st.info("This run was saved without steps, so it can’t be compared step by step.")
    page_frame.leave()
second = second_run.choose(trace)
if second is None:
    page_frame.leave()
left_run = second.left or trace


def draw_answer(side: str, run: Trace, about: str) -> None:
    """Draw the name of a run, its input, and its answer."""
    st.markdown(texts.plain(f"**{side}: {shorten(run.model)}**, {about}"))
    names = next((run.result[name] for name in ("classes", "sentences", "tokens") if name in run.result), None)
    shares = run.result.get("probabilities")
    with answer.as_recorded():
        if names and shares and len(names) == len(shares) and run.result["kind"] != "tokens":
            visible = [shorten(predictions.visible_token(str(name))) for name in names]
            components.drawing(drawing.class_bars(visible, shares, axis="answer"), f"answer {side}")
        elif sentence := predictions.answer_sentence(run):
            st.markdown(texts.plain(sentence))
        else:
            st.caption("This run has no answer in words.")


compared = partial(comparison.compare, left_run, second.trace)
payload = of(left_run, ("comparison", second.key), lambda: comparison_payload.build(compared()))
first, *more = payload.summary
st.markdown(first)
st.caption(" ".join(more))
chosen = session.user_input()
widgets.check(step=list(dict.fromkeys(step.id for run in (left_run, second.trace) for step in run.steps)))
components.comparison(payload.packed, single_flight.name(left_run) + repr(second.key), " ".join(payload.summary))
st.header("The answers")
left, right = st.columns(2, gap="large")
own = "your text" if chosen.text else second_run.sample_text(chosen.name)
with left:
    draw_answer("Left", left_run, own)
with right:
    draw_answer("Right", second.trace, second.about)
