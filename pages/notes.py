"""The notes that all this is made from: each statement beside what ran, the number measured, and whether it holds."""

from pathlib import Path

import streamlit as st

from pages.shared import address, components, frame, noted

TITLE = "The notes"
ICON = ":material/menu_book:"
ORDER = 14
HEADING = "Lessons"
PLACES = ("note", "section")

frame.enter()
components.style(Path(__file__).with_suffix(".css"))
st.title("Does it hold? Five notes against their runs")
titles = noted.titles()
note = st.selectbox("Note", titles, format_func=titles.get, **address.widget("note", list(titles), next(iter(titles))))
noted.show(note)
