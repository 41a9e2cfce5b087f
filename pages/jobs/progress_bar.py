"""Display while a visitor waits: the task, its progress, and a button that cancels it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from tracer.export.math_labels import amount
from tracer.utils.job_queue import position_text
from tracer.utils.progress import Progress

HIDDEN_STYLE_KEY = "hidden"
"""Where a visitor’s session keeps the place of the style that hides what was on screen, while a page is made."""
HIDING_STYLE = (
    "<span></span>"  # of style alone, Streamlit makes no element that could be emptied again
    "<style>:is([data-testid=stMain], [data-testid=stSidebar]) [data-stale=true] { display: none !important }</style>"
)
"""What was on screen before goes: it is of another model or input than the names that stand above it by now."""


OVERLAY = "overlay"
"""Where a visitor’s session keeps the place of bars that lie over the page."""
BAR_DELAY, KEPT_PAGE_DELAY = 0.1, 1.0
"""Seconds before a bar is shown; the second of one over a page that stays."""

_keeps_page: ContextVar[bool] = ContextVar("keeps_page", default=False)
_slots: ContextVar[list[DeltaGenerator]] = ContextVar("slots", default=[])  # noqa: B039 # nobody appends to it


@contextmanager
def keep_page(keeps: bool = True) -> Iterator[None]:
    """Keep the screen unchanged during the block: bars lie over the page, and appear late."""
    token = _keeps_page.set(keeps)
    try:
        yield
    finally:
        _keeps_page.reset(token)


def reserve() -> list[DeltaGenerator]:
    """Reserve containers for a bar that may appear: a page that always has them does not move when one comes or
    goes."""
    return [st.empty(), st.empty()]


@contextmanager
def show_bars(slots: list[DeltaGenerator]) -> Iterator[None]:
    """Show bars in reserved containers during the block."""
    token = _slots.set(slots)
    try:
        yield
    finally:
        _slots.reset(token)


def delay() -> float:
    """Return the seconds of waiting before a bar is shown."""
    return KEPT_PAGE_DELAY if _keeps_page.get() else BAR_DELAY


class ProgressBar:
    """A progress bar, in the container of the result or over the page; `instead` where the result replaces the previous
    content, which is hidden then. `cancel()` is called when the visitor presses the button."""

    def __init__(self, doing: str, key: str, cancel: Callable[[], object], instead: bool):
        self.doing, self.shown = doing, (0.0, doing)
        keeps = _keeps_page.get() and OVERLAY in st.session_state
        hidden, place = _slots.get() or (None, None)
        if instead and not keeps and HIDDEN_STYLE_KEY not in st.session_state:
            st.session_state[HIDDEN_STYLE_KEY] = hidden or st.empty()
            st.session_state[HIDDEN_STYLE_KEY].html(HIDING_STYLE)
        self.place = st.session_state[OVERLAY] if keeps else place or st.empty()
        with self.place.container(border=True, key=f"over-{key}" if keeps else None):
            self.bar = st.progress(0.0, doing)
            st.button("Cancel", icon=":material/close:", key=key, on_click=cancel)

    def show(self, place: int, progress: Progress) -> None:
        """Show the position of the work in the queue, 0 once it has begun, and then its progress."""
        doing = self.doing
        if place:
            now = 0.0, f"{position_text(place)}, then: {doing[0].lower()}{doing[1:]}"
        else:
            now = min(1.0, progress.done / progress.whole) if progress.whole else 0.0, words(progress, doing)
        if now != self.shown:
            self.bar.progress(*now)
            self.shown = now

    def over(self) -> None:
        """Remove the bar."""
        self.place.empty()


def words(progress: Progress, doing: str) -> str:
    """Return the task and its progress in words, `doing` where the work reported none."""
    what = progress.doing or doing
    if not progress.whole:
        return what
    if progress.unit == "B":
        return f"{what}: {amount(min(progress.done, progress.whole), 'B')} of {amount(progress.whole, 'B')}"
    return f"{what}: {progress.unit} {progress.done:,} of {progress.whole:,}" if progress.done else what


def begin() -> None:
    """Forget what the last run of the script hid, which may have been stopped meanwhile."""
    st.session_state.pop(HIDDEN_STYLE_KEY, None)


def lay_overlay() -> None:
    """Create the container of bars that lie over the page, before the page is drawn."""
    st.session_state[OVERLAY] = st.empty()


def over() -> None:
    """Show again what a page keeps from one run to the next, once all of it is drawn."""
    if (hidden := st.session_state.pop(HIDDEN_STYLE_KEY, None)) is not None:
        hidden.empty()
