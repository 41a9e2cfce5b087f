"""First page: the run on the visitor's photo or text as a film, and below it what a film can't hold."""

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import streamlit as st

from pages import components
from pages.jobs import render_gate
from pages.jobs.single_flight import of
from pages.sections import answer, lens, sidebar, what_if
from pages.state import session, url_state
from pages.state.visitor import PhotoView, model_name
from pages.ui import page_frame, screen, texts, widgets
from tracer import models
from tracer.figures import tensors
from tracer.record import Step, Trace
from tracer.utils.text import scientific

TITLE = "Overview"
ICON = ":material/image:"
ORDER = 1
PLACES = ("beat", "query", "inside", "tab")

NOTES = 20
"""Notes of a run that are shown; it may be somebody’s own, with one for each tensor that was not saved."""

page_frame.enter()
components.style(Path(__file__).with_suffix(".css"))
saved = session.user_input().trace
with st.container(key="lead", horizontal=True, vertical_alignment="center", gap="small"):
    st.title(texts.plain(f"A run of {saved.model}") if saved else texts.title(model_name()))
    components.give(models.takes(model_name()), text=session.user_input().text or "", write=session.write)


def photo(view: PhotoView, key: str) -> None:
    """Draw the photo with its grid of patches."""
    crop = view.crop, view.rows, view.columns
    grid = of(view.photo, ("grid", *crop), lambda: tensors.grid(view.photo, view.crop, view.rows, view.columns))
    components.drawing(grid, key)


def cut(view: PhotoView) -> None:
    """Draw the photo with its grid, and its patches."""
    with st.container(key="way"):
        left, right = st.columns(2, gap="medium")
    with left:
        photo(view, "grid")
        st.caption(texts.crop_text(view))
    with right:
        key = view.crop, view.rows, view.columns, view.image.size, hash(view.image.tobytes())
        patches = of(view.photo, ("patches", *key), lambda: tensors.patches(view.image, view.rows, view.columns))
        components.drawing(patches, "patches")
        st.caption(texts.size_text(view))


def look(trace: Trace, view: PhotoView | None) -> None:
    """Play the film of a run; without one draw the photo with its grid, or the plain text."""
    if reel := answer.of_run(trace):
        widgets.check(beat=reel.beats)
        if "inside" in st.query_params:
            widgets.check(inside=list(reel.blocks))
        if queries := reel.queries(st.query_params.get("query", "")):
            widgets.check(query=queries)
        url_state.open_step(components.film(trace, reel.packed, reel.run, what_if.facts(trace), what_if.hide))
        answer.open_block(trace, reel)
    elif view is not None:
        photo(view, "bare")
    elif trace.words:
        st.code(answer.result_text(trace), language=None, wrap_lines=True)


def group(steps: Iterable[Step]) -> defaultdict[str, list[Step]]:
    """Group steps by their verdicts."""
    grouped: defaultdict[str, list[Step]] = defaultdict(list)
    for step in steps:
        grouped[step.verdict].append(step)
    return grouped


def show_numbers(trace: Trace) -> None:
    """Show the size of the run and how far its equations agree with it; folded unless one is refuted."""
    by_verdict, elsewhere = of(trace, "verdicts", lambda: (group(trace.steps), texts.elsewhere(trace.steps)))
    verified, wrong, inside = (by_verdict[verdict] for verdict in ("verified", "refuted", "recomputed"))
    count = f"{len(verified)} of {len(trace.steps) - len(inside)}"
    label = f"The run in numbers{f': {count} equations verified' if trace.steps else ''}"
    with st.expander(label, icon=":material/verified:", expanded=bool(wrong)):
        verdict = {"equations verified": count} if trace.steps else {}
        widgets.cost_facts(trace, {}, {"operations": str(len(trace.ops)), **verdict})
        if inside:
            st.caption(
                f"The run has {len(trace.steps)} steps. The other {len(inside)} lie inside fused operations, which "
                "never store their tensors. These steps are recomputed, and verified with the step that follows."
            )
        if waiting := len(by_verdict["pending"]):
            st.caption(
                f"{waiting} of the equations {'is' if waiting == 1 else 'are'} still pending: not every one has been "
                "executed on this run yet."
            )
        if session.is_check_pending():
            st.caption("The app is now checking whether the equations also hold on other runs.")
        if wrong:
            names = ", ".join(f"*{texts.plain(step.title)}*" for step in wrong[:3])
            more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            st.error(
                f"{len(wrong)} of the equations {'does' if len(wrong) == 1 else 'do'} not give what the model "
                f"computed, on this run or on another one: {names}{more}.",
                icon=":material/dangerous:",
            )
        if verified:
            worst = scientific(max(step.error for step in verified if step.error is not None))
            st.markdown(
                "Each verified equation was executed on the tensors of this run. The largest difference between an "
                f"equation and the model is **{worst}** of the largest value.{elsewhere}"
            )
        for note in trace.notes[:NOTES]:
            st.caption(texts.plain(note))


def say(trace: Trace) -> None:
    """Show the model card, folded."""
    if about := " ".join(filter(None, (texts.about(trace), texts.card(screen.card())))):
        with st.expander("What this model is and what it learned", icon=":material/school:"):
            st.markdown(about)


def way(trace: Trace) -> None:
    """Draw every step of the run as a box, or a sentence if there are none."""
    if not trace.steps:
        st.info("This run was saved without steps.")
        st.page_link("pages/operations.py", label="See its operations", icon=":material/account_tree:")
        return
    answer.show_token_ids(trace, link=True)
    inside = " or a block to unfold it" if any(step.layer is not None for step in trace.steps) else ""
    st.caption(
        "Each box is a step with the shape of its tensor. Each line is a tensor on its way to the next step. Choose "
        f"a step to open it{inside}."
    )
    url_state.open_step(components.pipeline_map(trace))


early = screen.view() if session.current_run() is None and not session.was_run() else None
if early:
    render_gate.reserve()  # as the run does that is looked for here, when there is one
    view = early
else:
    view = session.traced_view(screen.trace(beside_plain=True))
place = st.empty() if early else st.container()
if early:
    with place, st.container(key="waiting"):
        photo(early, "early")
trace = screen.trace(beside_plain=True)
view = session.traced_view(trace)
with place.container() if early else place:
    look(trace, view)
    for sentence in texts.off_photo(trace):
        st.info(texts.plain(sentence))
st.markdown(texts.WHAT)
what_if.show_panel(what_if.blocks)
if texts.has_random_weights(trace):
    st.info(texts.about(trace), icon=":material/school:")
if strange := texts.strange(session.user_input(), model_name()):
    st.warning(strange, icon=":material/psychology_alt:")
if blank := texts.one_colour(view):
    st.warning(blank, icon=":material/contrast:")
filmed = answer.of_run(trace) is not None
answer.show_predictions(trace, filmed)
if saved is None and answer.kind(trace) == "classes":
    sidebar.show_recommended()
what_if.show_before_after(trace, with_answer=answer.kind(trace) not in what_if.BARS)
answer.show_next_pages(trace)

more = {} if view is None else {"What the model sees": partial(cut, view)}
if lens.has_lens(trace):
    more["The answer as it forms"] = partial(lens.show_lens, trace)
if more := more | answer.further_views(trace, filmed):
    names = ["The full path", *more]
    whole, *others = st.tabs(names, **widgets.widget("tab", names, names[0]))
    for tab, form in zip(others, more.values(), strict=True):
        with tab:
            form()
else:
    st.header("The full path")
    whole = st.container()
with whole:
    way(trace)
show_numbers(trace)
if not texts.has_random_weights(trace):
    say(trace)
