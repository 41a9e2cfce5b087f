"""Text that goes on token by token, and the way back from each token to the run that it was read from."""

import streamlit as st

from pages.shared import session, texts
from tracer.figures.answers import numbered, shown
from tracer.record import Trace

MOST = 60
"""Tokens that are written at once: what a laptop does in a few seconds."""


def show(trace: Trace, start: str, unit: str) -> None:
    """Lets the model go on with the text of this run, or with `start` where the visitor gave none; `unit` is what it
    writes, such as "character". A token that is chosen makes the run it was read from the one that all pages show."""
    given = session.given()
    if given.kind == "trace":
        return
    now = start if given.text is None else given.text
    st.subheader("Let it go on")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        count = st.slider(f"{unit.capitalize()}s", 1, MOST, 24)
        temperature = st.slider("Temperature", 0.0, 2.0, 0.0, 0.1, help="0: always the most probable one")
        drawn = temperature > 0
        top_k = st.slider("Top-k", 1, 40, 40, disabled=not drawn, help="Draws from the k most probable ones only")
        seed = st.number_input("Seed", 0, 9999, 0, disabled=not drawn, help="Another seed, another text")
    settings = {"temperature": temperature, "top_k": top_k if drawn else None, "seed": seed}
    if st.button(f"Write the next {count} {unit}s" if count > 1 else f"Write the next {unit}", type="primary"):
        _write(now, count, settings)
    written = st.session_state.get("written")
    if written and written["of"] == _of() and now in written["before"]:
        ran = given.text is not None or start  # else the run is that of the whole text that the model wrote itself
        _steps(written, written["before"].index(now) if ran else None, unit)


def _of() -> tuple:
    """What a written text belongs to: a model, its options and the picture."""
    return session.model_name(), session.options(), id(session.given().photo)


def _write(start: str, count: int, settings: dict) -> None:
    from tracer.generate import generate, joined, read_of, words_of

    made, given, tokens = session.model(), session.given(), []
    more = {"image": given.photo} if "image" in made.takes else {}
    with st.spinner("Writing"):
        try:
            for token, _ in generate(made, start, count, prove=False, **settings, **more):
                tokens.append(token)
        except ValueError as error:  # the text has become too long
            st.warning(texts.plain(str(error)))
    before = [read_of(made, joined(words_of(made), start, tokens[:place])) for place in range(len(tokens))]
    text = joined(words_of(made), "", tokens)
    st.session_state["written"] = {"of": _of(), "tokens": tokens, "before": before, "text": text}


def _steps(written: dict, now: int | None, unit: str) -> None:
    """The tokens as choices; the one whose run is shown is marked."""
    tokens = written["tokens"]
    st.markdown("What it wrote:")
    st.code(written["text"], language=None, wrap_lines=True)
    st.session_state["written step"] = now
    st.pills(
        f"Choose a {unit} to see its step on all pages",
        range(len(tokens)),
        key="written step",
        wrap=True,
        format_func=lambda place: texts.literal(numbered(tokens[place], place + 1)),
        on_change=lambda: _go(written, st.session_state["written step"]),
    )
    if now is not None:
        said = f"“{shown(tokens[now])}” was read from: {unit} {now + 1} of {len(tokens)}."
        st.caption(texts.plain(f"The run on screen, on all pages, is the one that {said}"))


def _go(written: dict, place: int | None) -> None:
    if place is not None:
        session.take_step(written["before"][place])
