"""Controls of changes: each is in force or not, or has a factor; a choice changes the run on screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import streamlit as st

from pages.state import session
from tracer.record import Step

if TYPE_CHECKING:
    from tracer.changes.options import Option


def toggles(label: str, choices: Iterable[Option], instead: str = "") -> None:
    """Draw changes that are each in force or not; a new one replaces those whose texts start with `instead`."""
    titles = {option.text: option.title for option in choices}
    if not titles:
        return
    key = f"what if {label}"
    st.session_state[key] = [text for text in titles if text in session.changes()]
    st.pills(
        label,
        list(titles),
        selection_mode="multi",
        format_func=titles.__getitem__,
        key=key,
        on_change=_toggle,
        args=(key, tuple(titles), instead),
    )


def _toggle(key: str, texts: Sequence[str], instead: str) -> None:
    chosen, now = st.session_state[key], session.changes()
    new = [text for text in chosen if text not in now]
    remaining = [text for text in now if text not in texts or text in chosen]
    if instead and new:
        remaining = [text for text in remaining if not text.startswith(instead)]
    session.change((*remaining, *new))


def slider(label: str, step: Step, factors: Sequence[float], choices: Iterable[Option]) -> None:
    """Draw a slider of the factor of a line's value; a factor that `choices` names is not its own."""
    from tracer.changes import scale  # torch, which pages start without

    own = {option.text for option in choices}
    now = [text for text in session.changes() if text.startswith(f"{step.id}=scale(") and text not in own]
    factor = float(now[0].rpartition("(")[2].rstrip(")")) if now else 1.0
    key = f"what if × {step.id}"
    st.session_state[key] = factor
    texts = {each: f"{step.id}={scale(each)}" for each in factors if each != 1}
    st.select_slider(
        label,
        sorted({*factors, factor}),
        format_func=lambda each: f"× {each:g}",
        key=key,
        on_change=_scale,
        args=(key, tuple(now), texts),
    )


def _scale(key: str, replaced: Sequence[str], texts: dict[float, str]) -> None:
    remaining = [text for text in session.changes() if text not in replaced]
    if (text := texts.get(st.session_state[key])) is not None:
        remaining.append(text)
    session.change(remaining)
