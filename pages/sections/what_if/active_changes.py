"""Changes of the run on screen, one line at the top of every page: each can be undone, or all at once."""

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.state import session
from pages.ui import texts
from tracer.record import Trace
from tracer.utils.error_text import shorten


def show(place: DeltaGenerator) -> None:
    """Draw the line in a container at the top of the page, once the page has its run; nothing for a plain run."""
    trace, now = session.current_run(), session.changes()
    if trace is None or not now:
        return
    saved = session.user_input().kind == "trace"
    words = describe(trace if saved else session.plain_trace(), now)
    with place, st.container(key="changes", horizontal=True, vertical_alignment="center", gap="small"):
        if saved:
            st.markdown(f"**The saved run was changed:** {texts.escape('; '.join(words))}.")
            return
        st.markdown("**This run is changed:**", width="content")
        for at, (text, description) in enumerate(zip(now, words, strict=True)):
            st.button(
                texts.literal(description),
                key=f"change {at} {text}",
                icon=":material/close:",
                icon_position="right",
                help=f"Take this change back. In a link and in Python it is `{text}`.",
                on_click=_take_back,
                args=(at, text),
            )
        st.button("Undo the changes", icon=":material/undo:", type="tertiary", on_click=session.change, args=((),))


def describe(trace: Trace, changes: tuple[str, ...]) -> list[str]:
    """Describe changes in plain words, by the lines of the run without them; unchanged where they can't be read."""
    from tracer.changes import options, parse_all  # torch, which pages start without

    descriptions = []
    for text in changes:
        try:
            ((line, change),) = parse_all([text]).items()
        except ValueError:  # of a saved run: a tensor or a function has no name that could be read
            descriptions.append(shorten(text))
        else:
            descriptions.append(options.describe(trace, line, change))
    return descriptions


def _take_back(at: int, text: str) -> None:
    now = session.changes()
    if at < len(now) and now[at] == text:  # it comes late, when it was taken back already
        session.change(now[:at] + now[at + 1 :])
