"""Every step of the forward pass: equation, shape, proof, picture."""

import streamlit as st

from pages.shared import frame, session, steps

TITLE = "Trace"
ICON = ":material/function:"
ORDER = 2

frame.enter()
trace = session.trace()
st.title("Step by step")
if not trace.steps:
    st.info("This run was saved without steps: it shows its operations only.")
    steps.operations(trace.ops)
    frame.leave()

listing, detail = st.columns([2, 5], gap="large")
with listing.container(key="listing"):
    step = steps.choose(trace)
with detail:
    steps.heading(trace, step)
    steps.equation(trace, step)
    steps.reasons(trace, step)
    steps.tensor(trace, step)
    steps.four_terms(trace, step)
    steps.product(trace, step)
steps.covered(trace, step)
steps.how_it_counts()
