"""Page of the notes in a real browser."""

import re

import pytest

from tests.app.browser.test_browser import SLOW, quiet, until, wait_until_settled
from tracer.lessons.notes.statements import rows, sections

pytestmark = pytest.mark.browser


def test_every_statement_of_a_note_is_on_the_page_with_a_verdict_and_a_link(page):
    page.set_default_timeout(SLOW)
    page.set_viewport_size({"width": 390, "height": 900})
    page.goto("/notes?note=004")
    cards = page.locator(".st-key-statements blockquote")
    cards.nth(len(rows("004")) - 1).wait_for(state="attached")
    folded = page.locator(".st-key-statements details:not([open])")
    folded.nth(len(sections("004")) - 1).wait_for()  # on a phone
    assert cards.count() == len(rows("004")) == page.locator(".verdicts i").count()
    counted = sum(int(one) for one in page.locator(".verdicts li b").all_inner_texts())
    assert counted == len(rows("004"))
    said = cards.all_text_contents()
    assert all(re.search(r"holds|holds with a caveat|does not hold|on another page", one) for one in said)
    assert page.locator(".st-key-statements h2").count() == len(sections("004"))
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    link = cards.locator("a").first.get_attribute("href")
    assert re.fullmatch(r"(trace|operations|\./)\?model=\w+.*", link)
    page.locator(".st-key-statements summary").last.click()
    cards.last.wait_for()
    until(page, "!document.getAnimations().length")  # it unfolds
    page.get_by_test_id("stMain").evaluate("main => main.scrollTo(0, main.scrollHeight)")
    last = cards.locator("a:not([href*='note='])").last
    tabs, top = len(page.context.pages), last.bounding_box()["y"]
    address = last.get_attribute("href")
    page.evaluate("window.own = true")  # a page that is loaded anew has lost it
    last.click()
    page.wait_for_url(f"**/{address.removeprefix('./')}*")
    page.get_by_test_id("stMain").locator("h1").filter(has_not_text="Fact-checking").wait_for()
    wait_until_settled(page)
    model = address.partition("model=")[2].partition("&")[0]
    assert page.get_by_test_id("stSidebar").get_by_role("combobox").first.input_value() == model
    page.evaluate("history.back()")
    cards.last.wait_for()
    folded.nth(len(sections("004")) - 2).wait_for()
    assert folded.count() == len(sections("004")) - 1
    until(page, "document.querySelector('[data-testid=stMain]').scrollTop > 1000")
    wait_until_settled(page)
    assert abs(last.bounding_box()["y"] - top) < 3
    assert page.evaluate("window.own") and len(page.context.pages) == tabs and page.url.endswith("/notes?note=004")
    page.locator(".verdicts a").first.click()
    cards.first.wait_for()
    page.goto("/notes?note=004&section=9.5")
    page.get_by_text("This page has no section '9.5', expected one from all to 12.").wait_for()
    quiet(page)
