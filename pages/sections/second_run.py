"""Run beside the visitor's own: another sample, text or model, the same run with a change, or a saved run."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import NamedTuple

import streamlit as st

import tracer
from pages.jobs import run_cache
from pages.state import session, url_state
from pages.state.visitor import UserInput, model_name, visitor
from pages.ui import page_frame, texts, widgets
from tracer import models
from tracer.inputs.model_inputs import samples
from tracer.record import ATTENTION_WEIGHTS, Trace
from tracer.utils.errors import limits, shorten


class SecondRun(NamedTuple):
    """Run on the right: its trace, a key that tells it from others beside the same run, its input in words, and the run
    on the left in place of the visitor's."""

    trace: Trace
    key: Hashable
    about: str
    left: Trace | None = None


def choose(trace: Trace) -> SecondRun | None:
    """Draw the choice of the second run, and return it; None while there is none, such as before a file is opened."""
    kinds = _kinds()
    places = ("other", "line", "step")
    kind = widgets.segments("Compare with", "beside", kinds, drop=places, format_func=lambda name: kinds[name][0])
    try:
        return kinds[kind][1](trace)
    except ValueError as error:
        st.error(texts.escape(f"{' '.join(str(error).split())[:500]}."))
        page_frame.leave()


def _kinds() -> dict[str, tuple[str, Callable[[Trace], SecondRun | None]]]:
    """Return the runs that can be compared with the run on screen: their title, and the choice."""
    saved_run = session.user_input().kind == "trace"
    kinds: dict[str, tuple[str, Callable]] = {}
    if not saved_run and session.changes():
        kinds["change"] = "Before and after the changes", _of_change
    if not saved_run and len(session.sample_names()) > 1:
        kinds["sample"] = "Another sample", _of_sample
    if not saved_run:
        kinds.setdefault("change", ("The same run with a change", _of_change))
        if "text" in models.takes(model_name()):
            kinds["text"] = "Another text", _of_text
    kinds["model"] = "Another model", _of_model
    kinds["saved"] = "A saved run", _of_file
    return kinds


def _of_sample(trace: Trace) -> SecondRun:
    names = session.sample_names()
    now = session.user_input().name
    others = [name for name in names if name != now]
    following = names[(names.index(now) + 1) % len(names)] if now in names else others[0]
    name = widgets.choose(st.pills, "Sample on the right", "other", others, following, drop=["step"], required=True)
    run = run_cache.of_sample(model_name(), session.options(), name)
    return SecondRun(run, ("sample", name), name)


def _of_text(trace: Trace) -> SecondRun | None:
    key = f"second text {model_name()}"
    st.session_state.setdefault(key, st.query_params.get("other", ""))

    def write() -> None:
        url_state.keep(other=st.session_state[key][: url_state.MAX_TEXT_LETTERS] or None, step=None)

    text = st.text_input("Text on the right", key=key, on_change=write, placeholder="Type another text")
    if not text.strip():
        st.info("Type a text to compare it with yours.")
        return None
    limits().check_text(text)
    own = session.user_input()
    chosen = replace(own, kind="text", text=text, model=model_name())
    return SecondRun(_run(model_name(), session.options(), chosen), ("text", text), f"“{shorten(text, 40)}”")


def _of_model(trace: Trace) -> SecondRun:
    others = [name for name in models.names() if name != trace.model]
    name = widgets.choose(st.selectbox, "Model on the right", "other", others, _nearest(others), drop=["step"])
    own, known = session.user_input(), samples(models.samples(name))
    takes = models.takes(name)
    chosen = replace(own, text=own.text if "text" in takes else None, photo=own.photo if "image" in takes else None)
    of_sample = own.kind == "sample" or own.trace is not None or (own.photo is not None and not known)
    if not of_sample and (chosen.text is not None or chosen.own):
        return SecondRun(_run(name, (), chosen), ("model", name), "the same input")
    sample = own.name if of_sample and own.name in known else run_cache.first_sample(name)
    return SecondRun(run_cache.of_sample(name, (), sample), ("model", name, sample), sample_text(sample))


def _nearest(others: list[str]) -> str:
    """Return the first of the other models that takes the same input."""
    takes = models.takes(model_name())
    return next((name for name in others if models.takes(name) == takes), others[0])


def sample_text(sample: str) -> str:
    """Return the name of a sample in words."""
    return "its own sample" if sample == run_cache.OWN_SAMPLE else sample


def _run(name: str, options: run_cache.Options, chosen: UserInput) -> Trace:
    """Return the run of a model on an input, which is held as long as this visitor looks at it."""
    runs = visitor().results_of("second", session.user_input())
    runs["input"] = chosen, chosen.content
    return session.run_input(name, options, chosen)


def _of_change(trace: Trace) -> SecondRun:
    """Return the run with its changes, with the run without them on the left; without changes yet, with one that is
    chosen here."""
    from tracer.changes import options  # torch, which pages start without

    if session.changes():
        return SecondRun(trace, ("changed", session.changes()), "with the changes", session.plain_trace())
    lines = {step.id: step for step in trace.steps if any(options.of_step(trace, step))}
    if not lines:
        raise ValueError("no step of this run can be changed by itself")
    first = next((id for id, step in lines.items() if step.role == ATTENTION_WEIGHTS), next(iter(lines)))
    left, right = st.columns(2)
    with left:
        titles = {
            id: step.title if step.layer is None else f"Block {step.layer + 1}: {step.title}"
            for id, step in lines.items()
        }
        drop, format_func = ("other", "step"), titles.__getitem__
        line = widgets.choose(
            st.selectbox, "Step that is changed", "line", lines, first, drop=drop, format_func=format_func
        )
    offered = [option for option in options.options(trace) if option.line == line] + [
        *options.of_step(trace, lines[line])
    ]
    changes = {str(option.change): option for option in reversed(offered)}
    names = [str(option.change) for option in offered if changes[str(option.change)] is option]
    with right:
        titles = {name: changes[name].title for name in names}
        change = widgets.choose(st.selectbox, "Change", "other", names, drop=["step"], format_func=titles.get)
    text = changes[change].text
    title = options.describe(trace, line, changes[change].change)
    return SecondRun(session.changed_trace((text,)), ("change", text), f"with {title}")


def _of_file(trace: Trace) -> SecondRun | None:
    second = visitor().second
    file = st.file_uploader(
        "Saved run on the right", key=f"second {visitor().uploads}", max_upload_size=limits().upload_mb
    )
    if file is not None:
        limits().check_file(file.size, True)
        run = tracer.open(widgets.read_upload(file), name=file.name, prove="later")
        visitor().second = UserInput("trace", file.name, trace=run)
        visitor().uploads += 1
        st.rerun()
    if second is None or second.trace is None:
        st.info("Open a saved run (.safetensors) to compare it with the run on the left.")
        return None
    return SecondRun(second.trace, ("saved", id(second.trace)), second.name)
