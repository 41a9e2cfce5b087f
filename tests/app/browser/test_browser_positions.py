"""Positions page in a real browser: pictures that are read, a patch that is chosen, and a narrow screen."""

import pytest

from tests.app.browser.test_browser import FIT, SLOW, quiet, until, wait_until_settled

pytestmark = pytest.mark.browser


def test_cells_are_read_and_a_patch_is_chosen_in_the_browser(page):
    page.set_default_timeout(SLOW)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/positions?kind=rotary&patch=9")
    said = page.locator(".likeness .status")
    said.wait_for()
    wait_until_settled(page)
    assert said.inner_text().startswith("The patch in row 2, column 2 is most like the one in ")
    assert page.evaluate(FIT)
    point = page.get_by_text("The score, with the same token at every position, depends on").bounding_box()
    assert point["y"] + point["height"] < 844  # on the first screen
    figures = page.locator(".panels figure")
    assert figures.count() == 7 and figures.locator("figcaption").first.inner_text() == "The table P"
    figures.first.locator("canvas").hover(position={"x": 2, "y": 2})
    assert figures.first.locator(".read").inner_text() == "position 1, cosines, then sines 1: 1"
    assert [figures.first.locator(f".ticks.{way} span").first.inner_text() for way in ("rows", "columns")] == ["1", "1"]
    page.locator(".every .cells").press("ArrowDown")
    assert said.inner_text().startswith("The patch in row 3, column 2 ")
    until(page, "location.search.includes('patch=17')")
    page.get_by_role("radio", name="Relative").click()
    page.get_by_text("The table A").wait_for()
    figures.first.locator("canvas").hover(position={"x": 2, "y": 2})
    least = figures.first.locator(".ticks.rows span").first.inner_text()
    assert least.startswith("−") and figures.first.locator(".read").inner_text().startswith(f"distance j − i {least}, ")
    page.get_by_role("radio", name="ALiBi").click()
    page.get_by_text("penalty of the distance, head 1").wait_for()
    assert said.inner_text().startswith("The patch in row 3, column 2 ")
    quiet(page)
