"""Loss of every token of a text, and the gradient that flows back from it."""

import streamlit as st

from pages.sections import training_loss
from pages.ui import page_frame

TITLE = "The loss"
ICON = ":material/trending_down:"
ORDER = 15
HEADING = "Lessons"
PLACES = ("rate",)

page_frame.enter()
st.title("What did the model not expect?")
training_loss.lesson()
