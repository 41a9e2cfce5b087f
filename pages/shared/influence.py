"""The choice of a mask, and the proof that knows no mask: change one token, and see which positions move."""

from collections.abc import Sequence

import streamlit as st

from pages.shared import session, texts
from tracer import models
from tracer.figures import answers, classes
from tracer.record import Segment, Trace


def allowed() -> tuple[str, ...]:
    """The masks that the visitor can choose among; empty where the model was written for one, and for a saved run."""
    masks = () if session.given().kind == "trace" else session.model().spec.options.get("mask", ())
    return masks if len(masks) > 1 else ()


def notice() -> None:
    """Says on every page that the mask is not the one that the weights were trained with, and leads back to it."""
    now = dict(session.options()).get("mask")
    if now is None or session.given().kind == "trace" or now == (trained := _trained()):
        return
    st.warning(
        f"The mask is **{now}**, but the weights were trained **{trained}**: the model sees what it never saw in "
        "training, and its answer is another one than that of the trained model.",
        icon=":material/grid_on:",
    )
    st.button(f"Back to {trained}", icon=":material/undo:", on_click=_back, args=(trained,))


def _trained() -> str:
    first = models.spec_of(session.model_name()).options["mask"][0]
    return (models.card(session.model_name()) or {}).get("options", {}).get("mask", first)


def _back(trained: str) -> None:
    session.choose("mask", trained)
    st.session_state[f"mask-{session.model_name()}"] = trained


def choice() -> None:
    """Lets the visitor choose among the masks that the model was written for."""
    if not (masks := allowed()):
        return
    made = session.model()
    now = made.options["mask"]
    chosen = st.segmented_control("Mask", masks, default=now, required=True, key=f"mask-{session.model_name()}")
    if chosen != now:
        session.choose("mask", chosen)
        st.rerun()
    st.caption(texts.plain(f"Weights: {made.weights}."))


def changes() -> None:
    """What each mask that can be chosen lets through, and what the model then says of the visitor's own input."""
    if not (masks := allowed()):
        return
    st.subheader("What another mask changes")
    chosen, key = session.given(), (session.model_name(), session.options())
    held = st.session_state.get("masked")
    if held is None or held[0] is not chosen or held[1] != key:
        held = st.session_state["masked"] = (chosen, key, [_under(mask) for mask in masks])
    shares, said = zip(*held[2], strict=True)
    st.dataframe({"mask": masks, "pairs of tokens open": shares, "what the model says": said}, hide_index=True)
    st.caption(
        f"The same input, the same weights; only the mask differs. The weights were trained {_trained()}: under "
        "another mask their rows meet tokens that they never saw in training."
    )


def _under(mask: str) -> tuple[str, str]:
    from tracer.masks import visible

    made = session.load(session.model_name(), tuple(sorted({**dict(session.options()), "mask": mask}.items())))
    run = made.trace(prove=False, **session.inputs(made, session.given()))
    return classes.percent(float(visible(run).float().mean())), answers.short(run.result)


def proof(trace: Trace, cells, named: Sequence[Segment], labels: Sequence[str], part: str) -> None:
    """Changes one token of the visitor's own input, runs again, and compares what moved with what the mask predicts."""
    st.subheader("A second proof, which knows no mask")
    if session.given().kind == "trace":
        st.info("This proof runs the model again, so it needs the model: a saved run has none.")
        return
    changeable = [token for segment in named if segment.name != "CLS" for token in range(segment.start, segment.stop)]
    if not changeable:
        st.info("This run’s tokens have no names, so none can be changed.")
        return
    token = st.select_slider(
        "Change this token", changeable, value=changeable[len(changeable) // 2], format_func=lambda t: labels[t]
    )
    from tracer.attention import layers
    from tracer.masks import influence, reach

    made = session.model()
    given = made.inputs(**session.inputs(made, session.given()))
    try:
        with st.spinner("Running the model on both inputs"):
            entering, moved = influence(made, given, token, part=part)
    except ValueError as error:  # a model of a library, whose blocks or patches are not laid out like this
        st.info(texts.plain(f"This proof can’t be made here: {error}."))
        return
    expected = reach(cells, entering, len(layers(trace, part)))
    tower = f" of the {part} tower" if part else ""
    st.markdown(texts.plain(f"Changed: **{labels[token]}**. Outputs{tower} that moved: {_ranges(moved)}."))
    if not entering:
        st.markdown("Nothing of it enters this tower: the model never saw this token.")
    elif entering != (token,):
        st.markdown(f"What enters this tower was mixed before: it had moved at {_ranges(entering)} already.")
    still = sorted(set(expected) - set(moved))
    if set(moved) == set(expected):
        st.success("The mask predicts exactly these positions.", icon=":material/verified:")
    elif set(moved) < set(expected):
        st.success(
            f"Nothing moved that the mask closes off. It would also let {_ranges(still)} move: their share of "
            "attention on this token is too small to change a 32-bit number.",
            icon=":material/verified:",
        )
    else:
        st.error(f"The mask predicts {_ranges(expected)}: the two proofs disagree.", icon=":material/error:")


def _ranges(positions: Sequence[int]) -> str:
    """Positions as ranges: `0 to 3, 7`; "none" if there are none."""
    runs: list[list[int]] = []
    for position in positions:
        if runs and runs[-1][1] == position - 1:
            runs[-1][1] = position
        else:
            runs.append([position, position])
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in runs) or "none"
