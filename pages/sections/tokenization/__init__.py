"""Kinds of input on the page Tokens, each in a file of this folder that is discovered by itself.

A kind assigns in literals its `TITLE`, `ICON`, `ORDER` and `WAYS`, the titles of its tokenizations by their names in
URLs; `FIRST` is the default, where it is not the first of them. Its function `show()` draws the input, the picture and,
by `show_run` or `steps` below, what all kinds share.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import streamlit as st

from pages import components
from pages.jobs import run_cache, single_flight
from pages.jobs.single_flight import of
from pages.state import url_state
from pages.state.visitor import visitor
from pages.ui import widgets
from pages.ui.texts import prose
from tracer.record import Step, Trace
from tracer.symbols import notation
from tracer.utils.files import read_literals
from tracer.utils.lazy_import import lazy_import
from tracer.utils.text import amount, shape_numbers

if TYPE_CHECKING:
    from tracer.lessons import tokenization
else:  # imported when first used
    tokenization = lazy_import("tracer.lessons.tokenization")


Result = TypeVar("Result")
RUN_MESSAGE = "Running it and verifying every step"


class InputKind(NamedTuple):
    """A kind of input, as its file declares it."""

    name: str
    title: str
    icon: str
    ways: dict[str, str]
    first: str


@cache
def kinds() -> dict[str, InputKind]:
    """Return all kinds by name, in order."""
    modules = []
    for path in Path(__file__).parent.glob("*.py"):
        facts = read_literals(path)
        if "ORDER" in facts:
            ways = facts["WAYS"]
            first = facts.get("FIRST", next(iter(ways)))
            modules.append((facts["ORDER"], InputKind(path.stem, facts["TITLE"], facts["ICON"], ways, first)))
    return {kind.name: kind for _, kind in sorted(modules)}


def kind() -> str:
    """Return the kind that the URL names, chosen on the page; another kind starts with its own defaults."""
    known = kinds()
    at = widgets.widget("kind", list(known), next(iter(known)))
    key = at["key"]

    def choose() -> None:
        url_state.keep(kind=st.session_state[key], way=known[st.session_state[key]].first)

    named = {name: f"{module.icon} {module.title}" for name, module in known.items()}
    return st.segmented_control(
        "What becomes a sequence", list(known), format_func=named.get, required=True, key=key, on_change=choose
    )


def show(kind: str) -> None:
    """Draw a kind of input."""
    components.style(Path(__file__).with_suffix(".css").with_stem("style"))
    visitor().instead = "its own inputs"
    import_module(f"{__name__}.{kind}").show()


def way(kind: str, label: str = "Way") -> str:
    """Return the tokenization that the URL names, chosen on the page."""
    known = kinds()[kind]
    return widgets.segments(label, "way", known.ways, known.first, format_func=known.ways.get)


def place(label: str, count: int, first: int) -> int:
    """Return one of `count` tokens or values, from 0 as in the URL, chosen on the page, where they count from 1."""
    return widgets.choose(st.select_slider, label, "token", range(count), first, format_func=widgets.from_one)


class OwnedTrace:
    """A trace with the lifetime of its owner."""

    def __init__(self, trace: Trace):
        self.trace = trace

    def weight(self) -> int:
        """Return the approximate size of the trace in bytes."""
        return sum(value.nbytes for value in self.trace.values.values()) + run_cache.EACH_OP * len(self.trace.ops)


def once(compute: Callable[..., Result], *arguments: Hashable) -> Result:
    """Return the value of a cached function, computed by one visitor for all who ask for it meanwhile."""
    of(compute, ("once", *arguments), lambda: compute(*arguments) is None)
    return compute(*arguments)


def trace_once(owner: object, key: Hashable, make: Callable[[], Trace]) -> Trace:
    """Return the run of an `owner`, such as `user_input().content`: computed once in the queue, and dropped with
    it."""
    return of(owner, ("tokens", key), lambda: OwnedTrace(single_flight.in_turn(make, RUN_MESSAGE))).trace


def show_run(owner: object, key: Hashable, make: Callable[[], Trace], otherwise: Iterable[str]) -> None:
    """Show the steps of a run, as `trace_once` returns it, and where texts differ from it."""
    steps(trace_once(owner, key, make))
    slips(otherwise)


def slips(statements: Iterable[str]) -> None:
    """Show the errata: where texts differ from the run."""
    st.header("Where the notes differ")
    st.markdown("\n".join(f"- {prose(slip)}" for slip in statements))


def _sizes(trace: Trace, steps: Iterable[Step]) -> list[str]:
    """Return the value of each size in the shapes of some steps, and of each size that it is computed from."""
    known, texts = {size.name: size for size in trace.symbols}, []
    named = _names(" ".join(size for step in steps for size in step.symbolic))
    for name in known:
        named |= _names(known[name].equals) if name in named else set()
    for size in (known[name] for name in known if name in named):
        formula = f"= {notation.latex(size.equals)} " if size.equals not in ("", str(size.value)) else ""
        texts.append(f"${notation.latex(size.name)} {formula}= {size.value}$: {size.meaning}")
    return texts


def _names(formula: str) -> set[str]:
    """Return the names of the sizes in a formula."""
    return set(re.findall(r"[A-Za-z]\w*", formula))


def steps(trace: Trace) -> None:
    """Show the common part of every kind: the steps to the tokens, their shape, and the block that takes them."""
    tokenized = tokenization.before(trace)
    st.header("The steps")
    widgets.show(tokenized)
    st.caption("  \n".join(_sizes(trace, tokenized)))
    tokens, sizes = tokenized[-1], {size.name: size.value for size in trace.symbols}
    st.header("From here on, all inputs are treated alike")
    st.markdown(
        f"Whatever the input was, it is now ${tokens.symbol} \\in {notation.shape_latex(tokens.symbolic)}$ = "
        f"**{shape_numbers(tokens.shape)}**: n = {sizes['n']} tokens of D = {sizes['D']} numbers. The same block, with "
        "the same weights, reads every kind of input on this page. Its weights are random and have learned nothing."
    )
    facts = {"tokens n": f"{sizes['n']:,}", "scores h · n²": f"{sizes['h'] * sizes['n'] ** 2:,}"}
    widgets.facts(facts | {"matrix products": amount(trace.flops, "FLOP")})
    with st.expander("The steps of the block", icon=":material/function:"):
        widgets.show(tokenization.after(trace), explain=False)
