"""A phone: the sidebar lies over the page, and makes room for messages of the page."""

import pytest

from tests.app.browser.test_browser import FILM, FIT, SLOW, jpeg, until, wait_until_settled
from tests.support.sweeping import cases
from tracer import models

pytestmark = pytest.mark.browser
SIDEBAR = "[data-testid=stSidebar]"
CUT = f"""[...{FILM}.querySelectorAll('.looks, .point .text, .legend .what')]
  .filter((line) => line.scrollWidth > line.clientWidth + 1).map((line) => line.innerText)"""
"""What of the film is cut: buttons under the photo, and the lines that say what colours mean."""


@pytest.fixture
def phone(page):
    """App on a narrow screen, its sidebar unfolded."""
    page.set_default_timeout(SLOW)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/")
    page.get_by_text("The run in numbers").wait_for()
    wait_until_settled(page)
    page.get_by_role("button", name="More").click()
    page.locator(f"{SIDEBAR}[data-collapsed=false]").wait_for()
    page.locator("body[data-phone=ready]").wait_for(state="attached")
    page.set_default_timeout(SLOW / 4)  # all is there now
    return page


def wait_for_folded_sidebar(page) -> None:
    page.locator(f"{SIDEBAR}[data-collapsed=true]").wait_for(state="attached")


def clear(page, box) -> bool:
    """Return whether a box lies below the bar at the top."""
    for _ in range(50):  # what stands above it may still be drawn
        bar, place = page.get_by_test_id("stHeader").bounding_box(), box.bounding_box()
        if place and place["y"] >= bar["y"] + bar["height"]:
            return True
        page.wait_for_timeout(100)
    return False


def name_model(page, name: str) -> None:
    box = page.get_by_role("combobox", name="Model")
    box.click()
    box.fill(name)
    box.press("Enter")


@pytest.mark.parametrize("model", cases(models.names(), ("vit-text",)))
def test_pages_and_input_are_in_the_bar_and_nothing_else_hides(page, model):
    page.set_default_timeout(SLOW)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/" if model == "vit" else f"/?model={model}")
    page.get_by_text("The run in numbers").wait_for()
    wait_until_settled(page)
    bar = page.get_by_role("navigation", name="Pages and input")
    bar.get_by_role("link").first.wait_for()
    page.locator(".film[data-beat]").wait_for()
    page.locator("#first").wait_for(state="detached")
    page.locator(".pipeline").wait_for()
    boxes = [item.bounding_box() for item in bar.locator("a, button").all()]
    assert len(boxes) == (8 if models.takes(model) else 7) and all(
        box["height"] >= 44 and box["x"] + box["width"] <= 390 for box in boxes
    )
    assert page.get_by_test_id("stExpandSidebarButton").is_hidden()
    assert page.evaluate(CUT) == []
    if (hide := page.locator(".film .hide")).is_visible():
        hide.click()
        tools = page.locator(".film .hider")
        assert tools.evaluate("one => one.scrollHeight - one.clientHeight") <= 0
        tools.get_by_role("button", name="Done").click()
    until(page, "document.querySelector('[data-testid=stMain]').scrollHeight < 2500", 8)
    bar.get_by_role("link", name="Mask").click()
    page.get_by_role("heading", name="Which token may attend to which?").wait_for()
    assert ("model=" in page.url) == (model != "vit")


def test_ones_own_photo_is_two_taps_away(page):
    page.set_default_timeout(SLOW)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/")
    page.locator(".film[data-beat]").wait_for()
    for place in (page.locator(".give"), page.get_by_role("navigation", name="Pages and input")):
        with page.expect_file_chooser() as asked:
            place.get_by_role("button", name="photo").click()
        name = f"{'own' if place.get_by_role('link').count() else 'mine'}.jpg"
        asked.value.set_files({"name": name, "mimeType": "image/jpeg", "buffer": jpeg()})
        page.get_by_text(f"Your photo: {name}").wait_for(state="attached")
        wait_until_settled(page)
    wide, high = page.evaluate(f"{FILM}.film.film.photo.photo")
    assert abs(wide / high - 1.5) < 0.02


@pytest.mark.sweep
def test_a_question_folds_the_sidebar_and_stands_above_the_page(phone):
    name_model(phone, "hf:bert")
    phone.get_by_role("button", name="Load it").wait_for()
    wait_for_folded_sidebar(phone)
    assert phone.get_by_role("button", name="Load it").bounding_box()["y"] < 844
    assert "model=hf" in phone.url and "bert" in phone.url


@pytest.mark.sweep
def test_a_refusal_folds_the_sidebar_and_stands_above_the_page(phone):
    name_model(phone, "vitt")
    said = phone.get_by_role("alert").filter(has_text="did you mean 'vit'")
    said.wait_for()
    wait_for_folded_sidebar(phone)
    assert said.bounding_box()["y"] < 300
    assert clear(phone, said)


@pytest.mark.parametrize("width", [390, pytest.param(1400, marks=pytest.mark.sweep)])
def test_what_is_said_above_a_page_lies_clear_of_the_bar(page, width):
    page.set_default_timeout(SLOW)
    page.set_viewport_size({"width": width, "height": 844})
    page.goto("/mask?model=nanogpt")
    page.get_by_text("bidirectional", exact=True).first.click()  # the choice; the table below comes later
    warning = page.get_by_role("alert").filter(has_text="the weights were trained")
    warning.wait_for()
    assert clear(page, warning)
    page.goto("/trace?model=nanogpt&text=^^")
    refusal = page.get_by_role("alert").filter(has_text="contains '^'")
    refusal.wait_for()
    page.get_by_role("heading", name="Step by step").wait_for()
    wait_until_settled(page)
    assert clear(page, refusal)


@pytest.mark.sweep
@pytest.mark.parametrize("model", cases(models.names(), ("llama",)))
def test_nothing_sticks_out_of_the_boxes_of_a_block(page, model):
    page.set_default_timeout(SLOW)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"/?model={model}")
    page.locator(".pipeline details").first.wait_for()
    page.locator(".pipeline details").evaluate_all("all => all.forEach((one) => (one.open = true))")
    wide = "boxes => boxes.filter((box) => box.scrollWidth > box.clientWidth + 1).map((box) => box.innerText)"
    assert page.locator(".pipeline .cell > *").evaluate_all(wide) == []
    assert page.evaluate(FIT)
