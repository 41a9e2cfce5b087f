"""Every operation of the run: in a table that filters, sorts and folds, and one at a time down to its primitives."""

import streamlit as st

from pages.shared import frame, operations, paths, session

TITLE = "Operations"
ICON = ":material/account_tree:"
ORDER = 5

frame.enter()
trace = session.trace()
st.title("Every operation that ran")
operations.totals(trace)
level = operations.zoom(trace)
operations.listing(trace, level)
if level == "steps":
    operations.step(trace)
else:
    operations.operation(trace)
operations.pictures(trace, level)
paths.show(trace)
