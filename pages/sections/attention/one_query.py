"""Map of one query, for attention with more cells than a page can hold: one row is cheap at any length."""

import numpy as np
import streamlit as st
from PIL import Image

from pages.jobs.render_cache import of
from pages.state import url_state
from pages.ui import texts
from tracer.attention import layers, places, segments
from tracer.figures.attention import attention_payload, query_map
from tracer.figures.predictions.class_bars import percent
from tracer.record import Trace

TOP_TOKENS = 10
"""Tokens that are listed."""


def show(trace: Trace, part: str | None) -> None:
    """Draw the weights of one query of one block over the photo, with the tokens that get most."""
    known = [record for record in layers(trace, part) if not record.problem]
    st.info(texts.one_query(known[0]))
    numbers = [record.layer + 1 for record in known]
    left, middle, right = st.columns(3)
    block = left.selectbox("Block", numbers, **url_state.widget("block", numbers, numbers[-1]))
    record = next(record for record in known if record.layer == block - 1)
    heads = ["mean", *map(str, range(record.heads))]
    head = middle.selectbox(
        "Head",
        heads,
        format_func=lambda head: head if head == "mean" else str(int(head) + 1),
        **url_state.widget("head", heads, "mean"),
    )
    names = attention_payload.names(trace, part, record.keys)
    queries = list(range(record.queries))
    first = next((segment.start for segment in segments(trace, part) if segment.name == "CLS"), 0)
    query = right.selectbox(
        "Query", queries, format_func=names.__getitem__, **url_state.widget("query", queries, first)
    )
    weights = of(trace, ("row", part, block, head, query), lambda: query_map.row(trace, record, head, query))
    order = np.argsort(-weights, kind="stable")[:TOP_TOKENS]
    left, right = st.columns([3, 2])
    with right:
        st.markdown(texts.plain(f"**{names[query]} attends most to:**"))
        lines = [f"- {names[token]}: {percent(float(weights[token]))}" for token in order]
        st.markdown(texts.plain("\n".join(lines)))
    if trace.picture is not None and (patches := places(trace, part)) and max(patches) < record.keys:
        with left:
            image = query_map.over_photo(trace, patches, weights)
            st.image(Image.fromarray(image), width="stretch")
            most = percent(float(max(weights[token] for token in patches)))
            st.caption(f"The brighter a patch, the larger its weight. The brightest has {most}.")
