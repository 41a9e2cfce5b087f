"""Changes of the run on screen, one line at the top of every page: each can be undone, or all at once."""

from collections import Counter
from functools import partial

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.jobs import render_cache
from pages.state import session
from pages.ui import texts
from tracer.record import CHANGED_SUFFIX, Trace
from tracer.utils.error_text import shorten


def show(place: DeltaGenerator) -> None:
    """Draw the line in a container at the top of the page, once the page has its run; nothing for a plain run."""
    trace, now = session.current_run(), session.changes()
    if trace is None or not now:
        return
    saved = session.user_input().kind == "trace"
    words = describe(trace if saved else session.reference_trace(), now)
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
    for line in zeroed_together(trace, now):
        with place:
            st.caption(texts.plain(f"Together, these changes set all numbers of {line} to 0."))


def zeroed_together(trace: Trace, changes: tuple[str, ...]) -> list[str]:
    """Return the lines, in words, of which several changes leave nothing, such as a head that is off and the only one
    that is on."""
    from tracer.changes import options  # torch, which pages start without

    lines = Counter(text.partition("=")[0] for text in changes)
    steps = {step.id.removesuffix(CHANGED_SUFFIX): step for step in trace.steps if step.id.endswith(CHANGED_SUFFIX)}
    zeroed = []
    for line, count in lines.items():
        step = steps.get(line)
        values = None if step is None or count < 2 else trace.values.get(step.value)
        if step is not None and values is not None and not values.any():
            title, block = step.title.removesuffix(", changed").lower(), options.block_title(trace, step).lower()
            zeroed.append(f"the {title} of {block}" if block else f"the {title}")
    return zeroed


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
            make = partial(options.describe, trace, line, change)
            descriptions.append(render_cache.of(trace, ("described", text), make))
    return descriptions


def _take_back(at: int, text: str) -> None:
    now = session.changes()
    if at < len(now) and now[at] == text:  # it comes late, when it was taken back already
        session.change(now[:at] + now[at + 1 :])
