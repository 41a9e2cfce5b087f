"""Number of operations of each kind in a block: by the note, in the block that it describes, and in any other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial

import streamlit as st

from pages.jobs import single_flight
from pages.jobs.render_cache import of
from pages.sections.lessons import claim_cards
from pages.state import url_state
from pages.ui import texts
from tracer.attention import parts

COUNT_MESSAGE = "Opening the operations of the block"


def show(kinds: Mapping[str, Counter[str]]) -> None:
    """Show the table for the note's block, which has these `kinds`, and for one that is chosen."""
    from tracer.lessons.notes import torchvision_block_counts  # loads torch

    st.header("Operations of one block, by kind", anchor="kinds")
    left, right = st.columns(2)
    with left:
        trace, model, inputs = claim_cards.run()
    known = torchvision_block_counts.layers(trace)
    with right:
        named = {layer + 1: layer for layer in known}
        chosen = st.selectbox("Block", named, **url_state.widget("block", list(named), 1)) if named else None
    table = {
        "kind": list(kinds),
        "the note": list(torchvision_block_counts.STATED_COUNTS.values()),
        "its block": _totals(kinds),
    }
    table["which"] = [_which(counts) for counts in kinds.values()]
    if chosen:
        count = partial(torchvision_block_counts.kinds_of, model, trace, named[chosen], inputs)
        own = of(trace, ("kinds", chosen), lambda: single_flight.in_turn(count, COUNT_MESSAGE))
        table[f"block {chosen} of {trace.model}"] = _totals(own)
        table["which of these"] = [_which(counts) for counts in own.values()]
    st.table(table, hide_index=True)
    both = " In a model of several towers, that block of each tower is counted." if len(parts(trace)) > 1 else ""
    none = "" if chosen else texts.plain(f" {trace.model} has no blocks.")
    st.caption(
        "These are the primitives into which PyTorch decomposes each operation. The note counts torchvision’s block "
        f"on the standard path.{both}{none}"
    )


def _totals(kinds: Mapping[str, Counter[str]]) -> list[str]:
    return [str(counts.total()) for counts in kinds.values()]


def _which(counts: Counter[str]) -> str:
    return ", ".join(f"{name} × {count}" for name, count in counts.most_common())
