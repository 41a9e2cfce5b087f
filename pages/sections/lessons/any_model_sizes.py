"""Lesson on sizes for models of libraries: their costs at any size, from the formulas of a run without values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import streamlit as st

from pages.jobs import run_cache
from pages.sections.lessons import cost_figures
from pages.state import model_options
from pages.ui import texts
from tracer.symbols import notation

if TYPE_CHECKING:
    from tracer.record.cost_scaling import Scaling

WIDGET = "any size {} {}"
DOING = "Running the model without values"


class RunFormulas(NamedTuple):
    """Formulas of a run without values, and the note on where its equations were proven."""

    scaling: Scaling
    note: str


def formulas(model: str) -> RunFormulas:
    """Return the formulas of a model's run without values, computed once for all visitors."""

    def compute() -> RunFormulas:
        import tracer
        from tracer.record.cost_scaling import scaling  # loads sympy

        trace = tracer.load(model, values=False).trace(values=False)
        note = next((note for note in trace.notes if note.startswith("shapes at this size")), "")
        return RunFormulas(scaling(trace), note)

    return run_cache.of_sample_too("costs", model, compute, DOING)


def show(model: str) -> None:
    """Show the costs of a library's model with a control for each of its sizes."""
    try:
        scaling, note = formulas(model)
    except ValueError as error:
        st.info(texts.escape(f"{error}."))
        return
    memory = cost_figures.memory_controls()
    sizes = _controls(model, scaling)
    try:
        now = scaling.complete(sizes)
    except ValueError as error:
        st.error(texts.escape(f"{error}."))
        return
    cost_figures.show_costs(scaling, now, memory)
    show_crossing(scaling, now)
    cost_figures.show_formulas(scaling)
    st.caption(texts.escape(f"{texts.sentence(note)}." if note else ""))


def _controls(model: str, scaling: Scaling) -> dict[str, int]:
    """Draw a control for each size that is not derived; return their values."""
    sizes = {}
    with st.container(key="sizes"):
        for name, value in scaling.sizes.items():
            if name in scaling.derived:
                continue
            label, meaning = size_label(name), notation.MEANINGS.get(name)
            key = WIDGET.format(model, name)
            chosen = st.number_input(label, 1, model_options.MAX_SIZE, value, step=1, key=key, help=meaning)
            sizes[name] = int(chosen)
    return sizes


def size_label(name: str) -> str:
    """Return the symbol of a size and its meaning in a word or two."""
    meaning = notation.MEANINGS.get(name, "").partition(":")[0].partition(",")[0]
    return f"${notation.latex(name)}$ {meaning.removeprefix('number of ')}"


def show_crossing(scaling: Scaling, now: Mapping[str, int]) -> None:
    """State the length at which attention overtakes the MLP, if any."""
    if (meets := scaling.crossover_length(now)) is not None:
        at = f"${notation.latex(scaling.length)} = {cost_figures.whole(meets)}$"
        st.markdown(f"QKᵀ and the weighted sum cost as much as the MLP at {at}.")
