"""The way of one photo or text through the model: what goes in, what comes out, and each step between."""

from pathlib import Path

import streamlit as st

from pages.shared import address, answers, components, frame, session, texts
from pages.shared.pictures import of
from pages.shared.visitor import model_name
from tracer.figures import photos
from tracer.figures.labels import amount, scientific
from tracer.record import Trace

TITLE = "Overview"
ICON = ":material/image:"
ORDER = 1

NOTES = 20
"""Notes of a run that are shown; it may be somebody’s own, with one for each tensor that was not saved."""

frame.enter()
components.style(Path(__file__).with_suffix(".css"))
saved = session.given().trace
st.title(texts.plain(f"A run of {saved.model}") if saved else texts.title(model_name()))


def draw(view: session.View):
    """The photo with its grid, and the patches it is cut into; returns the place beside them."""
    with st.container(key="way"):
        left, middle, right = st.columns([1, 1, 1.25], gap="medium")
    with left:
        st.subheader("The photo")
        key = view.crop, view.rows, view.columns
        grid = of(view.photo, ("grid", *key), lambda: photos.grid(view.photo, view.crop, view.rows, view.columns))
        components.drawing(grid, "grid")
        st.caption(texts.cropped(view))
    with middle:
        st.subheader("What the model sees")
        key += view.image.size, hash(view.image.tobytes())
        patches = of(view.photo, ("patches", *key), lambda: photos.patches(view.image, view.rows, view.columns))
        components.drawing(patches, "patches")
        st.caption(texts.seen(view))
    return right


def halves():
    """Two places side by side, the left one wider."""
    with st.container(key="halves"):
        return st.columns([3, 2], gap="large")


def say(trace: Trace) -> None:
    """What is known of the model, in a box."""
    if about := " ".join(filter(None, (texts.about(trace), texts.card(session.card())))):
        st.info(about, icon=":material/school:")


def prove(trace: Trace) -> None:
    """How large the run is, and how far its equations agree with it."""
    st.subheader("What this run proves")
    proven, wrong = ([step for step in trace.steps if step.verdict == verdict] for verdict in ("proven", "disproven"))
    worst = max((step.error for step in proven), default=0)
    facts = st.container(horizontal=True, gap="medium")
    facts.metric("parameters", amount(trace.params))
    facts.metric("matrix products", amount(trace.flops, "FLOP"), help=texts.COUNTED)
    facts.metric("operations", len(trace.ops))
    if trace.uncounted:
        st.caption(texts.plain(texts.uncounted(trace)))
    if trace.steps:
        inside = sum(step.recomputed for step in trace.steps)
        facts.metric("equations proven", f"{len(proven)} of {len(trace.steps) - inside}")
        if inside:
            st.caption(
                f"The run has {len(trace.steps)} steps: the other {inside} lie inside fused operations, which hold "
                "their tensors nowhere. They are recomputed, and proven with the step that follows."
            )
        if waiting := sum(step.verdict == "pending" for step in trace.steps):
            st.caption(
                f"{waiting} of the proofs {'is' if waiting == 1 else 'are'} still to come: the equations have not been "
                "executed on this run yet."
            )
    if wrong:
        names = ", ".join(f"*{texts.plain(step.title)}*" for step in wrong[:3])
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        st.error(
            f"{len(wrong)} of the equations {'does' if len(wrong) == 1 else 'do'} not give what the model computed: "
            f"{names}{more}.",
            icon=":material/dangerous:",
        )
    if proven:
        st.markdown(
            "Each of the equations that are proven was executed on the tensors of this run. The largest difference "
            f"between equation and model is **{scientific(worst)}** of the largest value."
        )


def way(trace: Trace) -> None:
    """Every step of the run as a box, or that there are none."""
    if not trace.steps:
        st.info("This run was saved without steps. All else was recorded:")
        st.page_link("pages/operations.py", label="See its operations", icon=":material/account_tree:")
        return
    st.caption(
        "Each box is a step; the arrow after it carries its shape, in symbols and in numbers. Choose a step to open it."
    )
    if clicked := components.pipeline_map(trace):
        address.open_step(clicked)


early = session.view()
beside = draw(early) if early is not None else None
trace = session.trace()
if early is None and (late := session.traced_view(trace)) is not None:
    beside = draw(late)
kind, learned = answers.kind(trace), not texts.unlearned(trace)
pictured = beside is not None
if not pictured:
    beside, facts = halves()
    about = facts if kind in answers.LONG else beside
with beside:
    if not learned:
        say(trace)
answers.show(trace, beside)
if pictured:
    facts, about = (beside, st.container()) if kind in answers.WIDE else halves()
with facts:
    prove(trace)
with about:
    if learned:
        say(trace)

if more := answers.more(trace):
    whole, *others = st.tabs(["The whole way", *more])
    for tab, form in zip(others, more.values(), strict=True):
        with tab:
            form()
else:
    st.subheader("The whole way")
    whole = st.container()
with whole:
    way(trace)
for note in trace.notes[:NOTES]:
    st.caption(texts.plain(note))
