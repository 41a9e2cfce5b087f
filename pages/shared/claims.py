"""What the texts claim of attention, measured on the run that is on screen."""

import streamlit as st

from pages.shared import session
from tracer.figures.classes import percent
from tracer.figures.labels import scientific
from tracer.notes import spelled
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
    soft, *sharper = (percent(share) for share in found.lookup)
    sharper = " and ".join(
        f"{share} with all scores × {by}" for by, share in zip(claims.SHARPNESS[1:], sharper, strict=True)
    )
    st.subheader("What the texts say of attention, in numbers")
    st.markdown(
        spelled(
            "Measured on this run, in its first block. Of each difference it is the largest that is given, as a share "
            "of the largest value on either side.\n"
            "- **A soft dictionary lookup**, says note 002: attention looks a query up among keys, and returns a "
            "mixture of their values. The mixture, weights times values, is the context that ran, "
            f"{_off(found.mixture, 'the largest value of the context')}. How soft the lookup is: the key that fits a "
            f"query best gets {soft} of the weight, on average over queries and heads. It would get {sharper}: the "
            "larger the scores, the closer to looking up one entry.\n"
            "- **Symmetric with one projection**, says note 001: if queries and keys came from one matrix, *i* would "
            "attend to *j* exactly as *j* does to *i*. With this model’s matrix for queries used for both, the scores "
            f"*ij* and *ji* are equal, {_off(found.shared_scores, 'the largest score')}. The attention weights are "
            "not: after the softmax, which divides each row by its own sum, they differ by "
            f"{percent(found.shared_weights)} of the largest weight. With this model’s own two matrices the scores "
            f"differ already, by {percent(found.own_scores)} of the largest score{_opposite(found.own_scores)}.\n"
            "- **No order without positions**, says note 001: without them attention does not see the order of its "
            "tokens. Shuffle the tokens, and the outputs are the same ones, shuffled alike, "
            f"{_off(found.equivariant, 'the largest output')}. At their places they are others than before "
            f"({percent(found.invariant)} of the largest output apart), so attention is equivariant, and not invariant "
            "as the note has it. Shuffle the tokens under positions that stay where they are, and it does not hold "
            f"any more: the outputs differ by {percent(found.positioned)} of the largest."
        )
    )


def _off(error: float, of: str) -> str:
    return "bit for bit" if error == 0 else f"up to {scientific(error)} of {of}"


def _opposite(share: float) -> str:
    return " (more than 100 %, since the two can have opposite signs)" if share > 1 else ""
