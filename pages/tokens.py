"""How text, pictures and all else become a sequence of vectors: one page, one file in `shared/tokenizing` per kind."""

import streamlit as st

from pages.shared import frame, tokenizing

TITLE = "Tokens"
ICON = ":material/token:"
ORDER = 11
HEADING = "Lessons"
PLACES = ("kind", "way", "sentence", "merges", "patch", "codes", "tau", "sound", "series", "cloud", "n", "V", "token")

frame.enter()
st.title("How anything becomes a sequence")
tokenizing.show(tokenizing.kind())
