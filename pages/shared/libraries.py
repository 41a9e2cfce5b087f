"""Models of libraries in the app: what loading one means is said first, and what can't be had is refused.

Any visitor may name any model, so the server protects itself: nothing is loaded before the visitor agreed to what it
takes, no more than two such models are in memory at once, the operator limits their size (`TRACER_MODEL_GB`), and
with `HF_HUB_OFFLINE=1` nothing is downloaded at all. Checkpoints out of the server's folders are opened only where the
operator says so (`TRACER_FOLDERS=1`). Code out of a checkpoint never runs.
"""

import os

import streamlit as st

from pages.shared import runs, session, turns
from pages.shared.texts import plain
from pages.shared.visitor import Key, visitor
from tracer import models, sources
from tracer.common.limits import limits
from tracer.common.quoting import quoted, shortened
from tracer.figures.labels import amount

LONGEST = 120
"""Characters of a name; the longest on the hub are shorter."""


def suggestions() -> list[str]:
    """Our own models, and examples of the libraries that are installed; where this server offers some, those."""
    offered = limits().models(models.names())
    return [*models.names(), *sources.examples()] if offered is None else list(offered)


def settle() -> None:
    """Takes the model that the visitor chose. One of a library waits until it is agreed to, and one that can't be had
    is refused in a sentence; what is on screen stays until then. Runs before the box that the model is chosen in."""
    state, now = st.session_state, visitor()
    if state.pop(turns.CANCELLED, False):
        session.go_back()
    wanted = str(state.get(Key.MODEL) or "").strip() or now.shown
    if wanted == now.shown:
        if state.get(Key.MODEL) != wanted:
            state[Key.MODEL] = wanted
        return
    now.ask(None)
    problem = ""
    try:
        limits().check_model(wanted, models.names())
        if not sources.is_foreign(wanted):
            models.takes(wanted)
        elif wanted in now.agreed:
            _load(wanted, now.agreed[wanted])
        else:
            now.ask(_cost(wanted))
    except Exception as error:  # whatever a library makes of a name or a checkpoint that it was not written for
        problem = " ".join(str(error).split()) or type(error).__name__
        problem = (
            problem
            if isinstance(error, ValueError)
            else f"{quoted(wanted)} could not be loaded: {shortened(problem, 300)}"
        )
    if problem or now.asked:
        now.stay(problem)
    else:
        now.show(wanted)


def _cost(name: str):
    from tracer.sources.download import cost

    if len(name) > LONGEST:
        raise ValueError(f"{quoted(name)} is no model: a name of at most {LONGEST} characters was expected")
    with st.spinner("Asking what it takes"):
        if not folders_allowed():
            sources.check_no_folder(name)
        return cost(name)


def take(offer) -> None:
    """The visitor's choice of a model that is offered: all that it takes stood beside the button."""
    from tracer.sources import offers
    from tracer.sources.download import Download

    now = visitor()
    here = offers.here(offer)
    if not here and (problem := offers.problem(offer)):
        now.refusal = problem
        return
    now.agree(offer.name, Download(0) if here else Download(offer.size, folder=str(offers.folder(offer))))


def _load(name: str, download) -> None:
    """Loads the model; where that downloads weights, a bar says how much of them has landed."""
    if download.size != 0:
        runs.fetch(name, download)
    runs.load(name)


def folders_allowed() -> bool:
    """Whether visitors may open checkpoints out of the server's folders: where the operator says `TRACER_FOLDERS=1`.

    Nothing that a visitor's browser states, such as the address that it asked for, is believed."""
    return os.environ.get("TRACER_FOLDERS") == "1"


def asking() -> None:
    """What loading the model takes, and the visitor's yes or no."""
    if (cost := visitor().asked) is None:
        return
    with st.container(border=True, key="asking"):
        st.markdown(plain(f"**{cost.name}** — {cost.summary}" if cost.summary else f"**{cost.name}**"))
        st.markdown(f"{_count(cost.parameters)} parameters, {amount(cost.memory, 'B')} of memory. {_downloads(cost)}")
        with st.container(horizontal=True):
            st.button("Load it", type="primary", on_click=visitor().agree, args=(cost.name, cost.download))
            st.button("Not now", on_click=visitor().ask, args=(None,))


def pending() -> bool:
    """Whether the address names a model that waits for a yes. The page is not drawn meanwhile: it would show the run of
    another model, and take the place in that address for one of its own."""
    now = visitor()
    return now.asked is not None and now.wanted is not None


def _count(number: int) -> str:
    return amount(number).replace(" G", " billion").replace(" M", " million")


def _downloads(cost) -> str:
    size, note, _ = cost.download
    if size:
        return f"Loading it downloads {amount(size, 'B')}; that may take a while."
    if size == 0:
        return f"Nothing is downloaded: {note}."
    return "How much it downloads could not be asked: about as much as it takes in memory."


def said(trace) -> None:
    """Of a run of anybody's model: where its weights come from, and how much of it the equations cover, in words."""
    if trace.weights and (sources.is_foreign(trace.model) or session.given().kind == "trace"):
        st.caption(plain(f"Weights: {trace.weights}."))
    if not trace.steps:
        st.caption("This run was saved without steps: its operations, shapes and attention are shown.")
    elif trace.coverage < 1:
        share = f"{100 * trace.coverage:.0f} %" if trace.coverage < 0.995 else "more than 99 %"
        st.caption(
            f"The steps cover {share} of the operations that compute; the others are on the page Operations only."
        )
