"""Text generation token by token, and links back from each token to the run that predicted it."""

from typing import Any

import streamlit as st

from pages.state import session
from pages.state.visitor import GeneratedText, Key, model_name, visitor
from pages.ui import texts
from tracer.figures.predictions.model_output import label_token, visible_token
from tracer.record import Trace

MAX_TOKENS = 60
"""Tokens that are written at once."""
DEFAULT_TEMPERATURE = 0.8
"""The temperature at which a text goes on if nobody says otherwise."""
START = 24
"""Tokens that are written if nobody says how many."""


def show(trace: Trace, unit: str, again: str = "", end: str = "") -> None:
    """Let the model continue the text of this run; `unit` is its unit of text, such as "character". Where the run is
    that of a whole text, `again` names it: the text is then written again from the start. `end` is the token that ends
    a text. Choosing a token shows the run that predicted it on all pages."""
    if session.user_input().kind != "trace":
        with st.container(key="continue"):  # paper has it where something was written
            _offer(trace, unit, again, end)


def _offer(trace: Trace, unit: str, again: str, end: str) -> None:
    chosen_input = session.user_input()
    own = chosen_input.text is None
    now = chosen_input.text if chosen_input.text is not None else "" if again else "".join(trace.words)
    finished = not (own and again) and trace.result["tokens"][0] == end
    st.header(f"Watch it write {again}" if own and again else "Continue the text")
    if finished:
        st.caption(f"This text is complete: the next token is {texts.escape(end)}.")
    count = _count(now, unit)
    with st.expander(f"How it chooses each {unit}", icon=":material/tune:"):
        # what a model writes of itself is the likeliest; a text that goes on is more alive where it is drawn
        start = 0.0 if own and again else DEFAULT_TEMPERATURE
        temperature = st.slider("Temperature", 0.0, 2.0, start, 0.1, help="0: always the most probable one")
        random = temperature > 0
        top_k = st.slider("Top-k", 1, 40, 40, disabled=not random, help="Only the k most probable ones can be drawn")
        seed = st.number_input("Seed", 0, 9999, 0, disabled=not random, help="Another seed, another text")
    settings = {"temperature": temperature, "top_k": top_k if random else None, "seed": seed}
    label = f"Write the next {count} {unit}s" if count > 1 else f"Write the next {unit}"
    label = f"Write {again} again" if own and again else label
    pressed = st.button(label, type="primary", disabled=not count or (finished and not random))
    heading, place = st.empty(), st.empty()
    if pressed:
        heading.markdown("It writes:")
        _write(now, count, settings, place)
    written = visitor().writing
    if written and written.of == _of() and now in written.before:
        heading.markdown("What it wrote:")
        place.code(written.text, language=None, wrap_lines=True)
        ran = not (own and again)  # else the run is that of the whole text that the model wrote itself
        _steps(written, written.before.index(now) if ran else None, unit)


def _count(now: str, unit: str) -> int:
    """Return the number of tokens to write: no more than the model has room for."""
    from tracer.models.shared.generate import room

    left = room(session.model(), now)
    most = MAX_TOKENS if left is None else min(MAX_TOKENS, left)
    if most < 2:
        return most
    message = None if left is None else f"The model reads T_max tokens at most: there is room for {most} more."
    return st.slider(f"{unit.capitalize()}s", 1, most, min(START, most), help=message)


def _of() -> tuple:
    """Return the owner of a generated text: a model, its options and the picture."""
    return model_name(), session.options(), id(session.user_input().photo)


def _write(start: str, count: int, settings: dict, place) -> None:
    """Write tokens, and show each in the container `place` as soon as it exists; a run is traced on request."""
    from tracer.models.shared.generate import join_tokens, read_of, words_of, write

    model, chosen_input, tokens = session.model(), session.user_input(), []
    more: dict[str, Any] = {"image": chosen_input.photo} if "image" in model.takes else {}
    for token in write(model, start, count, **settings, **more):
        tokens.append(token)
        place.code(join_tokens(words_of(model), "", tokens), language=None, wrap_lines=True)
    before = [read_of(model, join_tokens(words_of(model), start, tokens[:place])) for place in range(len(tokens))]
    text = join_tokens(words_of(model), "", tokens)
    visitor().writing = GeneratedText(_of(), tokens, before, text)


def _steps(written: GeneratedText, now: int | None, unit: str) -> None:
    """Draw the tokens as choices; the one whose run is shown is marked."""
    tokens = written.tokens
    st.session_state[Key.WRITING] = now
    st.pills(
        f"Choose a {unit} to see its step on all pages",
        range(len(tokens)),
        key=Key.WRITING,
        wrap=True,
        format_func=lambda place: texts.literal(label_token(tokens[place], place + 1)),
        on_change=lambda: _go(written, st.session_state[Key.WRITING]),
    )
    if now is not None:
        label = f"“{visible_token(tokens[now])}” was read from: {unit} {now + 1} of {len(tokens)}."
        st.caption(texts.plain(f"The run on screen, on all pages, is the one that {label}"))


def _go(written: GeneratedText, place: int | None) -> None:
    if place is not None:
        session.take_step(written.before[place])
