"""The page of the loss in a real browser: the text in colours, and the way back on a narrow screen."""

import pytest

from tests.app.browser.test_browser import FIT, SLOW, quiet, settled

pytestmark = pytest.mark.browser


def test_the_text_is_coloured_and_the_gradient_drawn(page):
    page.set_default_timeout(SLOW)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/loss?model=nanogpt&text=To be")
    letters = page.locator(".loss-text span")
    letters.first.wait_for()
    settled(page)
    assert letters.all_inner_texts() == ["T", "o", " ", "b", "e"] and letters.first.get_attribute("class") == "unasked"
    assert "−log p = " in letters.nth(1).get_attribute("title")
    shade = letters.nth(1).evaluate("letter => getComputedStyle(letter).backgroundColor")
    assert shade.startswith("rgba(201, 116, 29, ")
    page.get_by_text("through attention and MLPs only").wait_for()
    assert page.evaluate(FIT)
    quiet(page)
