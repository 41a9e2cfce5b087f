"""The token ids of a text: its pieces and the id of each, the only input of a text model."""

import streamlit as st

from pages import components, ui
from pages.jobs.render_cache import of
from pages.state import page_registry
from tracer.figures.predictions import token_pieces as drawings
from tracer.record import Trace

MOST = 200
"""Pieces that are drawn."""


def show(trace: Trace, link: bool = False) -> None:
    """Show the text of a run as ids; nothing for a run without text. With a `link` to the lesson on tokens."""
    html = of(trace, "ids", lambda: _draw(trace))
    if html:
        components.style(ui.STYLES / "pieces.css")
        st.html(html)
        if link:
            st.page_link(page_registry.PAGES / "tokens.py", label="How a text becomes ids", icon=":material/token:")


def _draw(trace: Trace) -> str:
    found = drawings.of_run(trace)
    if not found:
        return ""
    sizes = {size.name: size.value for size in trace.symbols}
    facts = [f"{len(found)} tokens", *([f"V = {sizes['V']:,}"] if "V" in sizes else [])]
    more = f" … and {len(found) - MOST:,} more" if len(found) > MOST else ""
    said = f"Under each piece is its id, the row that it looks up: all that the model is given of the text.{more}"
    return drawings.row("From text to ids t", facts, found[:MOST], said)
