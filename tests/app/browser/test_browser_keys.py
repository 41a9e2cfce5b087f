"""Keys in a real browser: Tab goes through every page and back, and a query that was not pinned is nobody's choice."""

import time

import pytest

from pages.state import page_registry
from tests.app.browser.test_browser import FILM, SLOW, give, jpeg, quiet, until, wait_until_settled
from tests.support.sweeping import cases

pytestmark = pytest.mark.browser
FOCUS = """() => {
  let at = document.activeElement;
  while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement;
  window.stops ??= new Map();
  if (!window.stops.has(at)) window.stops.set(at, window.stops.size);
  return at === document.body ? -1 : window.stops.get(at);
}"""
MOST = 600
ADDRESSES = tuple("" if not place else page.path.stem for place, page in enumerate(page_registry.find_pages()))


@pytest.fixture(autouse=True)
def patience(page) -> None:
    page.set_default_timeout(SLOW)


def open_address(page, address: str) -> None:
    page.goto(f"/{address}")
    page.locator("[data-testid=stMain] h1").wait_for()
    wait_until_settled(page)


def walk(page, key: str) -> list[int]:
    """Return the stops of the key, one after the other, until the focus leaves the page or reaches one again."""
    stops: list[int] = []
    while len(stops) < MOST:
        page.keyboard.press(key)
        stop = page.evaluate(FOCUS)
        if stop == -1 or stop in stops:
            return stops
        stops.append(stop)
    raise AssertionError(f"{key} has come to {MOST} stops on {page.url}")


@pytest.mark.parametrize("address", cases([*ADDRESSES, "?model=nanogpt"], ("",)))
def test_tab_goes_through_a_page_and_back(page, address):
    open_address(page, address)
    deadline = time.monotonic() + SLOW / 1000
    forward, back = walk(page, "Tab"), []
    while time.monotonic() < deadline:
        assert page.evaluate(FOCUS) in (-1, *forward[:1]), "Tab is caught"
        page.evaluate("document.activeElement.blur()")
        back = walk(page, "Shift+Tab")
        assert page.evaluate(FOCUS) in (-1, *back[:1]), "Shift and Tab are caught"
        if len(forward) > 20 and set(forward) <= set(back):
            break
        page.wait_for_timeout(200)  # parts of the page were still to be drawn, or were drawn again
        page.evaluate("document.activeElement.blur()")
        forward = walk(page, "Tab") or walk(page, "Tab")  # from outside the page, the first one leads to it
    assert len(forward) > 20 and set(forward) - set(back) == set()
    quiet(page)


def place(page, patch: int) -> tuple[float, float]:
    """Return the middle of a patch on the photo of the film, on the page."""
    x, y, wide = page.evaluate(
        f"""() => {{
          const film = {FILM};
          const {{ photo }} = film.film.place();
          const box = film.querySelector("canvas").getBoundingClientRect();
          return [box.x + photo.x, box.y + photo.y, photo.w];
        }}"""
    )
    return x + (patch % 8 + 0.5) * wide / 8, y + (patch // 8 + 0.5) * wide / 8


def test_keys_of_the_browser_and_the_page_work_after_a_click_on_the_photo(page):
    open_address(page, "")
    point = page.locator(".film .point")
    point.wait_for()
    page.evaluate("addEventListener('keydown', (event) => (window.prevented = event.defaultPrevented))")
    page.mouse.click(*place(page, 10))
    page.mouse.move(5, 5)
    assert "Row 2, column 3 looks" in point.inner_text()
    for key in (" ", "PageDown", "End", "c", "F5"):
        event = {"key": key, "ctrlKey": key == "c", "bubbles": True, "cancelable": True, "composed": True}
        page.locator(".film .stage").dispatch_event("keydown", event)
        assert page.evaluate("window.prevented") is False, key
    page.keyboard.press("p")
    page.get_by_test_id("stSidebar").wait_for(state="hidden")
    assert "Row 2, column 3 looks" in point.inner_text()
    page.keyboard.press("Escape")  # the pin first, the presentation next
    assert "CLS looks" in point.inner_text()
    assert page.get_by_test_id("stSidebar").is_hidden()
    page.keyboard.press("Escape")
    page.get_by_test_id("stSidebar").wait_for()
    quiet(page)


@pytest.mark.sweep
def test_pointing_at_the_film_changes_the_query_for_as_long_as_one_points(page):
    open_address(page, "")
    point, before = page.locator(".film .point"), page.url
    point.wait_for()
    first = point.inner_text()
    assert "CLS looks most" in first
    page.mouse.move(*place(page, 20))
    assert "Row 3, column 5 looks" in point.inner_text()
    page.mouse.move(5, 5)
    assert point.inner_text() == first and page.url == before
    page.mouse.click(*place(page, 20))
    page.mouse.move(5, 5)
    assert "Row 3, column 5 looks" in point.inner_text()
    page.wait_for_url("**query=21")
    page.keyboard.press("Escape")
    assert point.inner_text() == first
    until(page, "!location.search.includes('query=')")
    quiet(page)


def test_pointing_at_the_photo_changes_the_query_for_as_long_as_one_points(page):
    open_address(page, "attention")
    photo, lead, before = page.locator(".photo"), page.locator(".lead"), page.url
    photo.wait_for()
    first = lead.inner_text()
    assert "CLS attends most to" in first
    box = photo.bounding_box()
    at = lambda share: (box["x"] + share * box["width"], box["y"] + 0.4 * box["height"])  # noqa: E731
    page.mouse.move(*at(0.4))
    assert "CLS attends" not in lead.inner_text()
    page.mouse.move(box["x"] - 20, box["y"] + 20)
    assert lead.inner_text() == first and page.url == before
    page.mouse.move(*at(0.6))
    page.mouse.wheel(0, 600)  # the photo moves away from below the pointer
    until(page, "document.querySelector('[data-testid=stMain]').scrollTop > 100")
    page.mouse.move(*at(0.61))
    page.mouse.move(box["x"] - 20, 500)
    assert lead.inner_text() == first
    page.get_by_test_id("stMain").evaluate("main => main.scrollTo(0, 0)")
    page.mouse.click(*at(0.4))
    page.mouse.move(box["x"] - 20, box["y"] + 20)
    assert "CLS attends" not in lead.inner_text()
    page.wait_for_url("**query=*")
    page.keyboard.press("Escape")
    assert lead.inner_text() == first
    until(page, "!location.search.includes('query=')")
    quiet(page)


@pytest.mark.sweep
def test_a_pin_is_of_its_input(page):
    open_address(page, "?query=20")
    page.locator(".film .point", has_text="Row 3, column 4 looks").wait_for()
    give(page, jpeg(), "mine.jpg")
    page.wait_for_url("**/?file=mine.jpg")
    page.get_by_text("Your photo: mine.jpg").wait_for()
    page.locator(".film .point", has_text="CLS looks most at").wait_for()
    wait_until_settled(page)
    page.get_by_role("link", name="Attention").click()
    page.wait_for_url("**/attention**")  # the Overview has the same words
    page.locator(".lead", has_text="CLS attends most to").wait_for()
    page.evaluate("history.go(-2)")
    page.wait_for_url("**/?query=20")
    page.locator(".film .point", has_text="Row 3, column 4 looks").wait_for()
    quiet(page)
