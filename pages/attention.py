"""Attention of each patch or token: over the photo, and from token to token."""

import streamlit as st

from pages import components
from pages.sections import attention_heads, cell_panel, what_if
from pages.state import url_state
from pages.ui import page_frame, screen, texts, widgets
from tracer.attention import layers, segments
from tracer.figures import attention_maps

TITLE = "Attention"
ICON = ":material/center_focus_strong:"
ORDER = 3
PLACES = ("tower", "block", "head", "query", "scale", "over", "measure", "statistic", "photos_head", "cell")

page_frame.enter()
trace = screen.trace(beside_plain=True)
title = st.empty()
what = "patch" if trace.picture else "token"
title.title(f"What does a {what} attend to?")
for sentence in texts.attention_problems(trace):
    st.warning(sentence)
if not trace.attentions:
    st.info("This run has no attention: there is no map to show.")
    page_frame.leave()
part = widgets.tower(trace)
if "text" in {segment.name for segment in segments(trace, part)}:
    what = "token"
    title.title("What does a token attend to?")
if "random weights" in trace.weights:
    st.info(
        "With random weights, which token gets more attention is a matter of chance. The value below the colour bar "
        "is what each token would get if all got the same."
    )
for sentence in texts.beside(trace, layers(trace, part)):
    st.info(sentence)
if blocks := attention_maps.blocks(trace, part):
    record = layers(trace, part)[blocks[-1]]
    means = ["mean"] * (record.heads > 1) + ["rollout"] * attention_maps.rolls(trace, blocks, part)
    widgets.check(
        block=[block + 1 for block in blocks],
        head=[*range(record.heads), *means],
        query=range(record.queries),
        scale=("linear", "log"),
    )
    number = st.query_params.get("block", "")
    layer = next((block for block in blocks if str(block + 1) == number), blocks[-1])
    what_if.show_panel(lambda plain: what_if.show_attention_controls(plain, layer, part, st.query_params.get("head")))
    url_state.open_step(components.attention_map(trace, part, what_if.facts(trace), what_if.hide))
    cell_panel.follow(trace)
    what_if.show_before_after(trace, (layer, part))
elif attention_maps.too_large(trace, part):
    attention_heads.show_query(trace, part)
attention_heads.show_all_heads(trace, part)
attention_heads.show_head_columns(trace, part)
st.page_link("pages/mask.py", label="The mask of this run: which token may attend to which", icon=":material/grid_on:")
st.caption(
    f"An attention map does not show how much a {what} changed the answer. The weights say where values come from, "
    "not what the values contain. A residual connection passes each token on beside them, and other weights can give "
    "the same output. Attention by itself is not an explanation (Jain and Wallace 2019). Rollout is not one either: "
    "it carries nothing but the weights through the blocks (Abnar and Zuidema 2020)."
)
widgets.link("notes", "What the notes claim about attention", ":material/menu_book:", note="claims")
