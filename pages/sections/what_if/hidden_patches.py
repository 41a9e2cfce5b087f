"""Patches of the photo hidden: those that the model attended to most, beside as many in the centre and at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from pages.jobs import run_cache
from pages.sections.attention.mask_controls import MaskRequest, once
from pages.sections.what_if import brush, controls
from pages.state import session
from pages.state.visitor import model_name
from pages.ui import texts
from tracer.figures.predictions.class_bars import percent, points
from tracer.record import Trace

if TYPE_CHECKING:
    from tracer.attention.hiding_test import HidingTest

COUNT, FILL = "what if patches", "what if fill"
"""Keys of the number of patches to hide, and of what they show."""
COMPARED = "compare hidden"
"""Key of the toggle that compares them."""
ALMOST = 0.8
"""Share of a loss from which another is told to be almost as much."""
SHARES = (16, 8, 4, 2)
"""One of so many patches is hidden."""
FILLS = {"mean": "mean colour", "grey": "grey", "blur": "blurred"}
"""What hidden patches show, and its name on screen."""


def show(plain: Trace) -> None:
    """Offer to hide patches of the photo, beside the other changes of the run; nothing for a run that names no class of
    a photo, or without attention over it."""
    if plain.picture is None or plain.result.get("kind") != "classes":
        return
    from tracer.attention import hiding_test  # torch, which pages start without
    from tracer.changes.of_inputs import Hide
    from tracer.changes.options import Option

    others = tuple(text for text in session.changes() if not text.startswith("image="))
    base = session.changed_trace(others) if others else plain
    try:
        attended = hiding_test.rank_by_attention(base)
    except ValueError:
        return
    counts = list(dict.fromkeys(max(1, len(attended) // share) for share in SHARES))
    central = hiding_test.nearest_to_centre(plain.picture.rows, plain.picture.columns)
    random = np.random.default_rng(0).permutation(len(attended)).tolist()
    orders = {"Most attended": attended, "In the centre": central, "At random": random}
    hidden, shown = brush.current_patches()
    order = next((order for order in orders.values() if hidden and set(hidden) == set(order[: len(hidden)])), None)
    if order is not None and len(hidden) in counts and shown in FILLS:  # the controls show what is in force
        st.session_state[COUNT], st.session_state[FILL] = len(hidden), shown
    st.session_state.setdefault(COUNT, counts[len(counts) // 2])
    st.session_state.setdefault(FILL, next(iter(FILLS)))
    left, right = st.columns(2)
    count = left.select_slider("Patches to hide", counts, key=COUNT, on_change=_hide_again, args=(order,))
    fill = right.segmented_control(
        "Hidden patches show",
        list(FILLS),
        format_func=FILLS.__getitem__,
        required=True,
        key=FILL,
        on_change=_hide_again,
        args=(order,),
    )
    offered = [Option("image", Hide(order[:count], fill), title) for title, order in orders.items()]
    controls.toggles("Hide", offered, instead=brush.HIDE)
    if st.toggle("Compare hiding what it looked at with hiding other patches", key=COMPARED):
        _compare(base, others, count, fill)


def _hide_again(order: Sequence[int] | None) -> None:
    """Hide as many patches of an order as the controls say now, in place of those that are hidden; nothing without
    one."""
    if order is not None:
        brush.hide({"patches": list(order[: st.session_state[COUNT]]), "fill": st.session_state[FILL]})


def _compare(base: Trace, changes: tuple[str, ...], count: int, fill: str) -> None:
    """Draw the probability of the answer of a run under these changes, with the patches of each choice hidden."""
    request = MaskRequest(model_name(), session.options_with(changes), session.user_input())

    def run():
        from tracer.attention import hiding_test

        model = run_cache.load(request.model, request.options)
        arguments = session.inputs(model, request.chosen, request.options)
        return hiding_test.hide_attended(model, base, count, fill, **arguments)

    result = once("hidden", request, (count, fill), run, "Hiding patches")
    mean, spread = float(np.mean(result.random)), float(np.std(result.random))
    ways = ["none", "most attended", "in the centre", f"at random, {len(result.random)} times"]
    st.table(
        {
            f"{count} patches hidden": ways,
            texts.escape(f"probability of {result.answer}"): [
                percent(result.plain),
                percent(result.attended),
                percent(result.central),
                f"{percent(mean)} ± {percent(spread)}",
            ],
        },
        hide_index=True,
    )
    low, high = mean - spread, mean + spread
    if result.attended < low:
        verdict = "Hiding what it attended to costs more than chance: here the map says something about the answer."
    elif result.attended > high:
        verdict = "Hiding what it attended to costs less than chance: here the map does not show what the answer needs."
    else:
        verdict = "Hiding what it attended to costs about as much as chance: here the map says little about the answer."
    st.caption(f"{verdict} {beside_centre(result)} “±” is the standard deviation over the random choices.")


def beside_centre(result: HidingTest) -> str:
    """Return a sentence on the effect of hiding the centre on the answer, beside hiding the most attended patches."""
    attended, central = (points(result.plain, share) for share in (result.attended, result.central))
    if min(attended, central) < 0 and max(attended, central) <= 0:
        ratio = central / attended if attended else float("inf")
        word = "almost as much" if ALMOST <= ratio < 1 else "less" if ratio < 1 else "more" if ratio > 1 else "as much"
        return (
            f"The centre costs {word}: {abs(central):.1f} percentage points, and the most attended patches "
            f"{abs(attended):.1f}."
        )
    return (
        f"With the centre hidden, the probability is {percent(result.central)}, and with the most attended patches "
        f"hidden {percent(result.attended)}."
    )
