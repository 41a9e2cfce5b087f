"""Models of libraries in the app: the cost of loading one is shown first, and an unavailable one is refused.

Any visitor may name any model, so the server protects itself: nothing is loaded before the visitor agreed to its cost,
no more than two such models are in memory at once, the operator limits their size (`TRACER_MODEL_GB`), and with
`HF_HUB_OFFLINE=1` nothing is downloaded at all. Checkpoints in the server's folders are opened only where the operator
allows it (`TRACER_FOLDERS=1`). Code out of a checkpoint never runs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import streamlit as st

from pages.jobs import run_cache, single_flight
from pages.state import session
from pages.state.visitor import Key, visitor
from tracer import models, zoo
from tracer.utils.errors import limits, quote, shorten
from tracer.utils.lazy_import import lazy_import
from tracer.zoo import recommendations

if TYPE_CHECKING:
    from tracer.zoo import downloads
else:  # imported when first used
    downloads = lazy_import("tracer.zoo.downloads")

MAX_NAME_LETTERS = 120
"""Characters of a name; the longest on the hub are shorter."""


def suggestions() -> list[str]:
    """Return our own models and examples of the installed libraries; where this server offers a list, that list."""
    offered = limits().models(models.names())
    return [*models.names(), *zoo.examples()] if offered is None else list(offered)


def settle() -> None:
    """Switch to the model that the visitor chose. A library's model waits for the visitor's consent, and an unavailable
    one is refused with a message; what is on screen stays until then. Runs before the widget of models."""
    state, now = st.session_state, visitor()
    if state.pop(single_flight.CANCELLATION_KEY, False):
        session.go_back()
    wanted = str(state.get(Key.MODEL) or "").strip() or now.model
    if wanted == now.model:
        if state.get(Key.MODEL) != wanted:
            state[Key.MODEL] = wanted
        return
    now.ask(None)
    problem = ""
    try:
        limits().check_model(wanted, models.names())
        if not zoo.is_foreign(wanted):
            models.takes(wanted)
        elif wanted in now.consents:
            _load(wanted, now.consents[wanted])
        else:
            now.ask(_cost(wanted))
    except Exception as error:  # whatever a library makes of a name or a checkpoint that it was not written for
        problem = " ".join(str(error).split()) or type(error).__name__
        if not isinstance(error, ValueError):
            problem = f"{quote(wanted)} could not be loaded: {shorten(problem, 300)}"
    if problem or now.pending_cost:
        now.stay(problem)
    else:
        now.show(wanted)


def _cost(name: str):
    if len(name) > MAX_NAME_LETTERS:
        raise ValueError(f"{quote(name)} is not a model: expected a name of at most {MAX_NAME_LETTERS} characters")
    with st.spinner("Looking up how large the model is"):
        if not folders_allowed():
            zoo.check_no_folder(name)
        return downloads.cost(name)


def take(offer) -> None:
    """Accept an offered model as the visitor's choice: its cost was displayed beside the button."""
    now = visitor()
    here = recommendations.is_downloaded(offer)
    if not here and (problem := recommendations.problem(offer)):
        now.refusal = problem
        return
    now.agree(
        offer.name,
        downloads.Download(0) if here else downloads.Download(offer.size, folder=str(recommendations.folder(offer))),
    )


def _load(name: str, download) -> None:
    """Load the model; where that downloads weights, show the progress."""
    if download.size != 0:
        run_cache.fetch(name, download)
    run_cache.load(name)


def folders_allowed() -> bool:
    """Return whether visitors may open checkpoints in the server's folders: where the operator sets `TRACER_FOLDERS=1`.

    Nothing that a visitor's browser states, such as the address of its request, is trusted.
    """
    return os.environ.get("TRACER_FOLDERS") == "1"


def awaits_consent() -> bool:
    """Return whether the URL names a model that waits for consent. The page is not drawn meanwhile: it would show the
    run of another model, and replace the position in that URL."""
    now = visitor()
    return now.pending_cost is not None and now.wanted is not None
