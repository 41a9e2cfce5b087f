"""Frame that keeps every page inside the app.

Streamlit runs a file of a folder named `pages` by itself when its address is the first request to a fresh server,
before `app.py` could set up navigation. A page that finds itself alone runs the app around it.
"""

import runpy
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import NoReturn

import streamlit as st

from pages.jobs import render_gate
from tracer.utils.job_queue import assign

APP = Path(__file__).parents[2] / "app.py"

_inside: ContextVar[bool] = ContextVar("inside", default=False)


class PageEnd(Exception):
    """Raised to end a page early."""


@contextmanager
def around() -> Iterator[None]:
    """Wrap a page, as a context: one that stops early, with nothing to show, keeps its sidebar."""
    with assign(_inside, True), suppress(PageEnd), render_gate.drawing():
        yield
    render_gate.over()


def enter() -> None:
    """Enter the app; the first line of every page."""
    if not _inside.get():
        runpy.run_path(str(APP), run_name="__main__")
        st.stop()


def leave() -> NoReturn:
    """End a page early. `st.stop` would end the whole run, and the sidebar with it."""
    raise PageEnd
