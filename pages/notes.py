"""The notes: each statement beside what ran, the measured number, and a verdict."""

from pathlib import Path

import streamlit as st

from pages.shared import address, components, frame, texts
from pages.shared.lessons import cards, contrasts, counting, noted

TITLE = "The notes"
ICON = ":material/menu_book:"
ORDER = 14
HEADING = "Lessons"
PLACES = ("note", "section", "of", "block", "claim")

MORE = {"claims": "What they claim, on any model", "contrasts": "What they set it against: convolution, batch norm"}

frame.enter()
components.style(Path(__file__).with_suffix(".css"))
st.title("Does it hold? Five notes against their runs")
components.links()
titles = noted.titles() | MORE
widget = address.widget("note", list(titles), next(iter(titles)), claim=None)
note = st.selectbox("Note", titles, format_func=titles.get, **widget)
with st.container(key="paper-note"):
    st.markdown(f"**{texts.literal(titles[note])}**")
if note == "claims":
    cards.show(noted.claims())
elif note == "contrasts":
    contrasts.show()
elif kinds := noted.show(note):
    counting.show(kinds)
