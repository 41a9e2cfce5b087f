"""What the texts claim of attention, measured on the run that is on screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import streamlit as st

from pages.shared import session
from pages.shared.pictures import of
from tracer.common.notes import spelled
from tracer.figures.classes import percent
from tracer.figures.labels import scientific
from tracer.record import Trace

if TYPE_CHECKING:
    from tracer.attention.claims import Measured


def show(trace: Trace) -> None:
    """Each claim in the text's own words, what this run measures, and whether it holds; nothing for models of which
    they don't hold as they stand."""
    if session.given().kind == "trace":
        return
    from tracer.attention import claims

    try:
        found = of(trace, "claims", lambda: claims.measured(session.model(), trace))
    except ValueError:
        return
    st.header("What the texts say of attention, and whether it holds here")
    st.markdown(
        "Attention makes three vectors of each token: a **query** (what it looks for), a **key** (what it can be found "
        "by) and a **value** (what it passes on). Query times key, over $\\sqrt{d_k}$, is the **score** of two tokens; "
        "softmax turns a query’s scores into its **attention weights**, which sum to 1. All is measured in the first "
        "block of this run. Of two things compared, the largest difference is given, as a share of the largest value."
    )
    sharper = dict(zip(claims.SHARPNESS, found.lookup, strict=True))
    for claim in (_lookup(found, sharper, trace.attentions[0].keys), _symmetry(found), _order(found)):
        st.markdown(spelled(claim))


def _lookup(found: Measured, sharper: Mapping[int, float], keys: int) -> str:
    soft = sharper[1]
    more = " and ".join(f"{percent(share)} with all scores × {by}" for by, share in sharper.items() if by != 1)
    return (
        "**1. Attention is a soft lookup**  \n"
        "*Claim*, by note 002: “The attention mechanism can be described in terms of a *soft* key–value database "
        "lookup.” A plain lookup, as in a Python dictionary, finds the one key that equals the query and returns its "
        "value. A soft one compares the query with every key and returns a mixture of all values.  \n"
        "*Measured*: what the heads returned and the values mixed by the attention weights are "
        f"{_equal(found, found.mixture)}. The key that fits a query best gets {percent(soft)} of the weight, on "
        f"average over queries and heads; if all {keys} keys got the same, it would get {percent(1 / keys)}. It would "
        f"get {more}: the larger the scores, the closer to a plain lookup.  \n"
        f"*Holds here*: {_yes(found.same(found.mixture) and not found.same(1 - soft))}."
    )


def _symmetry(found: Measured) -> str:
    return (
        "**2. With one matrix for queries and keys, attention is symmetric**  \n"
        "*Claim*, by note 001: with one matrix $W$ for both, “token $i$ attends to $j$ exactly as much as $j$ "
        "attends to $i$”.  \n"
        "*Measured*: with this model’s query matrix used for the keys too, the score of $i$ with $j$ and that of $j$ "
        f"with $i$ are {_equal(found, found.shared_scores)}. Softmax divides each query’s row by a sum of its own: the "
        f"attention weights that come out are {_equal(found, found.shared_weights)}. With the two matrices that the "
        f"model has, the scores are {_equal(found, found.own_scores)}{_opposite(found.own_scores)}.  \n"
        f"*Holds here*: for the scores, {_yes(found.same(found.shared_scores))}; for the attention weights, "
        f"{_yes(found.same(found.shared_weights))}."
    )


def _order(found: Measured) -> str:
    return (
        "**3. Without positions, attention does not see the order of its tokens**  \n"
        "*Claim*, by note 001: attention “is permutation-invariant: shuffling the rows of $Z$ produces the same "
        "result.” The rows of $Z$ are the tokens.  \n"
        "*Measured*, with positions taken off and the tokens shuffled: the outputs of a token before and after are "
        f"{_equal(found, found.equivariant)}. The outputs at a place before and after are "
        f"{_equal(found, found.invariant)}. With positions that stay where they are while the tokens are shuffled, the "
        f"outputs of a token before and after are {_equal(found, found.positioned)}.  \n"
        f"*Holds here*: as “invariant” (nothing changes), {_yes(found.same(found.invariant))}; as “equivariant” (the "
        f"outputs are shuffled as the tokens are), {_yes(found.same(found.equivariant))}. That positions "
        f"make the order count, {_yes(not found.same(found.positioned))}."
    )


def _yes(holds: bool) -> str:
    return "**yes**" if holds else "**no**"


def _equal(found: Measured, error: float) -> str:
    return f"equal, {_off(error)}" if found.same(error) else f"not equal, they differ by {percent(error)}"


def _off(error: float) -> str:
    return "in every value" if error == 0 else f"up to {scientific(error)}"


def _opposite(share: float) -> str:
    return " (more than 100 %, since the two can have opposite signs)" if share > 1 else ""
