"""First page of a new visitor, in a real browser: the bytes on the wire, and the screen meanwhile."""

import pytest
from playwright.sync_api import expect

from tests.app.browser.test_browser import FILM, SLOW, quiet, until, wait_until_settled

pytestmark = pytest.mark.browser
MOST = 1_800_000
"""Bytes on the wire: half of what there are is a script for charts, of which the first page has none."""


@pytest.fixture
def fresh(browser, app_server):
    """Page of a visitor whose browser has cached nothing of the app yet; `page.asked` holds its requests."""
    context = browser.new_context(base_url=app_server, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(SLOW)
    page.asked = []
    page.on("requestfinished", lambda request: page.asked.append(request))
    yield page
    context.close()


def test_the_first_load_is_small_and_asks_for_no_chart(fresh):
    fresh.goto("/", wait_until="commit")
    early = fresh.locator("#first img")
    early.wait_for()
    until(fresh, "document.fonts.status === 'loaded'")
    before = early.bounding_box()
    fresh.locator(".film[data-beat='12']").wait_for()
    early.wait_for(state="detached")
    wait_until_settled(fresh)
    stage = fresh.locator(".film .stage").bounding_box()
    photo = fresh.evaluate(f"{FILM}.film.place().photo")
    after = {"x": stage["x"] + photo["x"], "y": stage["y"] + photo["y"], "width": photo["w"], "height": photo["h"]}
    assert all(abs(before[side] - after[side]) < 3 for side in before), (before, after)
    fresh.wait_for_load_state("networkidle")
    sizes = {request.url: request.sizes() for request in fresh.asked}
    sent = {url: size["responseBodySize"] + size["responseHeadersSize"] for url, size in sizes.items()}
    assert not [url for url in sent if "Plotly" in url or "DataFrame" in url]
    assert sum(sent.values()) < MOST, sorted(sent.items(), key=lambda one: -one[1])[:5]


ALERT = "document.querySelector('[data-testid=stMain]').insertAdjacentHTML('beforeend', '<b data-testid=stAlert></b>')"


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_heading_and_photo_are_there_before_the_server_says_anything(page, theme):
    """And they go where something else is to be read, or a key is pressed."""
    page.set_default_timeout(SLOW)
    page.route_web_socket("**/*", lambda socket: None)
    page.add_init_script(f"""localStorage.setItem("stActiveTheme-/-v2", '"{theme}"')""")
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/")
    page.locator("#first h1", has_text="Every step from photo to answer").wait_for()
    until(page, "document.querySelector('#first img').naturalWidth > 100")
    ground = page.locator("#first").evaluate("one => getComputedStyle(one).backgroundColor")
    assert ground == {"Light": "rgb(255, 255, 255)", "Dark": "rgb(14, 17, 22)"}[theme]
    page.get_by_test_id("stMain").wait_for(state="attached")
    page.keyboard.press("Tab") if theme == "Light" else page.evaluate(ALERT)
    page.locator("#first").wait_for(state="detached")
    page.goto("/?model=nanogpt")
    page.locator("#root").wait_for(state="attached")
    expect(page.locator("#first")).to_have_count(0)  # it would be another model's
    quiet(page)
