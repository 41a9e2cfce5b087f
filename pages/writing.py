"""A text token by token: the choice of the next one, the mask and the cache that grow, and what the cache saves."""

import streamlit as st

from pages.sections import writing
from pages.ui import page_frame

TITLE = "Writing"
ICON = ":material/edit_note:"
ORDER = 16
HEADING = "Lessons"
PLACES = ()

page_frame.enter()
st.title("How does a model write?")
writing.show()
