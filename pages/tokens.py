"""Tokenization of any kind of input, each in a file of `shared/lessons/tokenizing`."""

import streamlit as st

from pages.shared import frame
from pages.shared.lessons import tokenizing

TITLE = "Tokens"
ICON = ":material/token:"
ORDER = 11
HEADING = "Lessons"
PLACES = ("kind", "way", "sentence", "merges", "patch", "codes", "tau", "sound", "series", "cloud", "n", "V", "token")

frame.enter()
st.title("How anything becomes a sequence")
tokenizing.show(tokenizing.kind())
