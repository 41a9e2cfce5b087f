"""Every step of the forward pass: equation, shape, proof, picture."""

import streamlit as st

from pages.sections.overview import token_ids
from pages.sections.trace import step_browser
from pages.state import session
from pages.ui import page_frame

TITLE = "Trace"
ICON = ":material/function:"
ORDER = 2
PLACES = ("step", "index")

page_frame.enter()
trace = session.trace()
st.title("Step by step")
if not trace.steps:
    st.info("This run was saved without steps: it shows its operations only.")
    step_browser.operations(trace.ops)
    page_frame.leave()
token_ids.show(trace)
step_browser.browse(trace, step_browser.choose(trace))
