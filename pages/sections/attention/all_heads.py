"""All heads at a glance: the effect of switching each one off on the answer, and what each attends to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from pages import components
from pages.sections.attention import head_measures, head_survey, mask_controls
from pages.sections.attention.head_measures import NAMES, MeasureUnit
from pages.state import session, url_state
from pages.ui import texts
from tracer.attention import layers, places
from tracer.figures.attention import head_grid
from tracer.figures.attention.head_grid import Measure
from tracer.figures.predictions import class_bars, model_output
from tracer.record import Trace
from tracer.utils.error_text import shorten

if TYPE_CHECKING:
    from tracer.attention.head_effects import HeadEffects

DOING = "Switching each head off"
CHEAP = 2e10
"""FLOPs of all runs together up to which they are made without asking."""
CHEAP_ONCE = 2e11
"""The same of runs that are made once for all visitors."""
OVER = {"photo": "This photo", "samples": "The sample photos", "survey": "A survey"}
"""What the heads are measured on, as addresses name it."""
RUNS = 23
"""Runs of each sample photo beside those of the heads: the hiding test."""


@st.fragment
def show(trace: Trace, part: str) -> None:
    """Draw all heads of a tower as one table, coloured by the measure that the visitor chooses."""
    count = sum(record.heads for record in layers(trace, part))
    if count < 2:
        return
    st.header("All heads at a glance")
    if session.user_input().kind == "trace":
        st.caption(
            "Switching heads off runs the model again, so it needs the model, which a saved run does not contain."
        )
        return
    over = "photo"
    if places(trace, part):
        offered = [name for name in OVER if name != "samples" or len(session.sample_names()) > 1]
        widget = url_state.widget("over", offered, offered[0], cell=None)
        over = st.segmented_control("Measured on", offered, required=True, format_func=OVER.__getitem__, **widget)
    if over == "survey":
        head_survey.over_survey()
    elif over == "samples":
        photos = len(session.sample_names())
        if _agree(trace, "samples", (count + RUNS) * photos, f"Measure all heads on {photos} photos", CHEAP_ONCE):
            head_survey.over_samples(trace, part)
    elif _agree(trace, "photo", count, f"Switch off each of the {count} heads"):
        _show_one(trace, part)


def _agree(trace: Trace, over: str, runs: int, label: str, cheap: float = CHEAP) -> bool:
    """Return whether runs are cheap, or the visitor agreed to them; else draw the button that asks."""
    key = f"heads of {trace.model} on {over}"
    if trace.flops * runs <= cheap or st.session_state.get(key):
        return True
    if not st.button(label, icon=":material/toggle_off:"):
        st.caption(f"This runs the model {runs:,} more times.")
        return False
    st.session_state[key] = True
    return True


def _show_one(trace: Trace, part: str) -> None:
    effects = _effects(trace, part)
    if isinstance(effects, str):
        st.caption(texts.plain(f"The heads of this model can’t be switched off one at a time: {effects}."))
        return
    known = [name for name in NAMES if name != "loss" and np.isfinite(_table(effects, name)).any()]
    name = st.segmented_control(
        "Colour by", known, required=True, format_func=NAMES.__getitem__, **url_state.widget("measure", known, known[0])
    )
    measure = head_measures.measure(name, _table(effects, name), MeasureUnit(bool(places(trace, part)), effects.points))
    components.head_grid(head_grid.grid(measure, effects.layers, effects.flips & (name == "effect")))
    st.markdown(texts.plain(_describe(trace, effects, measure, name)))
    head_survey.compare_recorded(trace, effects)
    if name == "effect":
        st.caption(
            "Each head is switched off in a run of its own: its weights are set to 0, and everything else stays as it "
            "is in this run. The effects need not add up, since other heads may do the same work (Michel et al. 2019). "
            "Choose a cell to open that head above."
        )
    else:
        source = " (distance: Dosovitskiy et al. 2021, figure 7)" if name == "distance" else ""
        st.caption(f"Choose a cell to open that head above{source}.")


def _effects(trace: Trace, part: str) -> HeadEffects | str:
    request = mask_controls.MaskRequest.now().with_text_of(trace)

    def run() -> HeadEffects | str:
        from tracer.attention.head_effects import head_sites, measure_heads

        try:
            return request.measure(measure_heads, head_sites(trace, part))
        except ValueError as error:
            return str(error)

    return mask_controls.once("heads", request, (part,), run, DOING, where=request.queue())


def _table(effects: HeadEffects, name: str) -> np.ndarray:
    return effects.change if name == "effect" else getattr(effects, name)


def _describe(trace: Trace, effects: HeadEffects, measure: Measure, name: str) -> str:
    """Describe the table in sentences that are computed from it."""
    values = np.abs(measure.values) if measure.signed else measure.values
    row, head = np.unravel_index(int(np.nanargmax(values)), values.shape)
    which = f"head {head + 1} of block {effects.layers[row] + 1}"
    most = measure.full(measure.values[row, head])
    if name != "effect":
        least_row, least = np.unravel_index(int(np.nanargmin(values)), values.shape)
        return (
            f"The largest value is {most}, of {which}. The smallest is {measure.full(values[least_row, least])}, of "
            f"head {least + 1} of block {effects.layers[least_row] + 1}."
        )
    if not effects.points:
        return f"Switching off {which} changes the output most, by {most} of its size."
    count, flips = int(np.isfinite(values).sum()), int(effects.flips.sum())
    verb = "changes" if flips == 1 else "change"
    start = "With these changes" if trace.changes else "With all heads"
    others = (
        f"{flips} of the {count} heads {verb} which answer is the most probable: a frame marks each."
        if flips
        else "No head alone changes which answer is the most probable."
    )
    return (
        f"{start}, {_answer(trace)} of {class_bars.percent(effects.probability or 0.0)}. Switching off {which} "
        f"changes it most, by {most}. {others}"
    )


def _answer(trace: Trace) -> str:
    """Return whose probability is measured."""
    result = trace.result
    names = result.get("tokens") or result.get("classes") or result.get("sentences")
    if result["kind"] in ("tokens", "labels") or not names:
        return "the answers at all positions have a mean probability"
    name, _ = class_bars.ranking(names, result["probabilities"])[0]
    return f"the answer “{shorten(str(model_output.visible_token(name)), 40)}” has a probability"
