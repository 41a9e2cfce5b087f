"""Models of text, and of image and text, in a real browser: chosen, given a text, their masks verified."""

import re

import pytest
from playwright.sync_api import expect

from tests.app.browser.test_browser import FIT, SLOW, go, quiet, until, wait_until_settled

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def patience(page) -> None:
    page.set_default_timeout(SLOW)


def choose(page, model: str) -> None:
    """Choose a model in the sidebar, by keyboard."""
    box = page.get_by_test_id("stSelectbox").get_by_role("combobox")
    box.fill(model)
    page.get_by_role("option", name=model, exact=True).click()
    wait_until_settled(page)


def test_a_text_goes_in_and_the_next_character_comes_out(page):
    go(page)
    choose(page, "nanogpt")
    page.get_by_role("heading", name=re.compile("^Next: o, ")).wait_for()
    box = page.get_by_role("textbox", name="Your text")
    box.fill("To be, or not to b")
    box.press("Control+Enter")
    page.get_by_role("heading", name=re.compile("^Next: e, ")).wait_for()
    tokens = page.locator(".film .token option").all_text_contents()
    assert tokens == [f"{place}: {letter}" for place, letter in enumerate("To␣be,␣or␣not␣to␣b", 1)]
    quiet(page)


@pytest.mark.sweep
def test_a_scene_goes_in_and_its_caption_comes_out(page):
    go(page)
    choose(page, "vit-text")
    page.get_by_role("heading", name="The caption", exact=True).wait_for()
    sentence = page.locator(".film .sentence").inner_text()
    assert sentence.startswith("“a large red circle left of a small blue square”. What comes next is “<end>”, with ")
    page.get_by_role("tab", name="Behind each word").click()
    lit = page.locator("svg.spotlight")
    lit.scroll_into_view_if_needed()
    before = lit.locator("rect[stroke]").bounding_box()
    page.get_by_role("radio", name="blue₉").click()
    page.get_by_text("In the row that predicts “blue”").wait_for()
    wait_until_settled(page)
    after, picture = lit.locator("rect[stroke]").bounding_box(), lit.bounding_box()
    assert after["x"] > before["x"] + picture["width"] / 8  # from the circle on the left to the square on the right
    quiet(page)


@pytest.mark.sweep
def test_what_it_wrote_leads_to_the_step_that_wrote_it(page):
    go(page)
    choose(page, "nanogpt")
    page.get_by_role("button", name="Write the next 24 characters").click()
    third = page.get_by_role("radio", name="₃", exact=False).first
    third.click()
    page.get_by_text("character 3 of 24").wait_for()
    wait_until_settled(page)
    text = page.get_by_role("textbox", name="Your text").input_value()
    assert text.startswith("ROMEO:\nMy heart is full of l") and len(text) == 30
    page.get_by_role("link", name="Mask").click()
    page.get_by_role("heading", name="The mask of this run: causal").wait_for()
    expect(page.get_by_role("slider", name="Query")).to_have_attribute("max", str(len(text) - 1))
    quiet(page)


@pytest.mark.sweep
def test_each_tower_has_its_own_map(page):
    go(page, "Attention")
    choose(page, "mae")
    page.get_by_text("decoder", exact=True).click()
    page.locator(".python code", has_text='part="decoder").mean(1)').wait_for()
    page.locator("canvas.heat").wait_for()
    quiet(page)


@pytest.mark.sweep
def test_the_mask_is_drawn_and_both_proofs_agree(page):
    go(page, "Mask")
    page.get_by_role("heading", name="The mask of this run: none").wait_for()
    choose(page, "vit-text")
    page.get_by_role("heading", name="The mask of this run: causal").wait_for()
    page.get_by_text("The mask predicts exactly these positions.").wait_for()
    page.get_by_role("radio", name="prefix").click()
    page.get_by_role("heading", name="The mask of this run: prefix").wait_for()
    page.get_by_text("No output that the mask closes off changed").or_(
        page.get_by_text("The mask predicts exactly these positions.")
    ).first.wait_for()
    wait_until_settled(page)
    row = page.get_by_role("heading", name="The row of").inner_text()
    query = page.get_by_role("slider", name="Query")
    query.focus()
    query.press("ArrowRight")
    page.get_by_role("heading", name=row, exact=True).wait_for(state="detached")
    quiet(page)


@pytest.mark.sweep
def test_photo_and_tokens_share_block_head_and_query(page):
    go(page)
    choose(page, "vit-text")
    page.get_by_role("link", name="Attention").click()
    page.get_by_role("heading", name="From token to token").wait_for()
    assert page.get_by_role("group", name="Block").count() == page.get_by_role("group", name="Head").count() == 1
    lead, grid, band = page.locator(".lead"), page.locator(".grid"), page.locator(".band")
    assert "75: 'square' attends most to" in lead.inner_text()  # the last word, which may look at all patches
    token = page.get_by_role("spinbutton", name="Token")
    token.fill("37")
    token.press("Enter")
    grid.focus()
    grid.press("ArrowDown")
    assert "patch 38 (row 5, column 6) attends most to" in lead.inner_text()
    before = band.bounding_box()["y"]
    page.locator(".photo").press("ArrowRight")
    assert "patch 39 (row 5, column 7)" in lead.inner_text() and band.bounding_box()["y"] > before
    red = page.get_by_role("button", name="Use 68: 'red' as the query")
    assert "closed" in red.inner_text()  # a word comes after all patches
    assert "the causal mask that ran" in page.locator(".closed-note").inner_text()
    red.click()
    assert "68: 'red' attends most to" in lead.inner_text() and "closed" not in red.inner_text()
    assert page.locator(".photo .query").is_hidden()
    end = page.locator(".tokens .ticks span").last
    assert end.inner_text().startswith("≥ ")  # the few largest weights don't leave all others black
    page.get_by_role("radio", name="log").check()
    assert end.inner_text() == "100.0\u00a0%"
    quiet(page)


@pytest.mark.sweep
def test_the_matrix_of_a_text_is_readable_and_says_what_is_closed(page):
    go(page)
    choose(page, "nanogpt")
    page.get_by_role("link", name="Attention").click()
    page.get_by_text("closed by the causal mask").wait_for()
    assert page.get_by_role("radio", name="log").is_checked()  # the first row has one cell, of weight 1
    pixel = "(canvas, at) => [...canvas.getContext('2d').getImageData(...at, 1, 1).data].slice(0, 3)"
    canvas = page.locator(".grid canvas")
    assert canvas.evaluate(pixel, [5, 0]) == canvas.evaluate(pixel, [27, 20]) == [0x7A, 0x84, 0x94]
    assert canvas.evaluate(pixel, [0, 5]) != [0x7A, 0x84, 0x94]
    box = page.locator(".grid").bounding_box()
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 0.1 * box["height"])
    assert "closed by the causal mask" in page.locator(".map .cell").inner_text()
    assert "block 4 is layer=3" in page.locator(".python").inner_text()
    labels = page.locator(".map .keys span").all()
    cut = box["y"] + box["height"] + page.locator(".map .keys").bounding_box()["height"] + 6
    assert all(label.bounding_box()["y"] + label.bounding_box()["height"] <= cut for label in labels)
    quiet(page)


@pytest.mark.sweep
def test_no_block_or_head_is_out_of_sight(page):
    page.goto("/attention?model=nanogpt")
    page.locator(".lead").wait_for()
    wait_until_settled(page)
    for width in (1400, 390):
        page.set_viewport_size({"width": width, "height": 900})
        until(page, f"window.innerWidth === {width} && {FIT}")
        for choice in page.locator(".segmented label").all():
            box = choice.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= width


@pytest.mark.sweep
def test_the_mask_is_square_and_nothing_lies_over_it_on_a_phone(page):
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto("/mask?model=vit-text")
    page.get_by_role("heading", name="A second check").wait_for()
    wait_until_settled(page)
    picture = page.locator(".mask .cells").bounding_box()
    assert abs(picture["width"] - picture["height"]) < 2 and picture["width"] > 200
    title = page.get_by_text("key: who is attended to").bounding_box()
    caption = page.get_by_text("It is read from the scores of this run").bounding_box()
    assert 0 < caption["y"] - title["y"] - title["height"] < 60
    heading = page.locator(".mask h3")
    before = heading.inner_text()
    page.get_by_label("Query: the token that attends").press("ArrowRight")
    assert heading.inner_text() != before  # without a server, so at once
    page.locator(".mask .cells").click(position={"x": 1, "y": 1})
    assert heading.inner_text() == "The row of patch 1 (token 1)"
    expect(page.get_by_text("1 of 75 keys are open to this query. The highest weight is that of")).to_have_count(1)
    cell = page.get_by_role("cell", name="a large red circle left of a small blue square")
    assert cell.evaluate("cell => cell.scrollWidth <= cell.clientWidth")
    assert cell.bounding_box()["x"] + cell.bounding_box()["width"] <= 390


def test_a_text_is_written_on_the_front_page_itself(page):
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto("/?model=nanogpt")
    page.get_by_test_id("stMain").get_by_role("button", name="Your text").click()
    page.get_by_test_id("stMain").get_by_role("textbox", name="Your text").fill("ROMEO:")
    page.get_by_role("button", name="Run it").click()
    page.wait_for_url("**text=ROMEO*")
    page.get_by_text("The run in numbers").wait_for()
    quiet(page)
