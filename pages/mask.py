"""Who may look at whom: the mask that ran, what it does to one row of scores, and a proof that knows no mask."""

from functools import partial

import streamlit as st

from pages.shared import frame, influence, session, texts, tokens
from pages.shared.pictures import chart, figure
from tracer.attention import layers, parts, segments
from tracer.figures import masks as pictures
from tracer.figures.budget import drawn
from tracer.figures.classes import percent
from tracer.figures.labels import scientific

TITLE = "Mask"
ICON = ":material/grid_on:"
ORDER = 4

PLAIN = {"displayModeBar": False}  # its buttons would lie over the picture
SQUARE = "<style>.st-key-mask { max-width: 36rem; } .st-key-mask > * { aspect-ratio: 1 / 0.94; }</style>"


def _kept(rows) -> str:
    """What the rows of weights of one head keep to, as measured (`masks.Rows`)."""
    said = f"Over all rows of this head, the sum of a row differs from 1 by at most {scientific(rows.off)}"
    if rows.closed is None:
        return f"{said}."
    return f"{said}, and the largest weight of a closed key is {scientific(rows.closed)}."


def _layer(records) -> int:
    """The layer whose mask is shown: a choice where not all have the same kind of mask."""
    kinds = [record.mask for record in records]
    if len(set(kinds)) < 2:
        return 0
    named = [f"block {layer + 1}: {'windows' if kind == 'windows' else 'no mask' if kind == 'none' else kind}"
             for layer, kind in enumerate(kinds)]  # fmt: skip
    return st.selectbox("Attention of", range(len(kinds)), format_func=lambda layer: named[layer])


def _window(trace, layer: int, part: str) -> int:
    """Which item of the batch is shown: a choice among windows, from the first in which something is closed on."""
    if layers(trace, part)[layer].mask != "windows":
        return 0
    count = trace.attention(layer, query=0, part=part).shape[0]
    if count < 2:
        return 0
    shut = (item for item in range(count) if not masks.visible(trace, layer, part=part, batch=item).all())
    return st.number_input("Window, counted from 0", 0, count - 1, next(shut, 0))


@st.fragment
def picture(cells, kind: str, labels: list[str]) -> None:
    """The mask and the row of a chosen query beside it; another query draws these again and nothing else."""
    from tracer.attention import masks

    none = all_open and cells.numel() > 1 and not influence.allowed()  # a picture of it would be one blue square
    left, right = (st.container(), st.container()) if none else st.columns(2, gap="medium")
    with left:
        st.subheader(f"The mask that ran: {kind}")
        if cells.numel() == 1:
            st.info("There is only one token, so a causal mask and no mask are the same: it looks at itself.")
        if none:
            what = "tower" if len(parts(trace)) > 1 else "model"
            st.info(f"This {what} has no mask: every token may look at every token.", icon=":material/lock_open:")
        query = st.select_slider(
            "Query: the token that looks",
            range(cells.shape[0]),
            value=influence.start(cells),
            format_func=lambda place: labels[place],
        )
        if not none:
            with st.container(key="mask"):
                key, alt = ("mask", part, layer, window), pictures.describe(cells, kind)
                whole = figure(trace, key, partial(pictures.matrix, cells, named, labels))
                drawn = whole.under(lambda layout: pictures.marked(layout, query, cells.shape[1]))
                st.plotly_chart(drawn, alt=alt, config=PLAIN, height="stretch")
            parted = "; grey lines part the segments" if len(named) > 1 else ""
            st.caption(
                "Read from the scores of this run, cell by cell: filled where the row’s token may look at the "
                f"column’s. The arrow points at the query’s row, marked in orange{parted}. Tokens are counted from 0."
            )
    with right:
        st.subheader(texts.plain(f"The row of {labels[query]}"))
        heads = layers(trace, part)[layer].heads
        head = st.slider(f"Head of block {layer + 1}", 0, heads - 1, 0) if heads > 1 else 0
        row = masks.row(trace, query, layer, head=head, part=part, batch=window)
        most = int(row.weights.argmax())
        said = (
            f"{int((row.mask == 0).sum())} of {len(row.mask)} keys are open to this query. The highest weight is that "
            f"of {labels[most]}: {percent(float(row.weights[most]))}."
        )
        key = "row", part, layer, window, query, head
        chart(trace, key, partial(pictures.row, *row, named, labels), alt=said, config=PLAIN)
        st.caption(texts.plain(f"{said} {_kept(masks.rows(trace, layer, head=head, part=part, batch=window))}"))
        with st.expander("The same as a table"):
            numbers = {"score before": row.before.tolist(), "mask": row.mask.tolist(), "weight": row.weights.tolist()}
            st.dataframe({"key": labels[: len(row.mask)], **numbers}, hide_index=True)


frame.enter()
st.title("Who may look at whom?")
st.html(SQUARE)
influence.choice()
trace = session.trace()
if not trace.attentions:
    st.info("This run has no attention, so there is no mask.")
    frame.leave()
part = tokens.tower(trace)
named = segments(trace, part)

from tracer.attention import masks  # noqa: E402  (the title is drawn before torch is imported)

layer = _layer(layers(trace, part))
if not drawn(trace, layers(trace, part)[layer]):
    st.info(texts.too_large(layers(trace, part)[layer]))
    frame.leave()
try:
    window = _window(trace, layer, part)
    cells = masks.visible(trace, layer, part=part, batch=window)
except ValueError as error:
    st.warning(texts.plain(str(error)))
    frame.leave()
labels = pictures.labels(trace, part, max(cells.shape), numbered=True)
all_open = bool(cells.all())
picture(cells, masks.kind(cells) if cells.numel() > 1 else "one open cell", labels)
if len(named) > 1 and not all_open:
    st.subheader("By segment")
    shares = {(block.queries, block.keys): block.share for block in masks.blocks(cells, named)}
    table = {"who looks": [segment.name for segment in named]}
    for key in named:
        table[f"at {key.name}"] = [percent(shares[query.name, key.name]) for query in named]
    st.table(table, hide_index=True)
    st.caption("The share of pairs of tokens that are open, from the segment of the row to that of the column.")
if influence.allowed():
    influence.changes(trace, cells)
influence.proof(trace, cells, named, labels, part)
