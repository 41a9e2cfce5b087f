"""The display while a visitor waits: the task, its progress, and a button that cancels it."""

from collections.abc import Callable

import streamlit as st

from tracer.export.math_labels import amount
from tracer.utils.job_queue import position_text
from tracer.utils.progress import Progress

HIDDEN = "hidden"
"""Where a visitor’s session keeps the place of the style that hides what was on screen, while a page is made."""
LEFT = (
    "<style>:is([data-testid=stMain], [data-testid=stSidebar]) [data-stale=true] { display: none !important }</style>"
)
"""What was on screen before goes: it is of another model or input than the names that stand above it by now."""


class Bar:
    """A progress bar, in the container of the result; `instead` where the result replaces what was on screen, which is
    hidden then. `cancel()` is called when the visitor presses the button."""

    def __init__(self, doing: str, key: str, cancel: Callable[[], object], instead: bool):
        self.doing, self.shown = doing, (0.0, doing)
        if instead and HIDDEN not in st.session_state:
            st.session_state[HIDDEN] = st.empty()
            st.session_state[HIDDEN].html(LEFT)
        self.place = st.empty()
        with self.place.container(border=True):
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
    st.session_state.pop(HIDDEN, None)


def over() -> None:
    """Show again what a page keeps from one run to the next, once all of it is drawn."""
    if (hidden := st.session_state.pop(HIDDEN, None)) is not None:
        hidden.empty()
