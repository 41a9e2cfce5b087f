"""Pages of the app, drawn without a browser: their texts, their errors, and the bytes that they send."""

from pathlib import Path
from random import Random

from streamlit.components.v2.component_manager import BidiComponentManager
from streamlit.testing.v1 import AppTest, app_test
from streamlit.testing.v1.local_script_runner import LocalScriptRunner

import app
from pages.state.view import FIRST_MODEL
from pages.state.visitor import UserInput, Visitor
from tracer.record import Trace

APP = Path(app.__file__)
PAGES = sorted((APP.parent / "pages").glob("*.py"))
MAX_SENT_BYTES = 4 << 20
"""Bytes that a page may send; photos go beside it."""
MAX_MESSAGE_LETTERS = 1_000
"""Characters of what a page may say where it refuses."""


class Counting(LocalScriptRunner):
    """A counter of the bytes that the last page sent."""

    sent = 0

    def run(self, *args, **options):
        tree = super().run(*args, **options)
        Counting.sent = sum(message.ByteSize() for message in self.forward_msgs())
        return tree


app_test.LocalScriptRunner = Counting
COMPONENTS = BidiComponentManager()
"""What installed packages bring, looked for once."""
COMPONENTS.discover_and_register_components(start_file_watching=False)


def draw_page(chance: Random, trace: Trace | None = None, address: dict[str, list[str]] | None = None) -> AppTest:
    """Draw one page of the app, on a saved run or at an address. Raise AssertionError if it fails, or sends too
    much."""
    at = AppTest.from_file(str(APP), default_timeout=120)
    at._bidi_component_manager = COMPONENTS
    if trace is not None:
        at.session_state["visitor"] = Visitor(user_input=UserInput("trace", "upload.safetensors", trace=trace))
        at.session_state["model"] = FIRST_MODEL
    for name, values in (address or {}).items():
        at.query_params[name] = values
    page = chance.choice(PAGES)
    at.switch_page(str(page.relative_to(APP.parent))).run()
    assert not at.exception, f"{page.stem}: {at.exception[0].message[:300]}"
    assert Counting.sent <= MAX_SENT_BYTES, (
        f"{page.stem} sends {Counting.sent:,} bytes, expected at most {MAX_SENT_BYTES:,}"
    )
    for box in (*at.error, *at.warning):
        assert len(box.value) <= MAX_MESSAGE_LETTERS, (
            f"{page.stem} says {len(box.value):,} characters: {box.value[:80]}"
        )
    return at
