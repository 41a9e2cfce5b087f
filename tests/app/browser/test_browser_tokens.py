"""Tokens page in a real browser: a sentence as pieces that merge step by step, on every screen."""

import pytest
from playwright.sync_api import expect

from tests.app.browser.test_browser import FIT, SLOW, quiet, wait_until_settled

pytestmark = pytest.mark.browser


@pytest.mark.sweep
def test_pieces_join_as_merges_go_on_and_the_address_has_it(page):
    page.set_default_timeout(SLOW)
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto("/tokens?sentence=My lord 🍕&merges=1&way=bytes")
    chosen = page.locator(".cut.chosen")
    chosen.get_by_text("n = 12", exact=True).wait_for()
    wait_until_settled(page)
    pairs = page.locator(".cut", has_text="Byte-level BPE")
    pairs.get_by_text("n = 12", exact=True).wait_for()
    page.get_by_role("slider", name="Merges").press("Home")
    page.get_by_text("Without merges, the tokens are bytes.").wait_for()
    expect(pairs.locator(".pieces > span")).to_have_count(12)
    page.get_by_role("slider", name="Merges").press("End")
    pairs.get_by_text("V = 1,000", exact=True).wait_for()
    assert pairs.locator("bdi").all_inner_texts()[:2] == ["My", "␣lord"]
    page.get_by_label("Your sentence").fill("lord lord")
    page.get_by_label("Your sentence").press("Enter")
    pairs.get_by_text("n = 3", exact=True).wait_for()
    wait_until_settled(page)
    assert "sentence=lord+lord" in page.url and "merges=744" in page.url and "way=bytes" in page.url
    assert page.evaluate(FIT)
    quiet(page)


@pytest.mark.sweep
def test_video_sound_and_points_are_drawn_on_a_phone(page):
    page.set_default_timeout(SLOW)
    page.set_viewport_size({"width": 390, "height": 800})
    for kind, picture in {"video": "svg .strip", "sound": "audio", "points": ".js-plotly-plot canvas"}.items():
        page.goto(f"/tokens?kind={kind}")
        page.locator(picture).first.wait_for()
        wait_until_settled(page)
        assert page.evaluate(FIT)
    quiet(page)
