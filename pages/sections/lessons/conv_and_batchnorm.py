"""Contrasts of the notes, run side by side: attention and convolution, layer norm and batch norm."""

from __future__ import annotations

from functools import partial

import streamlit as st

from pages.jobs import run_cache, single_flight
from pages.jobs.render_cache import chart, of
from pages.sections.lessons import note_statements
from pages.state import url_state
from pages.state.visitor import visitor
from pages.ui import texts
from tracer import models
from tracer.figures.attention import claim_charts
from tracer.inputs.samples import samples

MEASURE_MESSAGE = "Running convolutions and norms beside the model"
COLUMNS = 5


def show() -> None:
    """Draw a convolution's field beside a row of attention, and batch norm beside layer norm."""
    visitor().instead = note_statements.INSTEAD
    known = [name for name in models.names() if models.samples(name)]
    name = st.selectbox("Model", known, **url_state.widget("of", known, known[0]))
    trace = run_cache.of_sample(name, (), next(iter(samples(models.samples(name)))))
    try:
        contrasts = of(
            trace,
            "contrasts",
            lambda: single_flight.in_turn(partial(_measure, run_cache.load(name), trace), MEASURE_MESSAGE),
        )
    except ValueError as error:
        st.info(texts.escape(f"{error}."))
        return
    with st.container(key="cards"):
        st.header("What a convolution sees, layer by layer, and what attention sees")
        maps = {f"{at} layer{'s' * (at > 1)}": cells for at, cells in enumerate(contrasts["convolution"], 1)}
        maps |= {"attention": contrasts["attention"]}
        chart(trace, "fields", lambda: claim_charts.grids(maps, min(COLUMNS, len(maps)), ("row of patches", "column")))
        st.markdown(_text(contrasts["receptive"]))
        st.header("What a second picture in the batch changes")
        chart(trace, "norms", lambda: claim_charts.grids(contrasts["norms"], 2, ("token", "feature")))
        st.markdown(_text(contrasts["batch_norm"]))


def _measure(model, trace) -> dict:
    from tracer.lessons.notes.claims import CLAIMS, conv_and_batchnorm  # loads torch

    fields, beside = conv_and_batchnorm.fields(trace), conv_and_batchnorm.beside(model, trace)
    layer, batch = ((b - a).abs() for a, b in zip(beside.alone, beside.together, strict=True))
    shown = {"layer norm": layer, "batch norm": batch}
    claims = {name: CLAIMS[name](model, trace) for name in ("receptive", "batch_norm")}
    return {
        "convolution": fields.convolution.tolist(),
        "attention": fields.attention.tolist(),
        "norms": {name: claim[:64, :64].tolist() for name, claim in shown.items()},
        **{name: (claim.verdict, claim.text) for name, claim in claims.items()},
    }


def _text(contrast: tuple[str, str]) -> str:
    verdict, sentence = contrast
    return f"> {note_statements.SIGNS[verdict]} {sentence}"
