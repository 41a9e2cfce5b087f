"""Cost of each size: parameters, arithmetic and memory as formulas, and a run that confirms them."""

import streamlit as st

from pages.sections import model_sizes
from pages.state import session
from pages.state.visitor import model_name
from pages.ui import page_frame
from tracer import models

TITLE = "Sizes"
ICON = ":material/straighten:"
ORDER = 13
HEADING = "Lessons"
PLACES = ("published", "batch", "length", "dtype")

page_frame.enter()
st.title("What does each size cost?")
if published := model_sizes.choose():
    model_sizes.show_published(published)
elif session.user_input().kind == "trace":
    st.info("A saved run has the sizes that it was made with. Choose a model in the sidebar to change them.")
elif model_name() in models.names():
    model_sizes.show_model(model_name())
else:
    model_sizes.show_any_model(model_name())
model_sizes.show_all()
