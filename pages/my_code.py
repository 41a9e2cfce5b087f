"""Owner's own code: a file is run, and where it fails, the page says why and which repairs were tried.

It is there only where `python -m tracer app --own-code` started the server.
"""

from pathlib import Path

import streamlit as st

from pages import components
from pages.jobs import own_code
from pages.sections import own_code_editor
from pages.ui import page_frame

TITLE = "My code"
ICON = ":material/code:"
ORDER = 20
HEADING = "Your own"
OWN_CODE = True

page_frame.enter()
if not own_code.is_on():
    page_frame.leave()
components.style(Path(__file__).with_suffix(".css"))
st.title("Why does my model fail?")
st.caption(
    "This page runs your file with your rights, on this machine: it can read, change and send what you can. Run only "
    "code that you would run in a terminal. Your text is not saved: copy it before you close or reload this page."
)
if own_code_editor.ask_key():
    own_code_editor.show()
