"""Box of a proof: green for proven, red for disproven, else neutral."""

import streamlit as st

_BOXES = {
    "proven": (st.success, "verified"),
    "disproven": (st.error, "dangerous"),
    "pending": (st.info, "hourglass_empty"),
}


def box(verdict: str, text: str) -> None:
    """Draw a proof's sentence in the colour of its verdict (`tracer.record.verdict`)."""
    show, icon = _BOXES.get(verdict, (st.info, "info"))
    show(text, icon=f":material/{icon}:")
