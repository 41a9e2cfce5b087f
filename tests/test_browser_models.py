"""Models of text, and of image and text, in a real browser: chosen, given a text, their masks proven."""

import pytest
from test_browser import SLOW, go, quiet, settled

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def patience(page) -> None:
    page.set_default_timeout(SLOW)


def choose(page, model: str) -> None:
    """Chooses a model in the sidebar, by keyboard."""
    box = page.get_by_test_id("stSelectbox").get_by_role("combobox")
    box.fill(model)
    page.get_by_role("option", name=model, exact=True).click()
    settled(page)


def test_a_text_goes_in_and_the_next_character_comes_out(page):
    go(page)
    choose(page, "nanogpt")
    page.get_by_role("heading", name="Most probable next").wait_for()
    box = page.get_by_role("textbox", name="Your text")
    box.fill("To be, or not to b")
    box.press("Control+Enter")
    page.get_by_role("heading", name="Most probable next: 'e'").wait_for()
    assert page.get_by_text("To be, or not to b").first.is_visible()
    quiet(page)


def test_a_scene_goes_in_and_its_caption_comes_out(page):
    go(page)
    choose(page, "vit-text")
    page.get_by_role("heading", name="The caption: a large red circle left of a small blue square").wait_for()
    quiet(page)


def test_the_mask_is_drawn_and_both_proofs_agree(page):
    go(page, "Mask")
    page.get_by_role("heading", name="The mask that ran: bidirectional").wait_for()
    choose(page, "vit-text")
    page.get_by_role("heading", name="The mask that ran: causal").wait_for()
    page.get_by_text("The mask predicts exactly these positions.").wait_for()
    page.get_by_text("prefix", exact=True).click()
    page.get_by_role("heading", name="The mask that ran: prefix").wait_for()
    page.get_by_text("Nothing moved that the mask closes off").or_(
        page.get_by_text("The mask predicts exactly these positions.")
    ).first.wait_for()
    settled(page)
    page.locator(".js-plotly-plot").nth(1).wait_for()
    row = page.get_by_role("heading", name="The row of").inner_text()
    query = page.get_by_role("slider", name="Query")
    query.focus()
    query.press("ArrowRight")
    page.get_by_role("heading", name=row, exact=True).wait_for(state="detached")
    quiet(page)


def test_a_word_points_at_the_patches_it_speaks_of(page):
    go(page)
    choose(page, "vit-text")
    page.get_by_role("link", name="Attention").click()
    page.get_by_role("heading", name="attend to").first.wait_for()
    page.locator("canvas").first.wait_for()
    page.locator(".js-plotly-plot").first.wait_for()
    quiet(page)
