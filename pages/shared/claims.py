"""What the texts claim of attention, measured on the run that is on screen."""

import streamlit as st

from pages.shared import session
from tracer.figures.classes import percent
from tracer.figures.labels import scientific
from tracer.record import Trace


def show(trace: Trace) -> None:
    """The claims as three sentences with their numbers; nothing for models of which they don't hold as they stand."""
    if session.given().kind == "trace":
        return
    from tracer import claims

    try:
        found = claims.measured(session.model(), trace)
    except ValueError:
        return
    st.subheader("What the texts say of attention, in numbers")
    times = ", ".join(
        f"{percent(share)} (× {sharp})" for sharp, share in zip(claims.SHARPNESS, found.lookup, strict=True)
    )
    st.markdown(
        "- **A soft dictionary lookup** (note 002). Weights times values give the context that ran, "
        f"{_off(found.mixture)}. The key that fits best gets, on average, {times}: the larger the scores, the closer "
        "to looking up one entry.\n"
        "- **Symmetric scores** (note 001). With one projection for queries and keys, score *ij* equals score *ji*, "
        f"{_off(found.shared_scores)}; after the softmax the two weights differ by up to "
        f"{percent(found.shared_weights)}. With this model’s two projections already the scores differ, by up to "
        f"{percent(found.own_scores)}.\n"
        "- **No order without positions** (note 001). Shuffle the tokens, and the results are shuffled alike, "
        f"{_off(found.equivariant)}; they are not the same results (up to {percent(found.invariant)} apart), so this "
        "is equivariance and not invariance. With positions added it no longer holds: up to "
        f"{percent(found.positioned)} apart."
    )
    st.caption(
        "Computed now, on the tensors of this run and the attention of its first block; all differences are shares of "
        "the largest value."
    )


def _off(error: float) -> str:
    return "bit for bit" if error == 0 else f"up to {scientific(error)}"
