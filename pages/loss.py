"""The loss of every token of a text, and the gradient that flows back from it."""

import streamlit as st

from pages.shared import frame
from pages.shared.lessons import foretelling

TITLE = "The loss"
ICON = ":material/trending_down:"
ORDER = 15
HEADING = "Lessons"
PLACES = ()

frame.enter()
st.title("What did the model not expect?")
foretelling.lesson()
