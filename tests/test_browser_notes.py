"""The page of the notes in a real browser."""

import re

import pytest
from test_browser import SLOW, quiet

from tracer.notes.rows import rows, sections

pytestmark = pytest.mark.browser


def test_every_statement_of_a_note_is_on_the_page_with_a_verdict_and_a_link(page):
    page.set_default_timeout(SLOW)
    page.set_viewport_size({"width": 390, "height": 900})
    page.goto("/notes?note=004")
    cards = page.locator(".st-key-statements blockquote")
    cards.nth(len(rows("004")) - 1).wait_for()
    assert cards.count() == len(rows("004")) == page.locator(".verdicts i").count()
    counted = sum(int(one) for one in page.locator(".verdicts li b").all_inner_texts())
    assert counted == len(rows("004"))
    said = cards.all_inner_texts()
    assert all(re.search(r"holds|holds in this sense|does not hold|on another page", one) for one in said)
    assert page.locator(".st-key-statements h2").count() == len(sections("004"))
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    link = cards.get_by_role("link").first.get_attribute("href")
    assert re.fullmatch(r"(trace|operations|\./)\?model=\w+.*", link)
    page.goto("/notes?note=004&section=9.5")
    page.get_by_text("This page has no section '9.5', expected one from all to 12.").wait_for()
    quiet(page)
