"""Every module, call and operation of the run: a table that filters, sorts and folds, down to the primitives."""

import streamlit as st

from pages.sections import attention_heads, operations
from pages.ui import page_frame, screen

TITLE = "Operations"
ICON = ":material/account_tree:"
ORDER = 5
PLACES = ("zoom", "step", "op", "module", "call", "filter", "fold", "sort", "open")

page_frame.enter()
trace = screen.trace()
st.title("Every operation that ran")
operations.totals(trace)
level = operations.zoom(trace)
operations.draw_table(trace, level)
if level == "steps":
    operations.step(trace)
elif level == "modules":
    operations.module(trace, operations.number(trace))
elif level == "calls":
    operations.call(trace, operations.number(trace))
else:
    operations.operation(trace, level)
operations.pictures(trace, level)
attention_heads.show(trace)
