"""Links to the other pages, with the topics of this run there."""

import streamlit as st

from pages.state import url_state
from tracer.attention import layers
from tracer.record import Trace


def show(trace: Trace) -> None:
    """Draw the links from the first page, the recommended one first."""
    with st.container(key="ways"):
        st.header("What to look at next")
        with st.container(key="onward"):
            for page, label, icon in _ways(trace):
                st.page_link(f"pages/{page}.py", label=label, icon=icon, query_params=url_state.of(page))


def _ways(trace: Trace) -> list[tuple[str, str, str]]:
    """Return (page, label, icon) of each page that this run has something for."""
    ways = []
    if trace.steps:
        ways.append(("trace", f"Walk through its {len(trace.steps):,} steps", ":material/function:"))
    if trace.attentions:
        first = layers(trace)
        heads, many = first[0].heads, len(first)
        label = f"Compare its {many * heads} heads" if many * heads > 1 else "See what its one head does"
        ways.append(("attention", label, ":material/center_focus_strong:"))
        ways.append(("mask", "See which token may attend to which", ":material/grid_on:"))
    ways.append(("operations", f"Browse its {len(trace.ops):,} ops", ":material/account_tree:"))
    return ways
