"""Run as a film: beats with a picture, a sentence, an equation and its proof, in one page that needs no server."""

from __future__ import annotations

from tracer.figures.film import message, page
from tracer.figures.film.storyboard import storyboard
from tracer.record import Trace
from tracer.record.film import Film
from tracer.utils.error_text import quote

FILE = 650_000
"""Bytes of attention in a file, which need not travel with each visit to a page."""


def film(trace: Trace) -> Film:
    """Return the film of a run.

    ValueError for a run without operations, of which there is nothing to show.
    """
    if not trace.ops:
        raise ValueError(f"a film needs a run with operations, and this trace of {quote(trace.model)} has none")
    return Film(trace.model, page.page(message.pack(storyboard(trace), FILE), f"A run of {trace.model}"))
