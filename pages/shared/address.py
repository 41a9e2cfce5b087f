"""The address of every page carries the model and the sample or the text, so that it can be reloaded and handed out.

What a fresh session shows anyway, the first model on its first sample, needs no words in an address. Streamlit makes an
entry in the browser's history of every change, so an address is written once and never with what it says already.
"""

import streamlit as st

from pages.shared import session
from tracer import models
from tracer.record import Trace

LONGEST = 500
"""Characters of a text that an address carries; browsers and mail programs cut longer ones."""
PLACES = {"trace": "step", "operations": "op"}
"""What the address of a page says of the place on it."""


def read() -> None:
    """At the start of a session: takes the model that the address names. Before the model is settled."""
    state = st.session_state
    if "shown" in state or "model" in state:
        return
    state["model"] = session.FIRST_MODEL
    session.given()  # what is on screen if the model in the address is refused
    state["model"] = st.query_params.get("model", session.FIRST_MODEL)
    state["address"] = {name: st.query_params[name] for name in ("sample", "text", "file") if name in st.query_params}


def follow() -> None:
    """Once the model that the address names is there: takes the sample or the text beside it. A file that a visitor
    gave is forgotten with the page, and that is said."""
    state = st.session_state
    asked = state.get("asked")
    if asked is not None or not (wanted := state.pop("address", None)):
        return
    if wanted.get("sample") in session.sample_names():
        session.take_sample(wanted["sample"])
    if "text" in models.takes(session.model_name()) and wanted.get("text"):
        session.take_text(wanted["text"][:LONGEST], session.text_key())
    if "file" in wanted:
        state["refusal"] = f"{wanted['file'][:100]} was forgotten when the page was loaded anew: give it again."


def write(page: str) -> None:
    """What the page `page` shows, as far as an address can say it."""
    chosen, asked = session.given(), st.session_state.get("asked")
    model = asked.name if asked else session.model_name()
    silent = chosen.kind == "trace" or (model == session.FIRST_MODEL and "model" not in st.query_params)
    named = {} if silent else {"model": model}
    if chosen.own or chosen.kind == "trace":
        named["file"] = chosen.name
    elif chosen.name != session.sample_names()[0]:
        named["sample"] = chosen.name
    if chosen.text and len(chosen.text) <= LONGEST:
        named["text"] = chosen.text
    if (name := PLACES.get(page)) and (place := st.query_params.get(name) or _step(name)):
        named[name] = place
    if st.query_params.to_dict() != named:
        st.query_params.from_dict(named)


def _step(name: str) -> str | None:
    """The step that the page of steps goes to by itself, as far as that is known before it is drawn."""
    return last_step(trace) if name == "step" and (trace := session.held()) is not None else None


def last_step(trace: Trace) -> str | None:
    """The step that was chosen last, on whatever page; the first one where this run has no such step."""
    known, last = [step.id for step in trace.steps], st.session_state.get("step")
    return last if last in known else next(iter(known), None)


def open_step(step: str) -> None:
    """Opens the page of steps on one of them; what the address says of the place on this page stays here."""
    st.session_state["step"] = step
    there = {name: value for name, value in st.query_params.to_dict().items() if name not in PLACES.values()}
    st.switch_page("pages/trace.py", query_params=there)


def names_another(name: str, known) -> bool:
    """Whether the address names a step or an operation that is not among those `known`, and that no other model left
    there."""
    asked = st.query_params.get(name)
    return asked is not None and asked not in known and asked != str(st.session_state.get(name))
