"""Panel of one number: the browser's request, and the answer."""

from functools import partial
from typing import Any

import streamlit as st

from pages import components
from pages.jobs.single_flight import of
from pages.state import browser_position, session
from pages.state.visitor import Key, visitor
from tracer.export.letters import letters_of
from tracer.figures import cell_payload
from tracer.record import Trace
from tracer.symbols.letters import OURS

MAX_LETTERS = 300
"""Letters of a cell as an address names it."""


@st.fragment
def follow(trace: Trace, text: str = OURS) -> None:
    """Draw the panel that follows one number of this run, with equations in the letters of a text: the browser requests
    cells by their index, and the exact value of the cell under the pointer."""
    run = session.run_name(trace)
    facts: dict[str, Any] = {"run": run} | browser_position.facts(visitor())
    texts = {name: text for name, text in session.wanted(Key.NUMBER, run).items() if isinstance(text, str)}
    places = {name: text for name, text in texts.items() if 0 < len(text) <= MAX_LETTERS}
    if cell := places.get("cell"):
        facts["cell"] = cell
        facts["answer"] = of(trace, ("cell", text, cell), partial(_pack, trace, cell, text))
    if place := places.get("point"):
        facts |= {"point": place, "exact": cell_payload.value(trace, place)}
    components.number(facts)


def _pack(trace: Trace, cell: str, text: str) -> dict[str, Any]:
    return cell_payload.build(trace, cell, letters_of(trace, text))
