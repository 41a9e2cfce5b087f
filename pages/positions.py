"""Position encodings: five kinds and none on the same model, their tables, and their effect on attention."""

import streamlit as st

from pages.shared import address, frame
from pages.shared.lessons import placing
from pages.shared.visitor import visitor
from tracer.lessons import positions

TITLE = "Positions"
ICON = ":material/location_on:"
ORDER = 12
HEADING = "Lessons"
PLACES = ("kind", "length", "width", "heads", "causal", "head", "patch")

frame.enter()
st.title("How does attention know where a token stands?")
known = {kind.name: kind for kind in positions.every()}
at = address.widget("kind", list(known), placing.own(known) or next(iter(known)))
chosen = st.segmented_control("Positions", list(known), format_func=lambda name: known[name].title, required=True, **at)
with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
    sizes, head = placing.sizes()
visitor().instead = "a model of its own"
with st.container(key="paper-chosen"):
    st.markdown(placing.choices_text(known[chosen], sizes))
placing.lesson(known[chosen], sizes, head)
