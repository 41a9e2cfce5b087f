"""Widgets that several pages have."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from pages.state import url_state
from pages.state.visitor import visitor
from pages.ui import texts
from pages.ui.texts import plain, prose
from tracer.attention import parts
from tracer.export import letters, verdicts
from tracer.record import Step, Trace
from tracer.symbols import notation
from tracer.symbols.letters import TEXTS
from tracer.utils.errors import quote
from tracer.utils.text import amount, scientific, shape_numbers

if TYPE_CHECKING:
    from streamlit.runtime.uploaded_file_manager import UploadedFile

Value = TypeVar("Value", bound=Hashable)


# Value of one of a few values, which the address of the page keeps.

MAX_LISTED_NAMES = 2
"""Names that a sentence lists; of more, it says the first and the last."""


WORDS = {"inside": "step"}
"""Names of positions in the URL that are other words in a sentence."""


def choice(name: str, known: Sequence[Value], first: Value, say: bool = True) -> Value:
    """Return the one of `known` that this page's URL names, else `first`. Any other value is quoted in a warning,
    unless another input left it there."""
    text, now = st.query_params.get(name), visitor()
    by_text = {str(value): value for value in known}
    if text in by_text:
        now.places.setdefault((now.page, now.model), {})[name] = text  # also on the way back to this page
    if text is None or text in by_text:
        return by_text.get(text, first)
    if say and text != now.places.get((now.page, now.model), {}).get(name):
        st.warning(texts.escape(f"This page has no {WORDS.get(name, name)} {quote(text)}, expected {_among(known)}."))
    return first


def _among(known: Sequence[Value]) -> str:
    """Return a list of the valid values for a message: numbers in their order first, then names."""
    names = [quote(value) for value in known if isinstance(value, str)]
    numbers = [value for value in known if not isinstance(value, str)]
    if isinstance(known[0], str) and len(known) > MAX_LISTED_NAMES:
        return f"one from {known[0]} to {known[-1]}"
    ranges = [f"one from {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])] if numbers else []
    return " or ".join(ranges + names)


def check(**known: Sequence[Value]) -> None:
    """Warn of positions in the URL that are not among those `known`, for widgets that the browser moves by itself. Such
    a widget then shows its default."""
    for name, choices in known.items():
        choice(name, choices, choices[0])


def widget(name: str, known: Sequence[Value], first: Value, say: bool = True, **others: None) -> dict:
    """Return the key and the callback of a widget that chooses one of `known` and stores the choice in the URL; the
    positions named in `others` are removed at another choice."""
    key = _show(name, choice(name, known, first, say))
    return {"key": key, "on_change": lambda: _keep_value(name, key, **others)}


def _show(name: str, value: object) -> str:
    """Set the value of the widget that chooses a position, and return the key of the widget.

    The key changes when something else than the widget has moved the position. The browser may send the widget's old
    value once more, with a rerun that it asked for before it received the new one; under the old key, nobody takes that
    for a choice of the visitor's.
    """
    versions = visitor().widget_versions
    key = _versioned_key(name, versions.get(name, 0))
    if key in st.session_state and st.session_state[key] != value:
        versions[name] = versions.get(name, 0) + 1
        key = _versioned_key(name, versions[name])
    st.session_state[key] = value
    return key


def _keep_value(name: str, key: str, **others: None) -> None:
    """Store the value of a widget in the URL, unless the widget has been replaced since."""
    if key == _versioned_key(name, visitor().widget_versions.get(name, 0)):
        url_state.keep(**{name: st.session_state[key]}, **others)


def _versioned_key(name: str, version: int) -> str:
    return f"place {name}" + (f" {version}" if version else "")


def count(name: str, first: int, most: int) -> dict:
    """Return the bounds, the key and the callback of an input for a whole number from 1 to `most`, which stores it in
    the URL. Any other value there is quoted in a warning, unless another input left it there."""
    text, now = st.query_params.get(name), visitor()
    known = text is not None and text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= most
    places = now.places.setdefault((now.page, now.model), {})
    if text is not None and known:
        places[name] = text
    elif text is not None and text != places.get(name):
        st.warning(texts.escape(f"This page has no {name} {quote(text)}, expected one from 1 to {most:,}."))
    key = _show(name, int(text) if text is not None and known else first)
    return {"min_value": 1, "max_value": most, "key": key, "on_change": lambda: _keep_value(name, key)}


def choose(
    control: Callable[..., Any],
    label: str,
    name: str,
    known: Iterable[Value],
    first: Value | None = None,
    drop: Iterable[str] = (),
    say: bool = True,
    **more,
) -> Value:
    """Return one of `known`, chosen by a control such as `st.selectbox` and named by the URL; by default the first, or
    `first`. Another choice drops the positions `drop` from the URL."""
    known = list(known)
    at = widget(name, known, known[0] if first is None else first, say, **dict.fromkeys(drop))
    return control(label, known, **at, **more)


def segments(label: str, name: str, known: Iterable[Value], first: Value | None = None, **more) -> Value:
    """Return one of `known`, as `choose` does, chosen side by side."""
    return choose(st.segmented_control, label, name, known, first, required=True, **more)


def from_one(at: int) -> str:
    """Return a number that counts from 0 as the page shows it, from 1."""
    return str(at + 1)


# Files that a visitor uploads.


def read_upload(file: UploadedFile) -> bytes:
    """Return the content of an uploaded file, which Streamlit would otherwise keep until the session ends."""
    data, context = file.getvalue(), get_script_run_ctx()
    context.uploaded_file_mgr.remove_file(context.session_id, file.file_id)
    return data


# Letters of equations and shapes, which the addresses of all pages that have the choice share.


def letters_panel(trace: Trace) -> str:
    """Draw a button that opens the choice of letters, and what the text calls the sizes and tensors of a run where it
    has others. Return the text."""
    title = letters.TITLES[choice("letters", TEXTS, TEXTS[0])]
    with st.popover(f"Letters: {title}", icon=":material/translate:", width="content"):
        text = choose_letters(say=False)
        explain_letters(text, trace)
    return text


def choose_letters(say: bool = True) -> str:
    """Return the text in whose letters the page writes equations and shapes, chosen by the visitor."""
    help_text = (
        "Writes equations and shapes in the letters of a text. The lines, their numbers and their verdicts stay the "
        "same. Tensors stay bold, and keep the number of their block. Sentences keep our letters."
    )
    with st.container(key="letters", width=420):
        return choose(
            st.selectbox, "Letters", "letters", TEXTS, format_func=letters.TITLES.get, help=help_text, say=say
        )


def explain_letters(text: str, trace: Trace) -> None:
    """List what a text calls the sizes and tensors of a run, where it has other letters."""
    if text == TEXTS[0]:
        return
    pairs = letters.letters_of(trace, text).differences
    if pairs:
        rows = "\n".join(f"| ${theirs}$ | ${ours}$ |" for ours, theirs in pairs)
        st.markdown(f"| the text | ours |\n|---|---|\n{rows}")
    st.caption(
        f"{'All else' if pairs else 'Everything here'} has our letters. Where a letter of the text would stand for "
        "two things of this run, one of them has a subscript or our letter."
    )


# Numbers of a run, and links to other pages.


def facts(values: Mapping[str, str], helps: Mapping[str, str] | None = None) -> None:
    """Draw numbers with their names side by side; `helps` explain some of them by name."""
    with st.container(key="facts"):
        for name, value in values.items():
            st.metric(name, value, help=(helps or {}).get(name))


def cost_facts(trace: Trace, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Draw the parameters and the arithmetic of a run between other numbers of it, and what is not counted."""
    costs = {"parameters": amount(trace.params), "matrix products": amount(trace.flops, "FLOP")}
    helps = {"matrix products": texts.FLOPS_NOTE, "equations verified": verdicts.MEANING}
    facts({**before, **costs, **after}, helps)
    if trace.uncounted_ops:
        st.caption(plain(texts.uncounted_text(trace)))


def link(page: str, label: str, icon: str | None = None, **places: str) -> None:
    """Draw a link to a page with the run on screen, at these `places` of it."""
    st.page_link(f"pages/{page}.py", label=label, icon=icon, query_params=url_state.of(page) | places)


# Box of a verdict: green for verified, red for refuted, else neutral.

_BOXES = {
    "verified": (st.success, "verified"),
    "refuted": (st.error, "dangerous"),
    "pending": (st.info, "hourglass_empty"),
}


def box(verdict: str, text: str) -> None:
    """Draw a sentence in the colour of its verdict (`tracer.record.verdict`)."""
    show, icon = _BOXES.get(verdict, (st.info, "info"))
    show(text, icon=f":material/{icon}:")


# Steps as lines of a textbook: title, equation, the tensor's shape in symbols and numbers, and its verdict.

SIGNS = {"verified": ":green[:material/check_circle:]", "refuted": ":red[:material/cancel:]"}


def show(steps: Iterable[Step], explain: bool = True) -> None:
    """Show the lines of these steps, one below the other, in one message; `explain` says what a verdict means."""
    st.markdown("\n\n".join(map(line, steps)), help=verdicts.MEANING if explain else None)


def line(step: Step) -> str:
    """Return one step in markdown."""
    shape = f" \\in {notation.shape_latex(step.symbolic)}" if step.shape else "\\text{ is a number}"
    why = f"  \n{prose(step.why)}" if step.why else ""
    note = f"\n\n:small[{prose(step.note)}]" if step.note else ""
    numbers = f" = {shape_numbers(step.shape)}" if step.shape else ""
    return (
        f"**{plain(step.title)}** {SIGNS.get(step.verdict, '')} {_verdict_text(step)}{why}\n\n"
        f"$$\n{step.latex}\n$$\n\n${step.symbol}{shape}${numbers}{note}"
    )


def _verdict_text(step: Step) -> str:
    """Return the verdict in words, with the error where there is one, or the failures on other runs."""
    words = verdicts.words(step)
    if step.refuted:
        return f"{words}: {prose(step.replayed)}"
    return words if step.error is None else f"{words}, largest difference {scientific(step.error)}"


# Value of a sequence of tokens, in models of several towers.


def tower(trace: Trace) -> str:
    """Return the tower whose attention is displayed: a choice in models of several, in which each has a sequence of its
    own."""
    towers = parts(trace)
    if len(towers) < 2:
        return towers[0]
    return segments("Tower", "tower", towers)
