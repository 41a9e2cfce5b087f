"""Panel of one number: the browser's request, and the answer."""

from functools import partial
from typing import Any

import streamlit as st

from pages import components
from pages.jobs.single_flight import of
from pages.state import browser_position, session
from pages.state.visitor import Key, visitor
from tracer.figures import cell_payload
from tracer.record import Trace

MAX_LETTERS = 300
"""Letters of a cell as an address names it."""


@st.fragment
def follow(trace: Trace) -> None:
    """Draw the panel that follows one number of this run: the browser requests cells by their index, and the exact
    value of the cell under the pointer."""
    run = session.run_name(trace)
    facts: dict[str, Any] = {"run": run} | browser_position.facts(visitor())
    texts = {name: text for name, text in session.wanted(Key.NUMBER, run).items() if isinstance(text, str)}
    places = {name: text for name, text in texts.items() if 0 < len(text) <= MAX_LETTERS}
    if place := places.get("cell"):
        facts["cell"] = place
        facts["answer"] = of(trace, ("cell", place), partial(cell_payload.pack, trace, place))
    if place := places.get("point"):
        facts |= {"point": place, "exact": cell_payload.value(trace, place)}
    components.number(facts)
