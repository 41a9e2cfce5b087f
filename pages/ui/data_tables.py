"""Tables of a page: a short one prints and is read out row by row."""

import re
from collections.abc import Mapping, Sequence

import streamlit as st

from pages.ui.texts import plain

MAX_FULL_ROWS = 60
"""Rows of a table that stands there whole; a longer one scrolls in a box of its own, which prints nothing."""


def show(columns: Mapping[str, Sequence], alt: str | None = None) -> None:
    """Draw a table of columns by name; texts are displayed unchanged."""
    if any(len(values) > MAX_FULL_ROWS for values in columns.values()):
        st.dataframe(columns, hide_index=True, alt=alt)
        on_paper(columns, alt)
    else:
        _whole(columns, alt)


def on_paper(columns: Mapping[str, Sequence], alt: str | None = None) -> None:
    """Draw the printed form of a table that scrolls: its first rows, and their number."""
    count = max(map(len, columns.values()))
    with st.container(key=_key("paper", columns, alt)):
        _whole({name: values[:MAX_FULL_ROWS] for name, values in columns.items()}, alt)
        if count > MAX_FULL_ROWS:
            st.caption(f"These are the first {MAX_FULL_ROWS} of {count:,} rows.")


def _whole(columns: Mapping[str, Sequence], alt: str | None) -> None:
    shown = {
        name: [_text(value) if isinstance(value, str) else value for value in values]
        for name, values in columns.items()
    }
    with st.container(key=_key("table", columns, alt)):
        st.table(shown, hide_index=True, alt=alt)


def _text(cell: str) -> str:
    """Return a cell unchanged: none of its signs is markup."""
    return re.sub(r"([\\`*$~<#])", r"\\\1", plain(cell))


def _key(kind: str, columns: Mapping[str, Sequence], alt: str | None) -> str:
    return f"{kind} {alt or ' '.join(columns)}".replace(" ", "-")
