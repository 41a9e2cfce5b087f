"""Every module, call and operation of the run: a table that filters, sorts and folds, down to the primitives."""

import streamlit as st

from pages.sections.attention import attention_backends
from pages.sections.operations import call_details, operation_views
from pages.state import session
from pages.ui import page_frame

TITLE = "Operations"
ICON = ":material/account_tree:"
ORDER = 5
PLACES = ("zoom", "step", "op", "module", "call", "filter", "fold", "sort", "open")

page_frame.enter()
trace = session.trace()
st.title("Every operation that ran")
operation_views.totals(trace)
level = operation_views.zoom(trace)
operation_views.draw_table(trace, level)
if level == "steps":
    operation_views.step(trace)
elif level == "modules":
    call_details.module(trace, operation_views.number(trace))
elif level == "calls":
    call_details.call(trace, operation_views.number(trace))
else:
    operation_views.operation(trace, level)
operation_views.pictures(trace, level)
attention_backends.show(trace)
