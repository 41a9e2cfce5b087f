"""Tables of a page: one that prints and is read out row by row, where it is short."""

from collections.abc import Mapping, Sequence

import streamlit as st

from pages.shared.texts import plain

FEW = 60
"""Rows of a table that stands there whole; a longer one scrolls in a box of its own, which prints nothing."""


def show(columns: Mapping[str, Sequence], alt: str | None = None) -> None:
    """A table of columns by name; texts are shown as they are."""
    if any(len(values) > FEW for values in columns.values()):
        st.dataframe(columns, hide_index=True, alt=alt)
        return
    shown = {name: [plain(one) if isinstance(one, str) else one for one in values] for name, values in columns.items()}
    with st.container(key=f"table {alt or ' '.join(columns)}".replace(" ", "-")):
        st.table(shown, hide_index=True, alt=alt)
