"""What if, in a real browser: the head on screen is switched off, and one click takes it back."""

from urllib.parse import parse_qs, urlsplit

import pytest

from tests.app.browser.test_browser import SLOW, quiet, settled

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def patience(page) -> None:
    page.set_default_timeout(SLOW)


def test_the_head_that_is_on_screen_is_switched_off_and_on_again(page):
    page.goto("/attention")
    page.locator(".lead").wait_for()
    settled(page)
    page.get_by_role("group", name="Block").get_by_role("radio", name="3").check()
    page.get_by_role("group", name="Head").get_by_role("radio", name="1").check()
    top = page.locator(".photo").bounding_box()["y"]
    page.get_by_role("button", name="What if?").click()
    head = page.get_by_role("button", name="Head 1 off")
    head.wait_for()
    settled(page)
    assert page.locator(".photo").bounding_box()["y"] == top  # the panel lies over the page and moves nothing
    head.click()
    chip = page.get_by_role("button", name="Block 3: head 1 off")
    chip.wait_for()
    settled(page)
    page.locator(".lead", has_text="attends to nothing: every weight of this row is 0").wait_for()
    address = parse_qs(urlsplit(page.url).query)
    assert address["change"] == ["block3.attention.weights=drop_heads(1)"]
    assert (address["block"], address["head"]) == (["3"], ["1"])
    page.keyboard.press("Escape")
    chip.click()
    chip.wait_for(state="detached")
    settled(page)
    page.locator(".lead", has_text="attends most to:").wait_for()
    assert "change" not in parse_qs(urlsplit(page.url).query)
    quiet(page)
