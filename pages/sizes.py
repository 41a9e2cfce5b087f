"""The cost of each size: parameters, arithmetic and memory as formulas, and a run that confirms them."""

import streamlit as st

from pages.shared import frame, session
from pages.shared.lessons import sizing
from pages.shared.visitor import model_name
from tracer import models

TITLE = "Sizes"
ICON = ":material/straighten:"
ORDER = 13
HEADING = "Lessons"

frame.enter()
st.title("What does each size cost?")
if session.given().kind == "trace" or model_name() not in models.names():
    st.info(
        "Only a model of ours can be built at any size. Choose one in the sidebar: vit for photos, nanogpt for text."
    )
    frame.leave()
sizing.show(model_name())
