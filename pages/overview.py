"""The way of one photo through the model, on one screen."""

import streamlit as st

from pages.shared import address, answers, components, frame, session, texts
from tracer.figures import photos
from tracer.figures.labels import amount, scientific

TITLE = "Overview"
ICON = ":material/image:"
ORDER = 1

frame.enter()
saved = session.given().trace
st.title(texts.plain(f"A run of {saved.model}") if saved else texts.title(session.model_name()))


def draw(view: session.View) -> None:
    """The photo with its grid, and the patches it is cut into."""
    left, right = st.columns(2, gap="large")
    with left:
        st.subheader("The photo, cut into patches")
        components.drawing(photos.grid(view.photo, view.crop, view.rows, view.columns), "grid")
        st.caption(texts.cropped(view))
    with right:
        st.subheader("What the model sees")
        components.drawing(photos.patches(view.image, view.rows, view.columns), "patches")
        st.caption(texts.seen(view))


early = session.view()
if early is not None:
    draw(early)
trace = session.trace()
if early is None and (late := session.traced_view(trace)) is not None:
    draw(late)
kind = trace.result.get("kind")
about = " ".join(filter(None, (texts.about(trace), texts.card(session.card()))))


def say() -> None:
    """What is known of the model, in a box."""
    if about:
        st.info(about, icon=":material/school:")


if texts.unlearned(trace):
    say()
if kind in answers.WIDE:
    answers.show(trace)
left, right = st.columns([3, 2], gap="large")
if kind not in answers.WIDE:
    with left:
        answers.show(trace)
with right:
    st.subheader("What this run proves")
    proven = [step for step in trace.steps if step.error is not None]
    worst = max((step.error for step in proven), default=0)
    facts = st.container(horizontal=True, gap="medium")
    facts.metric("parameters", amount(trace.params))
    facts.metric("arithmetic", amount(trace.flops, "FLOP"))
    facts.metric("operations", len(trace.ops))
    if trace.steps:
        inside = sum(step.recomputed for step in trace.steps)
        facts.metric("equations proven", f"{len(proven)} of {len(trace.steps) - inside}")
        if inside:
            st.caption(
                f"The run has {len(trace.steps)} steps: the other {inside} lie inside fused operations, which hold "
                "their tensors nowhere. They are recomputed, and proven with the step that follows."
            )
    if proven:
        st.markdown(
            "Each of these equations was executed on the tensors of this run. The largest difference between equation "
            f"and model is **{scientific(worst)}** of the largest value."
        )
    if kind in answers.LONG and not texts.unlearned(trace):
        say()
if kind in answers.WIDE:
    with left:
        say()
elif kind not in answers.LONG and not texts.unlearned(trace):
    say()

if trace.steps:
    st.subheader("The whole way")
    st.caption(
        "Each box is a step; the arrow after it carries its shape, in symbols and in numbers. Choose a step to open it."
    )
    if clicked := components.pipeline_map(trace):
        address.open_step(clicked)
else:
    st.info("Nobody has written this model’s equations down, so there are no steps. All else was recorded:")
    st.page_link("pages/operations.py", label="See its operations", icon=":material/account_tree:")
for note in trace.notes:
    st.caption(texts.plain(note))
