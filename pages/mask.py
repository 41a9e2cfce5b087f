"""Who may look at whom: the mask that ran, what it does to one row of scores, and a proof that knows no mask."""

import streamlit as st

from pages.shared import frame, influence, session, texts, tokens
from tracer import masks
from tracer.attention import layers, segments
from tracer.figures import masks as pictures
from tracer.figures.classes import percent

TITLE = "Mask"
ICON = ":material/grid_on:"
ORDER = 4

frame.enter()
st.title("Who may look at whom?")
influence.choice()
trace = session.trace()
if not trace.attentions:
    st.info("This run has no attention, so there is no mask.")
    frame.leave()
part = tokens.tower(trace)
named = segments(trace, part)
try:
    cells = masks.visible(trace, 0, part=part)
except ValueError as error:
    st.warning(texts.plain(str(error)))
    frame.leave()
kind = masks.kind(cells)
last = cells.shape[0] - 1
labels = pictures.labels(trace, part, max(cells.shape))

left, right = st.columns(2, gap="large")
with left:
    st.subheader(f"The mask that ran: {kind}")
    if (all_open := bool(cells.all())) and not influence.allowed():
        st.info("This model has no mask: every token may look at every token.", icon=":material/lock_open:")
    query = st.select_slider(
        "Query: the token that looks",
        range(last + 1),
        value=min(last, cells.shape[0] // 2),
        format_func=lambda place: labels[place],
    )
    st.plotly_chart(pictures.matrix(cells, named, labels, query), alt=pictures.describe(cells, kind))
    st.caption(
        "Read from the scores of this run, cell by cell: filled where the row’s token may look at the column’s. "
        "The query’s row is framed; grey lines part the segments."
    )
with right:
    st.subheader(texts.plain(f"The row of {labels[query]}"))
    heads = layers(trace, part)[0].heads
    head = st.slider("Head of block 1", 0, heads - 1, 0) if heads > 1 else 0
    row = masks.row(trace, query, head=head, part=part)
    said = f"{int((row.mask == 0).sum())} of {len(row.mask)} keys are open to this query."
    st.plotly_chart(pictures.row(*row, named, labels), alt=said)
    closed = "" if (row.mask == 0).all() else " The weights of closed keys are exactly 0."
    st.caption(f"{said}{closed} Each row of weights sums to 1.")
    with st.expander("The same as a table"):
        numbers = {"score before": row.before.tolist(), "mask": row.mask.tolist(), "weight": row.weights.tolist()}
        st.dataframe({"key": labels[: len(row.mask)], **numbers}, hide_index=True)

if named and not all_open:
    st.subheader("By segment")
    shares = {(block.queries, block.keys): block.share for block in masks.blocks(cells, named)}
    table = {"who looks": [segment.name for segment in named]}
    for key in named:
        table[f"at {key.name}"] = [percent(shares[query.name, key.name]) for query in named]
    st.dataframe(table, hide_index=True)
    st.caption("The share of pairs of tokens that are open, from the segment of the row to that of the column.")
influence.changes()
influence.proof(trace, cells, named, labels, part)
