"""Attention from token to token, for runs without a photo: one head's matrix, and one row of it as bars."""

import streamlit as st

from pages.shared import texts
from tracer.attention import layers, parts
from tracer.figures import masks as pictures
from tracer.figures import tensors
from tracer.figures.classes import bars, describe
from tracer.record import Trace

MEAN = "mean"


def tower(trace: Trace) -> str:
    """The tower whose attention is shown: a choice in models of several, in which each has a sequence of its own."""
    towers = parts(trace)
    return st.segmented_control("Tower", towers, default=towers[0], required=True) if len(towers) > 1 else towers[0]


def matrix(trace: Trace, part: str) -> None:
    """The attention of a chosen block and head of a tower, `[S_q, S_k]`, with the tokens on both axes."""
    records = layers(trace, part)
    left, right = st.columns(2)
    with left:
        blocks = list(range(len(records)))
        layer = st.segmented_control(
            "Block", blocks, default=blocks[-1], required=True, format_func=lambda number: str(number + 1)
        )
    with right:
        heads = [*range(records[layer].heads), MEAN]
        head = st.segmented_control("Head", heads, default=MEAN, required=True, format_func=str)
    try:
        weights = trace.attention(layer, part=part)[0]
    except ValueError as error:
        st.warning(texts.plain(str(error)))
        return
    weights = weights.mean(0) if head == MEAN else weights[head]
    labels = pictures.labels(trace, part, max(weights.shape))
    values = tensors.as_array(weights)
    picture, row = st.columns([3, 2], gap="large")
    with picture:
        figure = tensors.heatmap(
            values, r"\mathbf{A}", ("?", "?"), roles=("query", "key"), ticks=labels[: values.shape[1]]
        )
        every = range(0, values.shape[0], -(-values.shape[0] // 24))
        figure.update_yaxes(tickvals=list(every), ticktext=[labels[i] for i in every])
        figure.update_layout(height=620)
        st.plotly_chart(figure, alt=tensors.describe(values, "attention weights"), config={"displayModeBar": False})
    with row:
        last = values.shape[0] - 1
        query = st.select_slider("Query", range(last + 1), value=last, format_func=lambda number: labels[number])
        st.subheader(texts.plain(f"{labels[query]} attends most to"))
        keys = labels[: values.shape[1]]
        chart = bars(keys, values[query].tolist(), top=8)
        chart.update_yaxes(title="key token")
        chart.update_xaxes(title="attention weight")
        st.plotly_chart(chart, alt=describe(keys, values[query].tolist(), top=8), config={"displayModeBar": False})
    with st.expander("The same as a table"):
        st.dataframe({"key": keys, "weight": values[query].round(4).tolist()}, hide_index=True)
    call = f"layer={layer}, query={query}" + ("" if head == MEAN else f", head={head}")
    st.caption(f"trace.attention({call}" + (f', part="{part}")' if part else ")"))
