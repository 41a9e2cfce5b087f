"""Every step of the forward pass: equation, shape, proof, picture."""

import streamlit as st

from pages.shared import frame, ids, session, steps

TITLE = "Trace"
ICON = ":material/function:"
ORDER = 2
PLACES = ("step", "index")

frame.enter()
trace = session.trace()
st.title("Step by step")
if not trace.steps:
    st.info("This run was saved without steps: it shows its operations only.")
    steps.operations(trace.ops)
    frame.leave()
ids.show(trace)
steps.browse(trace, steps.choose(trace))
