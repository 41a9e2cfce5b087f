"""The box that a proof is shown in: green for what is proven, red for what is disproven, else neither."""

import streamlit as st

_BOXES = {
    "proven": (st.success, "verified"),
    "disproven": (st.error, "dangerous"),
    "pending": (st.info, "hourglass_empty"),
}


def box(verdict: str, said: str) -> None:
    """What a proof says, as its verdict (`tracer.record.verdict`) has it."""
    show, icon = _BOXES.get(verdict, (st.info, "info"))
    show(said, icon=f":material/{icon}:")
