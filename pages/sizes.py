"""Cost of each size: parameters, arithmetic and memory as formulas, and a run that confirms them."""

import streamlit as st

from pages.sections.lessons import any_model_sizes, model_sizes, published_sizes
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
if published := published_sizes.choose():
    published_sizes.show(published)
elif session.user_input().kind == "trace":
    st.info("A saved run has the sizes that it was made with. Choose a model in the sidebar to change them.")
elif model_name() in models.names():
    model_sizes.show(model_name())
else:
    any_model_sizes.show(model_name())
published_sizes.show_all()
