"""Panel of one number: the browser's request, and the answer."""

import secrets
from collections.abc import Mapping
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
    ran = None if session.user_input().kind == "trace" else visitor().run()
    run = of(ran or trace, "name of cells", lambda: secrets.token_hex(8))
    wanted = _request(run)
    facts: dict[str, Any] = {"run": run} | browser_position.facts(visitor())
    if place := wanted.get("cell"):
        facts["cell"] = place
        facts["answer"] = of(trace, ("cell", place), partial(cell_payload.pack, trace, place))
    if place := wanted.get("point"):
        facts |= {"point": place, "exact": cell_payload.value(trace, place)}
    components.number(facts)


def _request(run: str) -> dict[str, str]:
    """Return the browser's request for this run."""
    request = (st.session_state.get(Key.NUMBER) or {}).get("wanted")
    if not isinstance(request, Mapping) or request.get("run") != run:
        return {}
    return {
        name: text
        for name in ("cell", "point")
        if isinstance(text := request.get(name), str) and 0 < len(text) <= MAX_LETTERS
    }
