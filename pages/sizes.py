"""The cost of each size: parameters, arithmetic and memory as formulas, and a run that confirms them."""

import streamlit as st

from pages.sections.lessons import model_sizes
from pages.state import session
from pages.state.visitor import model_name
from pages.ui import page_frame
from tracer import models

TITLE = "Sizes"
ICON = ":material/straighten:"
ORDER = 13
HEADING = "Lessons"

page_frame.enter()
st.title("What does each size cost?")
if session.user_input().kind == "trace" or model_name() not in models.names():
    st.info(
        "Only the app’s own models can be built at any size. Choose one in the sidebar: vit for photos, nanogpt for "
        "text."
    )
    page_frame.leave()
model_sizes.show(model_name())
