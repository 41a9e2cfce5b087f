"""Every step of the forward pass: equation, shape, verdict, picture."""

import streamlit as st

from pages.sections import answer, cell_panel, what_if
from pages.sections import trace as trace_sections
from pages.ui import page_frame, screen, widgets
from tracer.record import CHANGED_SUFFIX

TITLE = "Trace"
ICON = ":material/function:"
ORDER = 2
PLACES = ("step", "index", "cell", "letters")

page_frame.enter()
trace = screen.trace(beside_plain=True)
st.title("Step by step")
if not trace.steps:
    st.info("This run was saved without steps: it shows its operations only.")
    trace_sections.operations(trace.ops)
    page_frame.leave()
answer.show_token_ids(trace)
trace_sections.show_findings(trace)
step = trace_sections.choose(trace)
with st.container(key="view", horizontal=True, vertical_alignment="bottom", gap="medium"):
    text = widgets.letters_panel(trace)
    # above the step: at the bottom of a page it would open where there is no room
    what_if.show_panel(lambda plain: what_if.line(plain, plain.step(step.id.removesuffix(CHANGED_SUFFIX))))
trace_sections.browse(trace, step, text)
cell_panel.follow(trace, text)
what_if.show_before_after(trace)
