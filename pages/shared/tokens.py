"""Which sequence of tokens a page is about, in models of several towers."""

import streamlit as st

from tracer.attention import parts
from tracer.record import Trace


def tower(trace: Trace) -> str:
    """The tower whose attention is shown: a choice in models of several, in which each has a sequence of its own."""
    towers = parts(trace)
    return st.segmented_control("Tower", towers, default=towers[0], required=True) if len(towers) > 1 else towers[0]
