"""Notes: each statement beside what ran, the measured number, and a verdict."""

from pathlib import Path

import streamlit as st

from pages import components
from pages.sections import model_sizes, note_statements
from pages.ui import page_frame, texts, widgets

TITLE = "The notes"
ICON = ":material/menu_book:"
ORDER = 14
HEADING = "Lessons"
PLACES = ("note", "section", "of", "block", "claim", "statement", "letters")

FURTHER_SECTIONS = {
    "claims": "Their claims, measured on any model",
    "contrasts": "What they compare it with: convolution, batch norm",
}

page_frame.enter()
components.style(Path(__file__).with_suffix(".css"))
st.title("Fact-checking five lecture notes")
components.links()
titles = note_statements.titles() | FURTHER_SECTIONS
drop = ("claim", "statement")
note = widgets.choose(st.selectbox, "Note", "note", titles, drop=drop, format_func=titles.get)
with st.container(key="paper-note"):
    st.markdown(f"**{texts.literal(titles[note])}**")
if note == "claims":
    note_statements.show_card(note_statements.claims())
elif note == "contrasts":
    note_statements.show_conv()
elif kinds := note_statements.show_statements(note):
    model_sizes.show_op_counts(kinds)
