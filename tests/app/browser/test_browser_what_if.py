"""What if? in a real browser: the head on screen is switched off, and one click undoes it."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.app.browser.test_browser import SLOW, quiet, wait_until_settled

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def patience(page) -> None:
    page.set_default_timeout(SLOW)


@pytest.mark.sweep
def test_the_head_that_is_on_screen_is_switched_off_and_on_again(page):
    page.goto("/attention")
    page.locator(".lead").wait_for()
    wait_until_settled(page)
    page.get_by_role("group", name="Block").get_by_role("radio", name="3").check()
    page.get_by_role("group", name="Head").get_by_role("radio", name="2").check()
    top = page.locator(".photo").bounding_box()["y"]
    page.get_by_role("button", name="What if?").click()
    head = page.get_by_role("button", name="Head 2 off")
    head.wait_for()
    wait_until_settled(page)
    assert page.locator(".photo").bounding_box()["y"] == top  # the panel lies over the page and moves nothing
    head.click()
    chip = page.get_by_role("button", name="Block 3: head 2 off")
    chip.wait_for()
    wait_until_settled(page)
    page.locator(".lead", has_text="attends to nothing: every weight of this row is 0").wait_for()
    address = parse_qs(urlsplit(page.url).query)
    assert address["change"] == ["block3.attention.weights=drop_heads(1)"]
    assert (address["block"], address["head"]) == (["3"], ["1"])
    page.keyboard.press("Escape")
    chip.click()
    chip.wait_for(state="detached")
    wait_until_settled(page)
    page.locator(".lead", has_text="attends most to:").wait_for()
    assert "change" not in parse_qs(urlsplit(page.url).query)
    quiet(page)


def test_patches_are_painted_away_with_the_pointer_and_with_keys(page):
    page.goto("/")
    begin = page.get_by_role("button", name="Hide patches")
    begin.wait_for()
    wait_until_settled(page)
    begin.click()
    layer, told = page.locator(".targets"), page.locator(".painted")
    box = layer.bounding_box()

    def move(row: int, column: int) -> None:
        page.mouse.move(box["x"] + (column + 0.5) * box["width"] / 8, box["y"] + (row + 0.5) * box["height"] / 8)

    def wait_for_change(change: str | None) -> None:
        """Wait until the run of that change is on screen, and announced."""
        told.filter(has_text="The answer" if change else "Drag over the photo").wait_for()
        wait_until_settled(page)
        assert parse_qs(urlsplit(page.url).query).get("change") == (change and [change])

    move(2, 2)
    page.mouse.down()
    move(2, 5)  # at once: the patches between are hidden, too
    page.mouse.up()
    wait_for_change("image=hide(18,19,20,21,mean)")
    assert layer.bounding_box() == box  # what is painted on stays where it is
    assert page.get_by_text(re.compile("[↑↓]")).count()
    first = page.get_by_role("button", name="patch 1, row 1, column 1")
    first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    assert page.get_by_role("button", name="patch 10, row 2, column 2", pressed=True).count() == 1
    told.filter(has_text="5 of 64 patches are hidden").wait_for()
    wait_for_change("image=hide(9,18,19,20,21,mean)")
    page.go_back()
    told.filter(has_text="4 of 64 patches are hidden").wait_for()
    wait_for_change("image=hide(18,19,20,21,mean)")
    page.get_by_role("button", name="Show all").click()
    wait_for_change(None)
    page.get_by_role("button", name="Undo", exact=True).click()
    wait_for_change("image=hide(18,19,20,21,mean)")
    quiet(page)
