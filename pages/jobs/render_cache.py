"""Figures of a run or a photo: computed once for all visitors, bounded, and dropped with their owner."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import orjson
import plotly.graph_objects as go
import streamlit as st
from plotly.basedatatypes import BaseFigure

from tracer.utils.cache import Cache

Result = TypeVar("Result")
MAX_BYTES = 32 * 2**20
"""Bytes that all of them take together, about."""
LAYOUT = 24_576
"""Bytes that the layout of a figure takes, about."""
PLAIN_CONFIG = {"displayModeBar": False}
"""How plotly shows a figure that needs no buttons."""
OBJECTS = 5
"""How many times the bytes of its JSON a value takes, about."""


class RenderedFigure(BaseFigure):
    """A figure that was validated once, as plain data: `st.plotly_chart` needs nothing else of a figure.

    Its traces are JSON text, written once, which takes little memory; its `plan`, the layout, can be read.
    """

    def __init__(self, traces: list[dict], plan: dict, size: int):
        self._traces, self._plan, self._size = traces, plan, size

    @classmethod
    def of(cls, figure: go.Figure) -> RenderedFigure:
        """Return a plotly figure as data."""
        plain, traces, size = figure.to_dict(), [], 0
        for trace in plain["data"]:
            written = {name: orjson.dumps(_as_json(value)) for name, value in trace.items()}
            traces.append({name: orjson.Fragment(value) for name, value in written.items()})
            size += sum(map(len, written.values()))
        return cls(traces, plain["layout"], size)

    def under(self, change: Callable[[dict], dict]) -> RenderedFigure:
        """Return the same figure with `change(layout)` applied; its traces are shared."""
        return RenderedFigure(self._traces, self._plan | change(self._plan), 0)

    def to_dict(self) -> dict:
        return {"data": self._traces, "layout": self._plan}

    def weight(self) -> int:
        """Return the approximate size of the figure in bytes."""
        return self._size + LAYOUT


def _as_json(value):
    """Return a value that JSON can hold: names are in arrays, which plotly validates faster than lists."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def _weight(entry: tuple[weakref.ref, object]) -> float:
    rendered = entry[1]
    if hasattr(rendered, "weight"):
        return rendered.weight()
    if isinstance(rendered, (bytes, str)):
        return len(rendered)
    return OBJECTS * len(orjson.dumps(rendered, default=str, option=orjson.OPT_NON_STR_KEYS))


_store = Cache(MAX_BYTES, _weight)
_turns: weakref.WeakValueDictionary[Hashable, Lock] = weakref.WeakValueDictionary()
_asking = Lock()


def of(owner: object, key: Hashable, make: Callable[[], Result]) -> Result:
    """Return `make()`, computed once for each `key` of an `owner`, such as a run; the value must not be changed
    afterwards. A second caller waits for the first."""
    full = id(owner), key
    if (entry := _entry(full, owner)) is not None:
        return entry[1]
    with _asking:
        turn = _turns.get(full)
        if turn is None:
            turn = _turns[full] = Lock()
    with turn:
        if (entry := _entry(full, owner)) is None:
            drop = _store.drop  # held: as the server ends, owners may go after this file
            entry = weakref.ref(owner, lambda _: drop(full)), make()
            _store.put(full, entry)
        return entry[1]


def _entry(full: tuple[int, Hashable], owner: object) -> tuple[weakref.ref, Any] | None:
    """Return the cache entry of this very owner: its id may have belonged to one that is gone."""
    entry = _store.get(full)
    return entry if entry is not None and entry[0]() is owner else None


def figure(owner: object, key: Hashable, make: Callable[[], go.Figure]) -> RenderedFigure:
    """Return a figure of an `owner`, computed once."""
    return of(owner, key, lambda: RenderedFigure.of(make()))


def chart(owner: object, key: Hashable, make: Callable[[], go.Figure], **more) -> None:
    """Draw a figure of an `owner` on the page, without buttons; `more` is passed to `st.plotly_chart`."""
    st.plotly_chart(figure(owner, key, make), **{"config": PLAIN_CONFIG} | more)
