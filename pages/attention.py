"""What each patch attends to, laid over the photo."""

import streamlit as st

from pages.shared import claims, components, frame, session, texts, tokens
from tracer.attention import segments
from tracer.figures import maps

TITLE = "Attention"
ICON = ":material/center_focus_strong:"
ORDER = 3

frame.enter()
trace = session.trace()
st.title("What does a patch attend to?" if trace.picture else "What does a token attend to?")
for problem in dict.fromkeys(record.problem for record in trace.attentions if record.problem):
    st.warning(texts.plain(problem))
if not trace.attentions:
    st.info("This run has no attention: there is no map to show.")
    frame.leave()
part = tokens.tower(trace)
layers = maps.layers(trace, part)
if layers:
    rollout = maps.rollout(trace, layers, part)
    if not maps.fit(trace, layers, part):
        layers = [st.select_slider("Block", layers, value=layers[-1], format_func=lambda layer: str(layer + 1))]
    components.attention_map(trace, layers, rollout, part)
if not layers or "text" in [segment.name for segment in segments(trace, part)]:
    tokens.matrix(trace, part)
if "random weights" in trace.weights:
    st.caption("These weights are random numbers that learned nothing, so every token gets about the same share.")
said = (
    f"What such a map does not show: how much a {'patch' if layers else 'token'} changed the answer, since the values "
    "that the weights multiply and the residual stream that passes them by are not in it, and other weights can give "
    "the same output; attention is not by itself an explanation (Jain and Wallace 2019)."
)
if layers:
    said += (
        " Rollout multiplies the blocks’ mean maps, each with half an identity for the residual stream (Abnar and "
        "Zuidema 2020)."
    )
st.caption(said)
claims.show(trace)
