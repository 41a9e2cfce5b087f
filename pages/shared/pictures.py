"""What is drawn of a run or a photo: made once for all who look at it, within bounds, and gone with what it is of."""

import json
import weakref
from collections.abc import Callable, Hashable
from typing import TypeVar

import plotly.graph_objects as go
import streamlit as st
from plotly.basedatatypes import BaseFigure

from pages.shared.kept import Kept

Made = TypeVar("Made")
MOST = 48 * 2**20
"""Bytes that all of them take together, about."""


class Drawn(BaseFigure):
    """A figure that was checked once, as plain data: `st.plotly_chart` asks a figure for nothing else."""

    def __init__(self, figure: go.Figure):
        self._plain = figure.to_dict()
        self._bytes = len(figure.to_json())

    def to_dict(self) -> dict:
        return self._plain


def _weight(kept: tuple[weakref.ref, object]) -> float:
    made = kept[1]
    if isinstance(made, Drawn):
        return 4 * made._bytes
    return len(made) if isinstance(made, (bytes, str)) else len(json.dumps(made, default=str))


_kept = Kept(MOST, _weight)


def of(owner: object, key: Hashable, make: Callable[[], Made]) -> Made:
    """What `make()` gives, once for each `key` of an `owner`, such as a run; it must not be changed afterwards."""
    full = id(owner), key
    kept = _kept.get(full)
    if kept is None or kept[0]() is not owner:  # another one's number may be that of one that is gone
        kept = weakref.ref(owner, lambda _: _kept.drop(full)), make()
        _kept.put(full, kept)
    return kept[1]


def chart(owner: object, key: Hashable, make: Callable[[], go.Figure], **more) -> None:
    """A figure of an `owner`, on the page; `more` goes to `st.plotly_chart`."""
    st.plotly_chart(of(owner, key, lambda: Drawn(make())), **more)
