"""Who runs what now: runs in flight are counted, for each visitor and for all, and refused where they are too many.

A visitor is a browser where a proxy tells them apart (`hosting/nginx.conf` gives each a cookie), else a session. A
session runs one thing at a time; but one that was reloaded leaves a run behind, so that a key held down made dozens.
"""

from collections import Counter
from contextlib import AbstractContextManager
from threading import Lock, local

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from tracer.limits import limits

COOKIE = "visitor"
_runs: Counter[str] = Counter()
_counting = Lock()


class Full(Exception):
    """The server takes nothing more at the moment; says so in one sentence."""


class Bounded:
    """Turns that are asked for one at a time (`with turns:`), and that are refused where too many go on or wait."""

    def __init__(self, turns: AbstractContextManager):
        self._turns, self._held = turns, local()

    def __enter__(self) -> None:
        who = visitor()
        with _counting:
            if problem := _problem(who):
                raise Full(problem)
            _runs[who] += 1
        try:
            self._turns.__enter__()
        except BaseException:
            _done(who)
            raise
        self._held.who = who

    def __exit__(self, *error) -> None:
        self._turns.__exit__(*error)
        _done(self._held.who)


def _done(who: str) -> None:
    with _counting:
        _runs[who] -= 1
        if not _runs[who]:
            del _runs[who]


def _problem(who: str) -> str:
    """Why this visitor's next run is refused, in one sentence; empty where it is taken."""
    most = limits()
    if who and _runs[who] >= most.visitor_runs:
        return (
            f"{_runs[who]} runs of yours are still going on, as many as this server makes for one visitor: try again "
            "when one is done."
        )
    if (count := _runs.total()) >= most.runs:
        return f"{count} runs are going on or waiting, as many as this server takes: try again in a minute."
    return most.memory_full()


def visitor() -> str:
    """Who asks: the browser where a proxy tells them apart, else the session; empty where nobody does."""
    context = get_script_run_ctx(suppress_warning=True)
    return "" if context is None else st.context.cookies.get(COOKIE) or context.session_id


def said(error: Exception) -> bool:
    """Says of what was refused why, in the place of what would have been shown; whether there was anything to say."""
    if isinstance(error, Full):
        st.warning(str(error), icon=":material/hourglass:")
    return isinstance(error, Full)


def count() -> int:
    """How many runs go on or wait now."""
    return _runs.total()
