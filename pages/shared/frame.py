"""Keeps every page inside the app.

Streamlit runs a file of a folder named `pages` by itself when its address is the first that a fresh server is asked
for, before `app.py` had a chance to set up navigation. A page that finds itself alone runs the app around it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NoReturn

import streamlit as st

from pages.shared import busy, waiting

_inside: ContextVar[bool] = ContextVar("inside", default=False)


class Left(Exception):
    """A page has said all that it has to say."""


@contextmanager
def around() -> Iterator[None]:
    """What the app wraps a page in: one that stops early, for want of anything to show, keeps its sidebar."""
    token = _inside.set(True)
    try:
        with busy.drawing():
            yield
    except Left:
        pass
    finally:
        _inside.reset(token)
    waiting.over()


def enter() -> None:
    """The first line of every page."""
    if not _inside.get():
        from app import main

        main()
        st.stop()


def leave() -> NoReturn:
    """Ends a page early. `st.stop` would end the whole run, and the sidebar with it."""
    raise Left
