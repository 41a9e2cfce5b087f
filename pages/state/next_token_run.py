"""Run for the pages on the next token: that on screen where its model predicts one, else a sample's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import streamlit as st

from pages.jobs import run_cache
from pages.state import session
from pages.state.visitor import UserInput, model_name, visitor
from pages.ui import page_frame
from pages.ui.texts import escape, plain
from tracer.record import Trace

PREDICTS = ("next", "caption")
"""The results of models that predict the next token."""
FALLBACK = "nanogpt"


class NextTokenRun(NamedTuple):
    """A model by its name and options, its input, and the run."""

    name: str
    options: run_cache.Options
    chosen: UserInput
    trace: Trace


def next_token_run(lacks: str, suits: Callable[[str], bool] | None = None) -> NextTokenRun:
    """Return the run on screen if its model predicts the next token, else that of `FALLBACK` on its sample, with a
    notice: `lacks` is the start of the sentence, such as "Your model does not write". `suits` returns whether a model
    of that name can be shown before it is run."""
    visitor().instead = ""
    if session.user_input().kind != "trace" and (suits is None or suits(model_name())):
        trace = session.trace()
        if trace.result.get("kind") in PREDICTS:
            return NextTokenRun(model_name(), session.options(), session.user_input(), trace)
    st.info(plain(f"{lacks}, so this page shows {FALLBACK} on its sample."))
    choose = partial(session.choose_model, FALLBACK)
    st.button(f"Choose {FALLBACK}", icon=":material/swap_horiz:", on_click=choose, help="Shows it on all pages.")
    visitor().instead = f"{FALLBACK} on its sample"
    try:
        sample = run_cache.of_sample(FALLBACK, (), run_cache.OWN_SAMPLE)
    except ValueError as error:  # its weights are damaged
        st.error(escape(f"{FALLBACK} could not be run: {error}"))
        page_frame.leave()
    return NextTokenRun(FALLBACK, (), UserInput("sample", run_cache.OWN_SAMPLE), sample)
