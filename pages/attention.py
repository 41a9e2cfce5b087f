"""What each patch attends to, laid over the photo."""

import streamlit as st

from pages.shared import components, frame, session, texts
from tracer.figures import maps

TITLE = "Attention"
ICON = ":material/center_focus_strong:"
ORDER = 3

frame.enter()
st.title("What does a patch attend to?")
trace = session.trace()
layers = maps.layers(trace)
for problem in dict.fromkeys(record.problem for record in trace.attentions if record.problem):
    st.warning(texts.plain(problem))
if not layers:
    st.info("This run has no attention over the patches of a photo: there is no map to lay over it.")
    st.stop()

rollout = maps.rollout(trace, layers)
if not maps.fit(trace, layers):
    layers = [st.select_slider("Block", layers, value=layers[-1], format_func=lambda layer: str(layer + 1))]
components.attention_map(trace, layers, rollout)
st.caption(
    "What such a map does not show: how much a patch changed the answer, since the values that the weights multiply "
    "and the residual stream that passes them by are not in it, and other weights can give the same output; attention "
    "is not by itself an explanation (Jain and Wallace 2019). Rollout multiplies the blocks’ mean maps, each with half "
    "an identity for the residual stream (Abnar and Zuidema 2020)."
)
