"""Search in a real browser: a key, a learner's words, and the exact position."""

from contextlib import suppress

import pytest
from playwright.sync_api import expect

from tests.app.browser.test_browser import SLOW, quiet, wait_until_settled

pytestmark = pytest.mark.browser
PRESSES = 5000
"""Milliseconds after which somebody would press a key again."""


@pytest.fixture(autouse=True)
def patience(page) -> None:
    page.set_default_timeout(SLOW)


def search(page, words: str) -> None:
    """Open the search by its key and write; wait for the results."""
    page.get_by_role("button", name="Search").wait_for()
    box = page.get_by_role("combobox", name="Search everything of this run")
    for _ in range(SLOW // PRESSES):  # a key that comes while the toolbar is drawn anew is lost
        page.keyboard.press("/")
        with suppress(AssertionError):
            expect(box).to_be_focused(timeout=PRESSES)
            break
    expect(box).to_be_focused()
    box.fill(words)
    expect(page.get_by_role("option").first).to_be_visible()


@pytest.mark.parametrize(
    ("start", "words", "address", "heading"),
    [
        pytest.param(
            "/attention",
            "why divide by root d",
            "**/trace?step=block1.attention.scores",
            "Scores",
            marks=pytest.mark.sweep,
        ),
        pytest.param("/mask", "softmax", "**/trace?step=*", None, marks=pytest.mark.sweep),
        ("/operations", "QKV", "**/trace?step=block1.attention.query", "Queries"),
    ],
)
def test_words_of_a_learner_lead_to_the_place_by_keyboard_alone(page, start, words, address, heading):
    page.goto(start)
    wait_until_settled(page)
    search(page, words)
    page.keyboard.press("Enter")
    page.wait_for_url(address)
    if heading:
        page.get_by_role("heading", name=heading, exact=True).first.wait_for()
    quiet(page)
