"""Lesson on positions: one kind of position encoding, from a run of the model that all kinds share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import streamlit as st

from pages import components
from pages.jobs import run_cache, single_flight
from pages.state import session, url_state
from pages.state.view import FIRST_MODEL
from pages.state.visitor import model_name
from pages.ui import widgets
from pages.ui.texts import escape, prose
from tracer import models
from tracer.figures import attention_charts
from tracer.figures.tensors import Panel, edge
from tracer.lessons.positions import NO_POSITIONS, PositionKind, position_kind
from tracer.record import tolerance
from tracer.utils.lazy_import import lazy_import
from tracer.utils.text import percent, scientific

if TYPE_CHECKING:
    from tracer.lessons.positions import experiments
    from tracer.lessons.positions.experiments import Curve, Grid, PositionedModel, ShuffleResult
else:  # imported when first used
    experiments = lazy_import("tracer.lessons.positions.experiments")


LENGTHS, WIDTHS, HEADS = (6, 8, 12, 16, 24, 32), (16, 32, 64), (1, 2, 4, 8)
DOING = "Running the model with these positions"


class PositionSizes(NamedTuple):
    """Visitor's choices for the model: tokens, width, heads, and whether a causal mask applies."""

    length: int
    width: int
    heads: int
    causal: bool


def lesson(kind: PositionKind, sizes: PositionSizes, head: int) -> None:
    """Show the page below the controls."""
    placement = _measure(kind.name, sizes)
    _table(kind, placement, head, sizes.causal)
    _apart(kind, placement, head)
    _order(kind, placement)
    _lines(placement)
    _draw_learned()


def _lines(placement: PositionedModel) -> None:
    """Show the lines of the run that positions change, folded below their number and how many of them are verified."""
    st.header("The lines that the positions change")
    verified = sum(step.verdict == "verified" for step in placement.lines)
    st.markdown(
        f"**{len(placement.lines)}** lines, of which **{verified}** are verified. All other lines are identical to "
        "those of the same model without positions."
    )
    for note in dict.fromkeys(step.note for step in placement.lines if step.note):
        st.caption(prose(note))
    with st.expander("Their equations, shapes and verdicts"):
        st.caption("T is the number of tokens.")
        widgets.show(placement.lines)


def sizes() -> tuple[PositionSizes, int]:
    """Return the sizes of the model and the head on screen, as the visitor chooses them."""
    with st.popover("Sizes and mask", icon=":material/tune:"):
        length = widgets.choose(st.select_slider, "Tokens T", "length", LENGTHS, 16)
        width = widgets.choose(st.select_slider, "Width D", "width", WIDTHS, 32)
        key = widgets.widget("heads", HEADS, 4)["key"]
        keep = lambda: url_state.keep(heads=st.session_state[key], head=0)  # noqa: E731
        heads = st.select_slider("Heads h", HEADS, key=key, on_change=keep)
        causal = widgets.segments("Causal mask", "causal", ("off", "on"))
        st.caption("The weights are random, all from one seed, and have learned nothing. Only the positions differ.")
    head = widgets.segments("Head", "head", range(heads), format_func=widgets.from_one)
    return PositionSizes(length, width, heads, causal == "on"), head


def kind_of_run(known: Collection[str]) -> str | None:
    """Return the kind of positions of the chosen model, by the lines of its run; None for any other kind, or where a
    library's model did not run."""
    name, option = model_name(), dict(session.options()).get("positions")
    if option in known:
        return str(option)
    run = session.current_run()
    try:
        if run is None and name in models.names():
            run = run_cache.of_sample(name, (), run_cache.first_sample(name))
    except ValueError:  # its weights are damaged, as is said where they are shown
        return None
    return position_kind(run.steps) if run else None


def choices_text(kind: PositionKind, sizes: PositionSizes) -> str:
    """Return the current choices in words, for print, which has no controls."""
    mask = "a causal mask" if sizes.causal else "no mask"
    return f"**{kind.title}**: T = {sizes.length} tokens, D = {sizes.width}, {sizes.heads} heads, {mask}."


def _measure(kind: str, sizes: PositionSizes) -> PositionedModel:
    """Return the measurements of a kind, computed once for all visitors."""

    def make() -> PositionedModel:
        return experiments.placement(kind, causal=sizes.causal, T=sizes.length, D=sizes.width, h=sizes.heads)

    return run_cache.shared_result("placed", (kind, *sizes), make, DOING)


def _table(kind: PositionKind, placement: PositionedModel, head: int, causal: bool) -> None:
    """Show the kind and its effect on scores; then its pictures: the position table, the table times its transpose, and
    the score over the distance."""
    st.markdown(f"{kind.says} ({kind.paper})")
    measured = {"The score, with the same token at every position,": placement.curve}
    if placement.product is not None:
        measured = {"The product of the table with itself": placement.product, **measured}
    st.markdown("\n".join(f"- {_alone(what, curve)}" for what, curve in measured.items()))
    left, right = st.columns([3, 2], gap="large")
    with left:
        key = head if placement.table is None else 0
        components.panels(placement, ("table", key), lambda: _vectors(placement, head), "table")
    with right:
        curve = placement.curve
        ranges = list(curve.distances), curve.mean, curve.low, curve.high
        draw = partial(attention_charts.distance_lines, *ranges, head, causal)
        single_flight.chart(placement, ("curve", head), draw)
        st.caption(f"Each line is the mean over all pairs at that distance; the band is the range in head {head + 1}.")


def _vectors(placement: PositionedModel, head: int) -> list[Panel]:
    """Return the table of a kind and its product with itself; for a kind without one, the bias that it adds to a head's
    scores."""
    if (table := placement.table) is None:
        name, term = list(placement.terms.items())[-1]
        return [Panel(f"{name}, head {head + 1}", term[head], "query i", "key j")]
    letter, cells, row, column, first = table
    return [
        Panel(f"The table {letter}", cells, row, column, (first, 1), square=False),
        Panel(f"{letter} times itself: {letter}{letter}ᵀ", placement.similar, row, row, (first, first)),
    ]


def _alone(what: str, curve: Curve) -> str:
    """Return a sentence on whether something depends on the distance alone."""
    if curve.spread <= tolerance("float32"):
        return f"{what} depends on the distance i − j **alone**: values at the same distance are " + (
            "equal." if curve.spread == 0 else f"equal up to {scientific(curve.spread)} of the largest."
        )
    return (
        f"{what} depends on **both positions**, not on their distance alone: at the same distance, values differ by "
        f"up to {percent(curve.spread)} of the largest."
    )


def _apart(kind: PositionKind, placement: PositionedModel, head: int) -> None:
    """Draw the terms that add up to the scores of a head."""
    st.header("A score, taken apart")
    st.markdown(kind.apart)

    def panels() -> list[Panel]:
        parts = {name: term[head] for name, term in placement.terms.items()}
        parts |= {"their sum": np.sum(list(parts.values()), axis=0), "the scores S that ran": placement.scores[head]}
        end = edge(*parts.values())
        return [Panel(name, cells, "query i", "key j", edge=end) for name, cells in parts.items()]

    components.panels(placement, ("terms", head), panels, "terms")
    largest = max(placement.terms, key=lambda name: float((placement.terms[name][head] ** 2).mean()))
    st.caption(
        f"All panels show head {head + 1} on one scale. The sum differs from the scores that ran by at most "
        f"{scientific(placement.error)} of the largest score, in any head. The largest term by root mean square is "
        f"“{largest}”. In the scores that ran, cells closed by a mask are empty."
    )


def _order(kind: PositionKind, placement: PositionedModel) -> None:
    """Show the effect of shuffled tokens on the outputs."""
    st.header("Does the order of the tokens matter?")
    names = {
        (NO_POSITIONS, "bidirectional"): "no positions",
        (kind.name, "bidirectional"): kind.title,
        (NO_POSITIONS, "causal"): "no positions, causal mask",
        (kind.name, "causal"): f"{kind.title}, causal mask",
    }
    st.markdown(
        "The tokens are shuffled, the model runs on them, and its outputs are put back into the original order. Where "
        "a token then has the same output as before, the model did not see the order."
    )

    def panel() -> list[Panel]:
        rows = [names[shuffle.positions, shuffle.mask] for shuffle in placement.shuffles]
        cells = [shuffle.differences for shuffle in placement.shuffles]
        return [Panel("How much each token’s output changed", cells, "", "token", square=False, names=rows)]

    components.panels(placement, "order", panel, "order")
    st.table(
        {
            "run": [names[shuffle.positions, shuffle.mask] for shuffle in placement.shuffles],
            "largest difference": [scientific(float(shuffle.differences.max())) for shuffle in placement.shuffles],
            "outputs": [
                "permuted with the tokens" if shuffle.same else "not the same: the order mattered"
                for shuffle in placement.shuffles
            ],
        },
        hide_index=True,
    )
    st.caption(f"Differences are relative to the largest output.{_haviv(placement.shuffles)}")


def _haviv(shuffles: Sequence[ShuffleResult]) -> str:
    """Explain why order matters under a causal mask without positions, where these runs show that it does."""
    if not any(
        (shuffle.positions, shuffle.mask, shuffle.same) == (NO_POSITIONS, "causal", False) for shuffle in shuffles
    ):
        return ""
    return (
        " Under a causal mask the first token sees one key and the last all of them, so here the order matters even "
        "without positions (Haviv et al. 2022)."
    )


def _draw_learned() -> None:
    """Draw the learned positions of the patches of the model on screen, else of the first one."""
    name = model_name() if models.samples(model_name()) and model_name() in models.names() else FIRST_MODEL
    try:
        grid = _grid(name) or _grid(name := FIRST_MODEL)
    except ValueError as error:  # its weights are damaged
        st.error(escape(f"{name} could not be run: {error}"))
        return
    if grid is None:
        return
    st.header(f"What training learned: the position table of {name}")
    components.likeness(grid, lambda: attention_charts.build_likeness(grid.rows, grid.columns, grid.cosines))
    nearest, least = grid.mean(1), min(range(1, grid.farthest + 1), key=grid.mean)
    st.markdown(
        "The cosine between the position of one patch and those of all others (Dosovitskiy et al. 2021, figure 7). "
        f"The table ${grid.letter}$ is a plain list of {grid.length} rows, one per token: the grid of patches "
        f"is not built in. Patches one step apart have a mean cosine of {nearest:.2f}, patches {least} steps apart "
        f"{grid.mean(least):.2f}. The weights: {models.origin(name)}."
    )


def _grid(name: str) -> Grid | None:
    """Return the positions of a model's patches, computed once for all visitors; None where it has no such table."""

    def make() -> tuple[Grid | None]:
        return (experiments.grid(trace, run_cache.load(name).net),)

    trace = run_cache.of_sample(name, (), run_cache.first_sample(name))
    return run_cache.shared_result("placed", ("grid", name), make, DOING)[0]
