"""A projector of 1024 × 768 in a real browser: presenting, the clicker, and a lecture from a photo to an equation."""

import pytest
from playwright.sync_api import expect

from tests.app.browser.test_browser import SLOW, give, jpeg, quiet, until, wait_until_settled

pytestmark = pytest.mark.browser
TOP = "document.querySelector('[data-testid=stMain]').scrollTop"


@pytest.fixture(autouse=True)
def projector(page) -> None:
    page.set_default_timeout(SLOW)
    page.set_viewport_size({"width": 1024, "height": 768})


def on_screen(page, selector: str) -> None:
    """Assert that all of an element is in view."""
    page.locator(selector).first.wait_for()
    box = page.locator(selector).first.bounding_box()
    assert box["y"] >= 0 and box["y"] + box["height"] <= 768 and box["x"] + box["width"] <= 1024.5, (selector, box)


@pytest.mark.parametrize("model", ["vit", pytest.param("nanogpt", marks=pytest.mark.sweep)])
def test_map_scale_block_and_head_are_on_one_screen(page, model):
    page.goto(f"/attention?model={model}")
    wait_until_settled(page)
    assert page.locator("[data-testid=stMain] h1").first.bounding_box()["y"] >= 60  # below the bar at the top
    picture = ".photo" if model == "vit" else ".grid"
    for selector in (picture, "[data-group=layer]", "[data-group=view]", ".lead", *([".over .bar"] * (model == "vit"))):
        on_screen(page, selector)
    page.get_by_role("group", name="Head").get_by_role("radio", name="2", exact=True).check()
    until(page, "location.search.includes('head=1')")  # an address has the index of the code
    expect(page.locator(".lead")).to_contain_text("head 2")
    expect(page.locator(".python .hint")).to_contain_text("On screen everything counts from 1, in Python from 0")
    quiet(page)


def test_rollout_has_its_equation_and_its_proof(page):
    page.goto("/attention?head=rollout")
    wait_until_settled(page)
    expect(page.locator(".equations .proof.verified")).to_have_text("Rollout: ✓ verified on this run")
    assert "∏" in page.locator(".equations math").first.text_content()
    quiet(page)


def test_a_key_a_button_and_the_clicker_lead_from_page_to_page(page):
    page.goto("/attention")
    wait_until_settled(page)
    page.get_by_role("button", name="Present").click()
    until(page, "document.body.hasAttribute('data-present')")
    for _ in range(12):  # screens of this page, then the next one
        before = page.evaluate(TOP)
        page.keyboard.press("PageDown")
        page.wait_for_timeout(300)
        if "/mask" in page.url:
            break
        assert page.evaluate(TOP) > before
    page.wait_for_url("**/mask*")
    heading = page.get_by_role("heading", name="Which token may attend to which?", include_hidden=True)
    heading.wait_for(state="attached")  # what is presented has no heading on screen
    wait_until_settled(page)
    page.keyboard.press("n")
    page.wait_for_url("**/operations*")
    wait_until_settled(page)
    page.get_by_role("button", name="Previous page").click()
    page.wait_for_url("**/mask*")
    wait_until_settled(page)
    assert page.evaluate("document.body.hasAttribute('data-present')")
    page.keyboard.press("Escape")
    until(page, "!document.body.hasAttribute('data-present')")
    quiet(page)


@pytest.mark.sweep
def test_one_click_shows_what_a_mask_would_do_to_this_run(page):
    page.goto("/mask")
    wait_until_settled(page)
    page.get_by_role("button", name="Try a causal mask on this run").click()
    page.get_by_role("heading", name="The mask of this run: causal").wait_for()
    page.get_by_role("heading", name="Before and after the changes").wait_for()
    quiet(page)


class Lecture:
    """A lecture that counts the clicks and keys of each stage, and scrolls nothing."""

    def __init__(self, page):
        self.page, self.count = page, 0

    def click(self, locator) -> None:
        self.count += 1
        box = locator.bounding_box()
        assert box and box["y"] >= 0 and box["y"] + box["height"] <= 768, "it is not on screen"
        locator.click()

    def stage(self, *shown: str) -> None:
        wait_until_settled(self.page)
        for selector in shown:
            on_screen(self.page, selector)
        assert self.count <= 5 and self.page.evaluate(TOP) == 0
        self.count = 0


def test_a_lecture_from_a_photo_to_one_equation_takes_few_clicks_and_no_scroll(page):
    lecture = Lecture(page)
    page.goto("/")
    page.locator(".film .scrubber button").last.wait_for()
    wait_until_settled(page)
    give(page, jpeg((120, 90)), "student.jpg")  # the photo of a student: one drop
    page.get_by_text("Your photo: student.jpg").wait_for()
    lecture.count += 1
    lecture.stage(".film .stage", ".film .scrubber")
    lecture.click(page.locator(".film .scrubber button").nth(1))
    expect(page.locator(".film .scrubber [aria-current]")).to_contain_text("Patches")
    lecture.stage(".film .stage", ".film .scrubber")
    lecture.click(page.get_by_role("link", name="Attention", exact=True))
    page.locator("[data-group=view]").wait_for()
    wait_until_settled(page)
    lecture.click(page.locator("[data-group=view] label").nth(1))
    expect(page.locator(".lead")).to_contain_text("head 2")
    lecture.stage(".photo", ".over .bar", ".lead")
    lecture.click(page.locator("[data-group=view] label").filter(has_text="rollout"))
    expect(page.locator(".equations .proof")).to_have_text("Rollout: ✓ verified on this run")
    lecture.stage(".photo", ".over .bar", ".equations")
    lecture.click(page.get_by_role("link", name="Mask", exact=True))
    lecture.click(page.get_by_role("button", name="Try a causal mask on this run"))
    page.get_by_role("heading", name="The mask of this run: causal").wait_for()
    lecture.stage(".equations")
    lecture.click(page.get_by_role("button", name="Scores: ✓ verified"))
    page.get_by_role("heading", name="Scores").wait_for()
    lecture.stage(".stepper .equation", ".stepper .sizes")
    quiet(page)
