"""The address of every page carries the model and the sample or the text, so that it can be reloaded and handed out.

What a fresh session shows anyway, the first model on its first sample, needs no words in an address. Streamlit makes an
entry in the browser's history of every change, so an address is written once and never with what it says already, and
links to pages have it whole; back and forward then lead to what was on screen.
"""

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from pages.shared import session
from pages.shared.visitor import FIRST_MODEL, Key, model_name, new, visitor
from tracer import models
from tracer.common.quoting import quoted
from tracer.record import Trace

LONGEST = 500
"""Characters of a text that an address carries; browsers and mail programs cut longer ones."""
PLACES = {"trace": "step", "operations": "op"}
"""What the address of a page says of the place on it."""


def read(page: str) -> None:
    """Takes the model that the address names, at the start of a session and when the visitor goes back or forward in
    the browser's history to the page `page`. Before the model is settled."""
    now, asked = visitor(), st.query_params.to_dict()
    _catch_up(page, asked)
    if get_script_run_ctx().is_history_navigation and PLACES.get(page) not in asked:
        now.leave(PLACES.get(page))
    if new():
        st.session_state[Key.MODEL] = FIRST_MODEL
        session.given()  # what is on screen if the model in the address is refused
    elif not _went_back(asked):
        return
    st.session_state[Key.MODEL], now.wanted = asked.get("model", FIRST_MODEL), _input(asked)
    now.ask(None)


def _catch_up(page: str, asked: dict[str, str]) -> None:
    """Takes the step that the browser went to by itself since the last run. Its address says so already, but what
    Streamlit knows of it does not, unless the visitor left it for another address meanwhile."""
    now = visitor()
    told, now.told = now.told, None
    if told is None:
        return
    now.step = now.at = told
    stayed = (now.written or {}).get("step") == asked.get("step")
    if page == "trace" and stayed and not get_script_run_ctx().is_history_navigation:
        st.query_params["step"] = told


def _went_back(asked: dict[str, str]) -> bool:
    """Whether the visitor went back or forward to an address of another model or input."""
    written = asked if (said := visitor().written) is None else said
    other = asked.get("model", FIRST_MODEL) != written.get("model", FIRST_MODEL)
    return get_script_run_ctx().is_history_navigation and (other or _input(asked) != _input(written))


def _input(asked: dict[str, str]) -> dict[str, str]:
    return {name: asked[name] for name in ("sample", "text", "file") if name in asked}


def follow() -> None:
    """Once the model that the address names is there: takes the sample or the text beside it. Of the files that a
    visitor gave only the last photo is held; that another one is gone is said."""
    now = visitor()
    if now.asked is not None or (wanted := now.wanted) is None:
        return
    now.wanted = None
    known, own = session.sample_names(), now.own
    session.given()  # settled before anything is refused: what is chosen takes a refusal back
    if own and wanted.get("file") == own.name:
        session.take_photo(own)
    elif wanted.get("sample") in known or now.written is not None:
        session.take_sample(wanted["sample"] if wanted.get("sample") in known else known[0])
    if "text" in models.takes(model_name()) and wanted.get("text"):
        session.take_text(wanted["text"][:LONGEST], session.text_key())
        st.session_state[session.text_key()] = wanted["text"][:LONGEST]
    if "sample" in wanted and wanted["sample"] not in known:
        first, *more = (quoted(name) for name in known)
        expected = f"one of {', '.join((first, *more))}" if more else "none: it has a text of its own"
        now.refusal = f"{quoted(wanted['sample'])} is no sample of {model_name()}, expected {expected}."
    if "file" in wanted and session.given().name != wanted["file"]:
        now.refusal = f"{wanted['file'][:100]} is not kept here any more: give it again."


def write(page: str) -> None:
    """Writes into the address what the page `page` shows."""
    visitor().written = named = of(page)
    if st.query_params.to_dict() != named:
        st.query_params.from_dict(named)


def of(page: str) -> dict[str, str]:
    """What the address of the page `page` says of the model and the input chosen now, as far as it can."""
    chosen, asked, there = session.given(), visitor().asked, st.query_params.to_dict()
    model = asked.name if asked else model_name()
    silent = chosen.kind == "trace" or (model == FIRST_MODEL and "model" not in there)
    named = {} if silent else {"model": model}
    if chosen.own or chosen.kind == "trace":
        named["file"] = chosen.name
    elif chosen.name != session.sample_names()[0]:
        named["sample"] = chosen.name
    if chosen.text and len(chosen.text) <= LONGEST:
        named["text"] = chosen.text
    if name := PLACES.get(page):
        same = there.get("model", FIRST_MODEL) == model  # else it is a place in another model
        if place := (same and there.get(name)) or _place(name):
            named[name] = place
    return named


def _place(name: str) -> str | None:
    """The step or the operation that was chosen last, where the run on screen is known to have it."""
    last = visitor().place(name)
    if name == "step" and ((trace := session.held()) is None or last != last_step(trace)):
        return None
    return last


def last_step(trace: Trace) -> str | None:
    """The step that was chosen last, on whatever page; the first one where this run has no such step."""
    known, last = [step.id for step in trace.steps], visitor().step
    return last if last in known else next(iter(known), None)


def open_step(step: str) -> None:
    """Opens the page of steps on one of them; what the address says of the place on this page stays here."""
    visitor().step = step
    st.switch_page("pages/trace.py", query_params=of("trace") | {"step": step})


def names_another(name: str, known) -> bool:
    """Whether the address names a step or an operation that is not among those `known`, and that no other model left
    there."""
    asked = st.query_params.get(name)
    return asked is not None and asked not in known and asked != visitor().place(name)
