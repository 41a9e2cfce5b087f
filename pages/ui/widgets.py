"""Widgets that several pages have."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

import streamlit as st

from pages.state import url_state
from pages.ui import texts
from pages.ui.texts import plain, prose
from tracer.attention import parts
from tracer.export import verdicts
from tracer.record import Step, Trace
from tracer.symbols import notation
from tracer.utils.text import amount, scientific, shape_numbers

Value = TypeVar("Value", bound=Hashable)


# Choice of one of a few values, which the address of the page keeps.


def choose(
    control: Callable[..., Any],
    label: str,
    name: str,
    known: Iterable[Value],
    first: Value | None = None,
    drop: Iterable[str] = (),
    **more,
) -> Value:
    """Return one of `known`, chosen by a control such as `st.selectbox` and named by the URL; by default the first, or
    `first`. Another choice drops the positions `drop` from the URL."""
    known = list(known)
    at = url_state.widget(name, known, known[0] if first is None else first, **dict.fromkeys(drop))
    return control(label, known, **at, **more)


def segments(label: str, name: str, known: Iterable[Value], first: Value | None = None, **more) -> Value:
    """Return one of `known`, as `choose` does, chosen side by side."""
    return choose(st.segmented_control, label, name, known, first, required=True, **more)


def from_one(at: int) -> str:
    """Return a number that counts from 0 as the page shows it, from 1."""
    return str(at + 1)


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


# Choice of a sequence of tokens, in models of several towers.


def tower(trace: Trace) -> str:
    """Return the tower whose attention is displayed: a choice in models of several, in which each has a sequence of its
    own."""
    towers = parts(trace)
    if len(towers) < 2:
        return towers[0]
    return segments("Tower", "tower", towers)
