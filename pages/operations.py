"""Every module, call and operation of the run: a table that filters, sorts and folds, down to the primitives."""

import streamlit as st

from pages.shared import called, frame, operations, paths, session

TITLE = "Operations"
ICON = ":material/account_tree:"
ORDER = 5
PLACES = ("zoom", "step", "op", "module", "call", "filter", "fold", "sort", "open")

frame.enter()
trace = session.trace()
st.title("Every operation that ran")
operations.totals(trace)
level = operations.zoom(trace)
operations.listing(trace, level)
if level == "steps":
    operations.step(trace)
elif level == "modules":
    called.module(trace, operations.number(trace))
elif level == "calls":
    called.call(trace, operations.number(trace))
else:
    operations.operation(trace, level)
operations.pictures(trace, level)
paths.show(trace)
