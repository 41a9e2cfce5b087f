"""Claims of the notes as cards, measured on any model: numbers, verdicts, and things to try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import streamlit as st

from pages.jobs import run_cache, single_flight
from pages.jobs.render_cache import PLAIN_CONFIG, chart, of
from pages.sections.lessons import note_statements
from pages.state import session, url_state
from pages.state.visitor import model_name, visitor
from pages.ui import texts
from tracer import models
from tracer.figures.attention import claim_charts
from tracer.figures.predictions.class_bars import percent
from tracer.inputs.samples import samples
from tracer.record import Trace
from tracer.utils import note_titles

if TYPE_CHECKING:
    from tracer.lessons.notes.claim_cards import ClaimCard, Lines, Measurements
    from tracer.lessons.notes.claims import Measurement

MEASURE_MESSAGE = "Measuring the claims"
MAX_WORD_LETTERS = 40
"""Letters of a word that is looked up."""
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
COUNT = 1024
"""Pairs of random vectors whose products are spread."""
SLIDER = "d_k of the spread"
INAPPLICABLE_BADGE = ":gray-badge[:material/remove: does not apply to this model]"


def show(claims: Sequence[str]) -> None:
    """Show the one of `claims` that the URL names, on the note's own run; else a choice of model and the cards."""
    if "claim" in st.query_params and (name := url_state.choice("claim", claims, "")):
        show_claim(name)
        return
    trace, model, _ = run()
    from tracer.lessons.notes import claim_cards  # loads torch

    cards = of(trace, "cards", lambda: _measure(model, trace))
    with st.container(key="cards"):
        for card in claim_cards.CARDS:
            st.header(card.title)
            st.markdown(_text(card, cards["claims"], trace.model))
            for name, lines in cards["drawn"].items():
                if name in card.claims:
                    chart(trace, ("claim", name), partial(_picture, name, lines), alt=_alt(name, lines))
            if "soft_lookup" in card.claims:
                _lookup()
            if "spread" in card.claims:
                _spread()


def run() -> tuple[Trace, Any, dict[str, Any]]:
    """Return the measured run, its model and its inputs: the run on screen where it is of the chosen model, else that
    of its sample."""
    known = list(models.names())
    own = session.user_input().kind != "trace" and model_name() not in known
    known += [model_name()] if own else []
    chosen = st.selectbox(
        "Model", known, **url_state.widget("of", known, model_name() if model_name() in known else known[0])
    )
    if chosen == model_name() and session.user_input().kind != "trace":
        model = session.model()
        return session.trace(), model, session.inputs(model, session.user_input(), session.options())
    visitor().instead = note_statements.INSTEAD
    pictures = samples(models.samples(chosen))
    name = next(iter(pictures), run_cache.OWN_SAMPLE)
    options = {"image": pictures[name]()} if pictures else {}
    return run_cache.of_sample(chosen, (), name), run_cache.load(chosen), options


def _measure(model, trace: Trace) -> dict:
    from tracer.lessons.notes import claim_cards  # loads torch

    cards = single_flight.in_turn(partial(claim_cards.measure_cards, model, trace), MEASURE_MESSAGE)
    return {"claims": dict(cards.claims), "drawn": dict(cards.curves)}


def show_claim(name: str) -> None:
    """Show one claim on the runs of the notes that make it: its statements, the numbers, and links to the places that
    show it."""
    from tracer.lessons.notes.claims import statements  # loads torch
    from tracer.lessons.notes.reference_runs import RUNS  # loads torch

    visitor().instead = note_statements.INSTEAD
    known = list(dict.fromkeys(row.run for row in statements(name)))
    chosen = st.selectbox("Run", known, **url_state.widget("of", known, known[0], statement=None))
    run_of_claim = run_cache.of_sample_too(
        "noted", ("claim", name, chosen), lambda: _of_run(name, chosen), MEASURE_MESSAGE
    )
    with st.container(key="cards"):
        st.header("One claim, measured")
        quotes = quote_statements(name, chosen, note_statements.marked_statement())
        run = RUNS[chosen]
        st.markdown("\n>\n".join([*quotes, _line(run_of_claim.claims[name], run.model, run.options)]))
        for lines in run_of_claim.curves.values():
            picture = _picture(name, lines)
            st.plotly_chart(picture, config=PLAIN_CONFIG, alt=_alt(name, lines))
    address_of_all = urlencode({"note": "claims", "of": run.model})
    st.markdown(f"[→\u00a0All claims on {run.model}](notes?{address_of_all})")


def quote_statements(name: str, run: str, target: tuple[str, int] | None) -> list[str]:
    """Return the statements that make a claim on a run, in markdown, with a mark on the one that the address names."""
    from tracer.lessons.notes.claims import statements  # loads torch

    return [
        note_statements.mark(
            f"> *Note {row.note}, statement {row.number}.* {row.text}", (row.note, row.number) == target
        )
        for row in statements(name)
        if row.run == run
    ]


def _of_run(name: str, chosen: str) -> Measurements:
    from tracer.lessons.notes import claim_cards  # loads torch

    return claim_cards.measure_cards(*note_statements.provider()(chosen), [name])


def _line(measured: Measurement | str, model: str, options: run_cache.Options = ()) -> str:
    """Return the measurement of a claim with a link to where it happens, or why it does not apply to the model."""
    from tracer.lessons.notes.lookup import scene  # loads torch

    if isinstance(measured, str):
        return f"> {INAPPLICABLE_BADGE} {texts.escape(measured)}"
    link = note_statements.link(scene(model, options, measured))
    return f"> {note_statements.SIGNS[measured.verdict]} {texts.prose(measured.text)}{link}"


def _text(card: ClaimCard, cards: Mapping[str, Measurement | str], model: str) -> str:
    lines = [f"> *Claim.* {texts.plain(note_titles.with_titles(card.says))}"]
    return "\n>\n".join([*lines, *(_line(cards[name], model) for name in card.claims)])


AXES = {"far": "mean distance", "correction": "added over stream", "highway": "gradient that arrives"}
"""What is drawn of a claim."""


def _picture(name: str, lines: Lines):
    """Draw a claim block by block."""
    return claim_charts.by_block(lines, AXES[name], name == "correction")


def _alt(name: str, lines: Lines) -> str:
    numbers = "; ".join(f"{line} {', '.join(f'{value:.2g}' for value in values)}" for line, values in lines.items())
    return f"{AXES[name].capitalize()}, by block: {numbers}"


def _lookup() -> None:
    """Show a dictionary in which a misspelt word still retrieves the right entry (soft lookup)."""
    from tracer.attention.textbook_claims import lookup  # loads torch
    from tracer.lessons.notes.claims.attention import BOOK  # loads torch

    word = st.text_input(f"Look up a word, misspelt if you like, in `{BOOK}`", "sqare", max_chars=MAX_WORD_LETTERS)
    shares, value = lookup(BOOK, word)
    best = max(shares, key=lambda key: shares[key])
    shares_text = ", ".join(f"{key} {percent(share)}" for key, share in shares.items())
    st.plotly_chart(claim_charts.shares(shares), key="shares", config=PLAIN_CONFIG, alt=f"Weights: {shares_text}")
    st.caption(f"{percent(shares[best])} of the weight goes to “{best}”; the mixture of the values is {value:.3f}.")


def _spread() -> None:
    """Draw the standard deviation of dot products over the dimension, with a slider."""
    st.session_state.setdefault(SLIDER, 64)
    width = st.select_slider("$d_k$", WIDTHS, key=SLIDER)
    plain, scaled = run_cache.of_sample_too("noted", "spread", _spreads, MEASURE_MESSAGE)
    at = WIDTHS.index(width)
    alt = (
        f"Standard deviation of products over d_k, from {WIDTHS[0]} to {WIDTHS[-1]}: plain {plain[0]:.2f} to "
        f"{plain[-1]:.2f}, divided by the root {scaled[0]:.2f} to {scaled[-1]:.2f}"
    )
    st.plotly_chart(claim_charts.spreads(WIDTHS, plain, scaled, width), key="spreads", config=PLAIN_CONFIG, alt=alt)
    st.caption(
        f"At $d_k$ = {width}: products of {COUNT:,} pairs of random vectors have a standard deviation "
        f"of {plain[at]:.2f}, "
        f"and $\\sqrt{{d_k}}$ = {width**0.5:.2f}; divided by it {scaled[at]:.2f}."
    )


def _spreads() -> tuple[list[float], list[float]]:
    from tracer.attention.textbook_claims import spread  # loads torch

    spreads = [[spread(width, scaled=scaled, count=COUNT) for width in WIDTHS] for scaled in (False, True)]
    return spreads[0], spreads[1]
