"""Tokenization of any kind of input, each in a file of `shared/lessons/tokenizing`."""

import streamlit as st

from pages.sections import tokenization
from pages.ui import page_frame

TITLE = "Tokens"
ICON = ":material/token:"
ORDER = 11
HEADING = "Lessons"
PLACES = ("kind", "way", "sentence", "merges", "patch", "codes", "tau", "sound", "series", "cloud", "n", "V", "token")

page_frame.enter()
st.title("How anything becomes a sequence")
tokenization.show(tokenization.kind())
