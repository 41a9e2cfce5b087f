"""Position encodings: five kinds and none on the same model, their tables, and their effect on attention."""

import streamlit as st

from pages.sections import position_encodings
from pages.state.visitor import visitor
from pages.ui import page_frame, widgets
from tracer.lessons import positions

TITLE = "Positions"
ICON = ":material/location_on:"
ORDER = 12
HEADING = "Lessons"
PLACES = ("kind", "length", "width", "heads", "causal", "head", "patch")

page_frame.enter()
st.title("How does attention know where a token is?")
known = {kind.name: kind for kind in positions.KINDS}
at = widgets.widget("kind", list(known), position_encodings.kind_of_run(known) or next(iter(known)))
chosen = st.segmented_control("Positions", list(known), format_func=lambda name: known[name].title, required=True, **at)
with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
    sizes, head = position_encodings.sizes()
visitor().instead = "its own model"
with st.container(key="paper-chosen"):
    st.markdown(position_encodings.choices_text(known[chosen], sizes))
position_encodings.lesson(known[chosen], sizes, head)
