"""Choice of a sequence of tokens, in models of several towers."""

import streamlit as st

from pages.state import url_state
from tracer.attention import parts
from tracer.record import Trace


def tower(trace: Trace) -> str:
    """Return the tower whose attention is displayed: a choice in models of several, in which each has a sequence of its
    own."""
    towers = parts(trace)
    if len(towers) < 2:
        return towers[0]
    return st.segmented_control("Tower", towers, required=True, **url_state.widget("tower", towers, towers[0]))
