"""Attention of each patch or token: over the photo, and from token to token."""

import streamlit as st

from pages import components
from pages.sections.attention import head_columns
from pages.state import session, url_state
from pages.ui import page_frame, texts, tower_select
from tracer.attention import layers, segments
from tracer.figures.attention import attention_payload

TITLE = "Attention"
ICON = ":material/center_focus_strong:"
ORDER = 3
PLACES = ("tower", "block", "head", "query", "scale")

page_frame.enter()
trace = session.trace()
title = st.empty()
what = "patch" if trace.picture else "token"
title.title(f"What does a {what} attend to?")
for sentence in texts.attention_problems(trace):
    st.warning(sentence)
if not trace.attentions:
    st.info("This run has no attention: there is no map to show.")
    page_frame.leave()
part = tower_select.tower(trace)
if "text" in {segment.name for segment in segments(trace, part)}:
    what = "token"
    title.title("What does a token attend to?")
if "random weights" in trace.weights:
    st.info(
        "With random weights it is chance which token gets more than another. What each would get if all got the same "
        "stands below the colour bar."
    )
for sentence in texts.beside(trace, layers(trace, part)):
    st.info(sentence)
if blocks := attention_payload.blocks(trace, part):
    record = layers(trace, part)[blocks[-1]]
    means = ["mean"] * (record.heads > 1) + ["rollout"] * attention_payload.rolls(trace, blocks, part)
    url_state.check(
        block=[block + 1 for block in blocks],
        head=[*range(record.heads), *means],
        query=range(record.queries),
        scale=("linear", "log"),
    )
    if step := components.attention_map(trace, part):
        url_state.open_step(step)
elif attention_payload.too_large(trace, part):
    st.info(texts.too_large(next(record for record in layers(trace, part) if not record.problem)))
head_columns.show(trace, part)
st.page_link("pages/mask.py", label="Who may look at whom: the mask that ran", icon=":material/grid_on:")
st.caption(
    f"What such a map does not show: how much a {what} changed the answer. The weights say where values are taken "
    "from, not what these hold; a residual connection passes each token on beside them; and other weights can give "
    "the same output. Attention is not by itself an explanation (Jain and Wallace 2019). Nor is rollout, which carries "
    "the weights alone through the blocks (Abnar and Zuidema 2020)."
)
st.page_link(
    "pages/notes.py",
    label="What the notes claim of attention",
    icon=":material/menu_book:",
    query_params=url_state.of("notes") | {"note": "claims"},
)
