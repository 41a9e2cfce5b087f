"""Toolbar of every page, with the search, whose index comes when it is first opened."""

import secrets

import streamlit as st

from pages import components
from pages.jobs.render_cache import of
from pages.sections.search import index
from pages.state import session, url_state
from pages.state.visitor import Key, model_name


@st.fragment
def show() -> None:
    """Draw the toolbar. The index of the current screen is sent on request, and then the browser searches."""
    run = session.current_run()
    unknown = f"no run of {model_name()}"  # as the toolbar of a page is drawn before its run is there
    name = of(run, "name of search", lambda: secrets.token_hex(8)) if run else unknown
    wanted = (st.session_state.get(Key.TOOLS) or {}).get("wanted")
    entries = index.entries(run, session.user_input().kind != "trace") if wanted in (name, unknown) else None
    components.tools(url_state.lacks(), {"name": name, "entries": entries})
