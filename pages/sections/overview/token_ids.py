"""Token ids of a text: its pieces and the id of each, the only input of a text model."""

import streamlit as st

from pages import components, ui
from pages.jobs.render_cache import of
from pages.state import page_registry
from tracer.figures.predictions import token_pieces as drawings
from tracer.record import Trace

MAX_PIECES = 200
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
    pieces = drawings.of_run(trace)
    if not pieces:
        return ""
    sizes = {size.name: size.value for size in trace.symbols}
    facts = [f"{len(pieces)} tokens", *([f"V = {sizes['V']:,}"] if "V" in sizes else [])]
    more = f" … and {len(pieces) - MAX_PIECES:,} more" if len(pieces) > MAX_PIECES else ""
    caption = (
        "Under each piece is its id, the number of the row that it looks up. The model sees nothing of the text but "
        f"these ids.{more}"
    )
    return drawings.row("From text to ids t", facts, pieces[:MAX_PIECES], caption)
