"""Attention page in a real browser: one tower after the other, and keys instead of a mouse."""

import re
import time
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

import tracer
from tests.app.browser.test_browser import SLOW, quiet, wait_until_settled
from tests.app.browser.test_browser_models import choose as choose_model
from tests.app.browser.test_browser_models import go
from tests.support.oracle import open_address

pytestmark = pytest.mark.browser

PIXELS = "canvas => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]"
GREY = np.array([0x7A, 0x84, 0x94])


@pytest.fixture(autouse=True)
def patience(page) -> None:
    page.set_default_timeout(SLOW)


@pytest.mark.sweep
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
    assert "4: 'circle' attends most to" in page.locator(".lead").inner_text()
    page.get_by_role("radio", name="image").click()
    cls.wait_for()
    assert page.locator(".photo").is_visible() and page.locator(".grid").is_hidden()
    assert page.locator(".closed-note").is_hidden()
    quiet(page)


@pytest.mark.sweep
def test_the_matrix_is_used_with_keys_and_its_focus_is_seen(page):
    page.goto("/attention?model=transformer")
    page.locator(".lead").wait_for()
    wait_until_settled(page)
    page.get_by_role("radio", name="linear").focus()
    page.keyboard.press("Tab")
    assert page.locator(".equations button").evaluate("button => button.matches(':focus-visible')")
    page.keyboard.press("Tab")
    grid = page.locator(".grid")
    assert grid.evaluate("grid => grid.matches(':focus-visible') && getComputedStyle(grid).outlineStyle") == "solid"
    page.keyboard.press("ArrowUp")
    assert "15: 'n' attends most to" in page.locator(".lead").inner_text()
    assert "15: 'n' attends most to" in page.locator(".map .live").inner_text()
    assert "15: 'n'" in grid.get_attribute("aria-label")
    page.keyboard.press("p")
    page.get_by_test_id("stSidebar").wait_for(state="hidden")
    page.keyboard.press("ArrowUp")  # presented, the keys that nobody takes are the map's
    page.locator(".lead", has_text="14: ").wait_for()


def test_a_row_of_the_matrix_is_pinned_by_a_click_and_its_axes_are_named(page):
    page.goto("/attention?model=transformer")
    page.locator(".lead").wait_for()
    wait_until_settled(page)
    assert page.locator(".axis").all_inner_texts() == ["query (row)", "key (column)"]
    grid, lead = page.locator(".grid"), page.locator(".lead")

    def at(row: int) -> tuple[float, float]:
        box = grid.bounding_box()  # a click opens a panel, which the page makes room for
        return box["x"] + 5, box["y"] + (row + 0.5) * box["height"] / 16

    page.mouse.move(*at(2))
    assert " 3: " in lead.inner_text()
    page.mouse.click(*at(3))
    page.get_by_role("dialog", name="One number, followed").wait_for()
    wait_until_settled(page)  # the panel moves the matrix while it opens

    def read_row(row: int) -> str:
        page.mouse.move(*at(row))
        return page.locator(".map .cell").inner_text()

    end = time.monotonic() + SLOW / 1000
    while "10: " not in read_row(9):  # the cell below the pointer is still read out, wherever the panel moved it
        assert time.monotonic() < end
    assert " 4: " in lead.inner_text() and ", pinned" in grid.get_attribute("aria-label")
    page.mouse.click(*at(9))
    page.mouse.move(*at(3))
    assert " 10: " in lead.inner_text()
    page.mouse.click(*at(9))
    page.mouse.move(*at(3))
    assert " 4: " in lead.inner_text()


@pytest.mark.sweep
def test_numbers_of_a_colour_bar_stand_at_their_places(page):
    page.goto("/attention?model=transformer")
    page.locator(".lead").wait_for()
    wait_until_settled(page)
    page.get_by_role("radio", name="linear").check()
    bar = page.locator(".tokens .gradient").bounding_box()
    for place, tick in list(enumerate(page.locator(".tokens .ticks span").all()))[1:-1]:
        box = tick.bounding_box()
        assert box["x"] + box["width"] / 2 == pytest.approx(bar["x"] + place / 4 * bar["width"], abs=1)


@pytest.mark.sweep
def test_rollout_is_named_and_uses_all_blocks(page):
    page.goto("/attention?model=nanogpt")
    page.locator(".lead").wait_for()
    wait_until_settled(page)
    blocks, share = page.get_by_role("group", name="Block"), page.locator(".tokens .share")
    assert share.inner_text().startswith("Attention weight")
    page.get_by_role("radio", name="rollout").check()
    assert share.inner_text().startswith("This is rollout (Abnar and Zuidema 2020), not an attention weight")
    count = blocks.get_by_role("radio").count()
    assert blocks.locator("legend").inner_text() == f"Block: rollout uses all {count}"
    equation = page.locator(".map .equations p")
    assert equation.locator(".proof").inner_text() == "Rollout: ✓ verified on this run"
    assert equation.locator("math").count() == 2  # the product over the blocks, and what it is called
    assert equation.get_by_role("button").count() == 0  # none of the run's steps is a rollout
    expect(blocks.locator("input:checked")).to_have_count(0)
    said, lead = page.locator(".map").inner_text(), page.locator(".lead")
    assert "attends" not in said and "attention is propagated through all" in said
    last = len(tracer.load("nanogpt").inputs().words)
    assert lead.inner_text().startswith(f"By rollout over all {count} blocks: what arrives at {last}: ")
    assert page.locator(".axis").all_inner_texts() == ["after the last block (row)", "input (column)"]
    page.get_by_role("radio", name="mean").check()
    assert "attends most to" in lead.inner_text()
    assert blocks.locator("input:checked").count() == 1 and blocks.locator("legend").inner_text() == "Block"
    blocks.get_by_role("radio", name="1", exact=True).check()
    page.get_by_role("button", name="Attention weights: ✓ verified").click()
    page.get_by_role("heading", name="Step by step").wait_for()
    page.wait_for_url("**/trace?*step=block1.attention.weights*")


def test_attention_of_a_masked_encoder_lies_on_the_patches_that_it_was_given(page):
    """The cells in grey are the hidden ones, by the model itself; they are no queries; the photo is covered there."""
    visible = set(tracer.load("mae").inputs()[1][0].tolist())
    page.set_viewport_size({"width": 1280, "height": 1400})
    page.goto("/attention?model=mae")
    lead, legend = page.locator(".lead"), page.locator(".covered span")
    lead.wait_for()
    wait_until_settled(page)
    page.mouse.move(0, 0)
    heat = np.array(page.locator("canvas.heat").evaluate(PIXELS)).reshape(64, 4)
    cover = np.array(page.locator("canvas.cover").evaluate(PIXELS)).reshape(64, 4)
    hidden = set((cover[:, :3] == GREY).all(1).nonzero()[0].tolist())
    assert not heat[sorted(hidden), 3].any()
    assert hidden == set((cover[:, 3] == 255).nonzero()[0].tolist()) == set(range(64)) - visible
    assert legend.inner_text() == "32 of 64 patches were hidden from the encoder: no token here, no attention"
    box = page.locator("canvas.heat").bounding_box()

    def point(patch: int) -> None:
        row, column = divmod(patch, 8)
        page.mouse.move(box["x"] + (column + 0.5) * box["width"] / 8, box["y"] + (row + 0.5) * box["height"] / 8)

    before = lead.inner_text()
    for patch in sorted(hidden)[::5]:
        point(patch)
        place = f"Row {patch // 8 + 1}, column {patch % 8 + 1}"
        assert legend.inner_text() == f"{place} was hidden from the encoder: no token, so no query."
        assert lead.inner_text() == before
    for token, patch in list(enumerate(sorted(visible)))[::5]:
        point(patch)
        assert f"patch {patch + 1} (row {patch // 8 + 1}, column {patch % 8 + 1}) attends" in lead.inner_text()
        assert page.get_by_role("spinbutton", name="Token").input_value() == str(token + 1)
        frame = page.locator(".query").bounding_box()
        assert frame["x"] == pytest.approx(box["x"] + patch % 8 * box["width"] / 8, abs=1)
        assert frame["y"] == pytest.approx(box["y"] + patch // 8 * box["height"] / 8, abs=1)
    page.get_by_role("radio", name="Photo", exact=True).check()
    photo = np.asarray(Image.open(BytesIO(page.locator(".photo").screenshot())).convert("RGB"), int)
    side = photo.shape[0] // 8
    for patch in range(64):
        middle = photo[patch // 8 * side + 8 :, patch % 8 * side + 8 :][: side - 16, : side - 16]
        assert (abs(middle - GREY).max() <= 2) == (patch in hidden)
    quiet(page)


@pytest.mark.sweep
def test_keys_and_numbers_skip_hidden_patches(page):
    visible = set(tracer.load("mae").inputs()[1][0].tolist())
    page.goto("/attention?model=mae")
    lead, column = page.locator(".lead"), page.get_by_role("spinbutton", name="Column")
    lead.wait_for()
    wait_until_settled(page)
    page.mouse.move(0, 0)
    row = next(r for r in range(8) if {8 * r + c in visible for c in range(8)} == {True, False})
    seen = [c for c in range(8) if 8 * row + c in visible]
    gap = next(c for c in range(8) if c not in seen)
    token = page.get_by_role("spinbutton", name="Token")
    token.fill(str(sorted(visible).index(8 * row + seen[0]) + 1))
    token.press("Enter")
    for at in seen[1:]:
        page.locator(".photo").press("ArrowRight")
        assert f"(row {row + 1}, column {at + 1}) attends" in lead.inner_text()
    page.locator(".photo").press("ArrowRight")  # nothing further on: it stays
    assert f"(row {row + 1}, column {seen[-1] + 1}) attends" in lead.inner_text()
    column.fill(str(gap + 1))
    column.press("Enter")
    hidden = f"Row {row + 1}, column {gap + 1} was hidden from the encoder: no token, so no query."
    assert page.locator(".map .status").inner_text() == f"{hidden} Kept {seen[-1] + 1}."
    assert column.input_value() == str(seen[-1] + 1)


@pytest.mark.sweep
def test_the_decoder_marks_its_mask_tokens(page):
    visible = set(tracer.load("mae").inputs()[1][0].tolist())
    page.goto("/attention?model=mae")
    page.get_by_role("radio", name="decoder").click()
    page.get_by_text("a mask token, one learned vector, stands for each").wait_for()
    wait_until_settled(page)
    token, lead = page.get_by_role("spinbutton", name="Token"), page.locator(".lead")
    assert page.locator(".photo .stroke").count() == 64 - len(visible)
    for patch in (min(visible), min(set(range(64)) - visible)):
        token.fill(str(patch + 1))
        token.press("Enter")
        assert ("mask token" in lead.inner_text()) == (patch not in visible)
    quiet(page)


@pytest.mark.sweep
def test_rollout_over_one_block_says_so(page):
    page.goto("/attention?model=transformer")
    page.locator(".lead").wait_for()
    wait_until_settled(page)
    page.get_by_role("radio", name="rollout").check()
    assert (
        page.locator(".lead").inner_text() == "By rollout over the one block: what arrives at 16: 'e' comes most from:"
    )
    assert "propagated through the one block. " in page.locator(".tokens .share").inner_text()


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.sweep)])
def test_the_bars_under_the_weights_are_seen_in_both_themes(page, scheme):
    page.emulate_media(color_scheme=scheme)
    page.goto("/attention?model=nanogpt")
    page.locator(".lead").wait_for()
    wait_until_settled(page)
    item = np.asarray(Image.open(BytesIO(page.locator(".top li").last.screenshot())).convert("RGB"))
    bar, track = item[-3, 20], item[-3, -20]
    lighter, darker = sorted((luminance(bar), luminance(track)), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) >= 4.5


def luminance(rgb: np.ndarray) -> float:
    """Return the relative luminance of an sRGB colour, 0 to 1 (WCAG 2.2)."""
    shares = [int(channel) / 255 for channel in rgb]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return sum(weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.sweep
def test_the_rule_from_patch_to_pixels_is_that_of_the_patch_that_was_cut(page):
    model = tracer.load("vit")
    (image,), patches = model.inputs(), model.trace().value("patches")
    page.goto("/attention?model=vit&query=38")
    rule, pixels = page.locator(".rule"), page.locator(".pixels")
    rule.wait_for()
    wait_until_settled(page)
    for key in ("", "ArrowDown", "ArrowRight"):
        if key:
            page.locator(".photo").press(key)
        n = 38 + 8 * (key != "") + (key == "ArrowRight")
        row, column = (n - 1) // 8 + 1, (n - 1) % 8 + 1
        assert rule.inner_text() == (
            f"Patch n = {n} of 64, with w = W/P = 8 patches in a row: row ⌊(n − 1)/w⌋ + 1 = ⌊{n - 1}/8⌋ + 1 = {row}, "
            f"column (n − 1) mod w + 1 = {n - 1} mod 8 + 1 = {column}."
        )
        sides = re.findall(r"(rows|columns) (\d+)·P \+ 1 = (\d+) to (\d+)·P = (\d+)", pixels.inner_text())
        (_, *rows), (_, *columns) = [(name, *map(int, numbers)) for name, *numbers in sides]
        assert [rows[0] + 1, rows[2], columns[0] + 1, columns[2]] == [row, row, column, column]
        cut = image[0, :, rows[1] - 1 : rows[3], columns[1] - 1 : columns[3]]
        assert cut.permute(1, 2, 0).flatten().equal(patches[0, n - 1])
    page.get_by_role("button", name="Use CLS as the query").click()
    assert rule.inner_text() == pixels.inner_text() == ""
    quiet(page)


def test_a_click_among_all_heads_opens_that_head_in_the_map(page):
    page.goto("/attention?model=vit")
    page.get_by_role("button", name=re.compile("^Block 3, head 2: ")).click()
    page.get_by_text("Block 3, head 2: CLS attends most to:", exact=True).wait_for()
    page.wait_for_url("**block=3&head=1*")
    assert page.get_by_role("radio", name="2", exact=True).last.is_checked()
    quiet(page)


@pytest.mark.sweep
def test_a_click_among_the_heads_of_many_photos_chooses_that_head_for_the_charts(page):
    page.goto("/attention?model=segmenter&over=samples")
    page.get_by_role("button", name=re.compile("^Block 2, head 2: ")).click()
    page.wait_for_url("**photos_head=2.1*")
    page.get_by_text("Block 2, head 2, photo by photo").wait_for()
    expect(page.get_by_role("button", name=re.compile("^Block 2, head 2: "))).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name=re.compile("^Open .+")).first.click()
    page.wait_for_url("**block=2&head=1*")
    assert "photos_head=" not in page.url and "over=" not in page.url
    quiet(page)


def test_a_head_that_is_off_attends_to_nothing_and_the_others_are_told_as_ever(page):
    open_address(page, "attention?change=block2.attention.weights=drop_heads(2)&block=2&head=2", ".lead")
    habits, share = page.locator(".habits"), page.locator(".over .share")
    expect(habits).to_contain_text("head 3 of block 2 attends to nothing: every weight is 0.")
    expect(share).to_have_text("Every attention weight is 0.")
    bar, equations = page.locator(".over .bar"), page.locator(".map .equations button")
    expect(bar).to_be_hidden()
    said = ("Attention weights: ✓ verified on this run", "Attention weights, changed: ✓ verified on this run")
    expect(equations).to_have_text([re.compile(f"^{each}") for each in said])
    page.locator("[data-group=view]").get_by_role("radio", name="mean").check()  # rows of it sum to 3/4
    expect(habits).to_be_hidden()
    expect(share).to_contain_text("not every row")
    expect(bar).to_be_visible()
    page.locator("[data-group=view]").get_by_role("radio", name="1", exact=True).check()
    expect(habits).to_contain_text("head 1 of block 2 spreads its weight over about")
    expect(share).to_contain_text("each row of the matrix (one query) sums to 1")
    quiet(page)


def test_a_row_of_equal_weights_lists_no_tokens(page):
    open_address(page, "attention?change=block2.attention.scores=zero&block=2&head=1", ".lead")
    expect(page.locator(".lead")).to_contain_text("attends equally to all 65 tokens that it may attend to.")
    expect(page.locator(".top li")).to_have_count(0)
    quiet(page)
