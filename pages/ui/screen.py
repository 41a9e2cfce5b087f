"""Run on screen, its card and its photo. Where one can't be had, the page ends with one sentence that says why."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import streamlit as st

from pages.jobs import background_checks, model_costs, render_gate, run_cache
from pages.state import session
from pages.state.visitor import PhotoView, UserInput, model_name, visitor
from pages.ui import page_frame, texts
from pages.ui.texts import escape, plain
from tracer import models, zoo
from tracer.inputs import images
from tracer.record import Trace
from tracer.utils.errors import capitalize


def card() -> dict | None:
    """Return the card of the model's weights: sizes, classes, scores; None for a saved trace or a model without.

    Scores are left out with other options than they were measured with.
    """
    try:
        known = dict(run_cache.without_changes(session.options()))
        facts = None if session.user_input().kind == "trace" else models.card(model_name(), known)
    except ValueError as error:  # a damaged one says which file it is
        st.error(texts.escape(str(error)))
        page_frame.leave()
    if (
        facts
        and session.options()
        and (run_cache.changes(session.options()) or not models.fits(facts, model_name(), known))
    ):
        return {name: fact for name, fact in facts.items() if name != "says"}
    return facts


def view() -> PhotoView | None:
    """Return the photo as the model sees it, before any model is loaded; None where there is no photo or no card."""
    chosen = session.user_input()
    if chosen.trace is not None:
        return session.traced_view(chosen.trace)
    sizes = (card() or {}).get("sizes", {}) | dict(session.options())
    if not {"H", "W", "P"} <= sizes.keys():
        return None
    image, crop = images.centre_crop(chosen.photo, sizes["H"], sizes["W"])
    return PhotoView(
        chosen.photo, crop, session.match_channels(image, sizes), sizes["H"] // sizes["P"], sizes["W"] // sizes["P"]
    )


def trace(beside_plain: bool = False) -> Trace:
    """Return the run of the pages, computed on first use, with the checks on other runs as soon as they are known. A
    refusal stops the page with one sentence. With `beside_plain`, the page shows the run without its changes, too."""
    slots = render_gate.reserve()
    if (run := session.current_run()) is None:
        chosen, name = session.user_input(), model_name()
        key = (name, session.options())
        if wrong := model_costs.problem(*key):
            st.error(f"{name} does not run here at the sizes that you chose. {wrong}")
            st.page_link("pages/sizes.py", label="Choose other sizes", icon=":material/straighten:")
            page_frame.leave()
        try:
            beside = session.run_plain_beside(*key, chosen) if beside_plain else nullcontext()
            with render_gate.show_bars(slots), render_gate.keep_page(session.was_run()), beside:
                run = session.find_run(*key, chosen)
        except render_gate.ServerFull:
            raise
        except Exception as error:  # code of a library may raise anything; ours refuses with a ValueError
            if session.changes():
                _drop_changes(error)
            if not (isinstance(error, ValueError) or zoo.is_foreign(name)):
                raise
            what = {"text": "your text"}.get(
                chosen.kind, "its own sample" if chosen.name == run_cache.OWN_SAMPLE else chosen.name
            )
            message = " ".join(str(error).split())[:500]
            st.error(texts.escape(f"{name} could not be run on {what}: {message}"))
            page_frame.leave()
        visitor().hold(chosen, key, run)
        run = background_checks.apply(key, run)
    return run


def _drop_changes(error: Exception) -> None:
    """Replace a changed run that failed by the plain run, with the reason."""
    message = " ".join(str(error).split())[:500] or type(error).__name__
    known = isinstance(error, ValueError)
    message = capitalize(message) if known else f"{model_name()} could not be run with these changes: {message}"
    visitor().refusal = f"{message}. {session.UNCHANGED_NOTE}"
    session.change(())
    st.rerun()


PREDICTS = ("next", "caption")
"""Results of models that predict the next token."""


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
        run = trace()
        if run.result.get("kind") in PREDICTS:
            return NextTokenRun(model_name(), session.options(), session.user_input(), run)
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


def show_origin(trace) -> None:
    """Show where the weights of a library's or visitor's model come from, and how much of its run the equations
    cover."""
    if trace.weights and (zoo.is_foreign(trace.model) or session.user_input().kind == "trace"):
        st.caption(plain(f"Weights: {trace.weights}."))
    if not trace.steps:
        st.caption("This run was saved without steps: its operations, shapes and attention are shown.")
    elif trace.coverage < 1:
        share = f"{100 * trace.coverage:.0f} %" if trace.coverage < 0.995 else "more than 99 %"
        st.caption(
            f"The steps cover {share} of the operations that compute. Only the page Operations shows the others."
        )
