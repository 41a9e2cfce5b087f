"""The Attention page in a real browser: one tower after the other, and keys instead of a mouse."""

import pytest
from test_browser import SLOW, quiet, settled
from test_browser_models import choose as choose_model
from test_browser_models import go

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def patience(page) -> None:
    page.set_default_timeout(SLOW)


def test_nothing_of_a_tower_is_left_when_the_other_is_drawn(page):
    go(page, "Attention")
    choose_model(page, "clip")
    cls = page.get_by_role("button", name="Use CLS as the query")
    cls.wait_for()
    page.get_by_role("radio", name="text").click()
    page.get_by_text("closed by the causal mask").wait_for()
    assert page.locator(".photo").is_hidden() and cls.count() == 0
    page.get_by_role("heading", name="What does a token attend to?").wait_for()
    page.locator(".grid").press("ArrowUp")
    assert "3: 'circle' attends most to" in page.locator(".lead").inner_text()
    page.get_by_role("radio", name="image").click()
    cls.wait_for()
    assert page.locator(".photo").is_visible() and page.locator(".grid").is_hidden()
    assert page.locator(".closed-note").is_hidden()
    quiet(page)


def test_the_matrix_is_used_with_keys_and_its_focus_is_seen(page):
    page.goto("/attention?model=transformer")
    page.locator(".lead").wait_for()
    settled(page)
    page.get_by_role("radio", name="linear").focus()
    page.keyboard.press("Tab")
    grid = page.locator(".grid")
    assert grid.evaluate("grid => grid.matches(':focus-visible') && getComputedStyle(grid).outlineStyle") == "solid"
    page.keyboard.press("ArrowUp")
    assert "14: 'n' attends most to" in page.locator(".lead").inner_text()
    assert "14: 'n' attends most to" in page.locator(".live").inner_text()
    assert "14: 'n'" in grid.get_attribute("aria-label")
