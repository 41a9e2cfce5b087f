"""Operations page and the models of libraries in a real browser: by keyboard, at both widths, in both themes."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the server inherits it

import pytest
from playwright.sync_api import expect

from tests.app.browser.test_browser import FIT, SLOW, quiet, until, wait_until_settled
from tests.support.sweeping import cases

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def patience(page) -> None:
    page.set_default_timeout(SLOW)


def operations(page) -> None:
    page.goto("/")
    page.get_by_text("The run in numbers").wait_for()
    page.get_by_role("link", name="Operations").click()
    page.get_by_role("heading", name="Every operation that ran").wait_for()
    page.locator(".operations table").wait_for()
    wait_until_settled(page)


def zoom(page, level: str) -> None:
    page.get_by_test_id("stButtonGroup").get_by_text(level, exact=True).click()
    page.locator(".operations [role=status]").filter(has_text=level).wait_for()
    wait_until_settled(page)


def rows(page) -> int:
    return page.locator(".operations tbody tr.row").count()


@pytest.mark.sweep
def test_modules_unfold_down_to_their_calls(page):
    operations(page)
    assert page.locator(".operations [role=status]").inner_text() == "76 modules"
    assert rows(page) == 10
    page.get_by_role("button", name="Modules in block1").press("Enter")
    assert rows(page) == 14
    page.get_by_role("button", name="attention", exact=True).click()
    page.get_by_role("heading", name="block1.attention: Attention").wait_for()
    page.get_by_text("The forward hooks and the recorded operations agree").wait_for()
    wait_until_settled(page)
    assert rows(page) == 18 and page.locator(".operations tr.chosen").count() == 1
    page.get_by_role("searchbox", name="Filter").fill("block2")
    page.get_by_text("of 76 modules; the one below is not among them").wait_for()
    page.get_by_role("button", name="See its calls").click()
    page.get_by_text("linear(input, weight, bias)").wait_for()
    quiet(page)


def test_the_table_filters_folds_and_sorts_by_keyboard(page):
    operations(page)
    zoom(page, "ops")
    status = page.locator(".operations [role=status]")
    assert status.inner_text() == "333 ops"
    page.locator(".operations tr.chosen").wait_for()  # the row that is opened below, with its module unfolded
    block = page.get_by_role("button", name="block2", exact=True)
    assert block.get_attribute("aria-expanded") == "false"
    before = rows(page)
    block.press("Enter")
    assert block.get_attribute("aria-expanded") == "true" and rows(page) > before
    block.press("Enter")
    assert rows(page) == before
    page.get_by_role("searchbox", name="Filter").fill("block1 softmax")
    assert status.inner_text() == "1 of 333 ops; the one below is not among them" and rows(page) == 1
    page.get_by_role("searchbox", name="Filter").fill("")
    page.get_by_role("checkbox", name="Fold by module").uncheck()
    assert rows(page) == 333
    page.get_by_role("button", name="FLOP", exact=True).press("Enter")
    head = page.get_by_role("columnheader", name="FLOP")
    assert head.get_attribute("aria-sort") == "descending"
    cells = page.locator(".operations tbody tr.row td:nth-child(6)")
    costs = [int(text.replace(",", "")) for text in cells.all_inner_texts()]
    assert costs == sorted(costs, reverse=True) and costs[0] > 0
    quiet(page)


@pytest.mark.sweep
def test_a_row_opens_below_and_leads_to_its_step(page):
    operations(page)
    zoom(page, "ops")
    page.get_by_role("searchbox", name="Filter").fill("block1 softmax")
    page.locator(".operations tbody tr.row button").press("Enter")
    page.get_by_role("heading", name="_softmax").wait_for()
    wait_until_settled(page)
    assert "op=" in page.url
    expect(page.locator(".operations tr.chosen")).to_have_count(1)
    assert page.locator(".operations [role=status]").inner_text() == "1 of 333 ops"
    page.get_by_role("button", name="Open it into its primitives").click()
    page.get_by_text("PyTorch’s own decomposition, run on the arguments").wait_for()
    page.get_by_role("button", name="Open this step on the page Trace").click()
    page.get_by_role("heading", name="Step by step").wait_for()
    assert "step=block1.attention.weights" in page.url
    quiet(page)


@pytest.mark.sweep
@pytest.mark.parametrize(("scheme", "width"), cases((("light", 390), ("dark", 1400)), {("light", 390)}))
def test_the_page_fits_and_can_be_read(page, width, scheme):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 1400, "height": 900})
    operations(page)
    page.set_viewport_size({"width": width, "height": 900})
    page.locator(".bars").nth(1).wait_for()
    until(page, FIT, 8)
    colours = page.locator(".operations tbody td").first.evaluate(
        "cell => [getComputedStyle(cell).color, getComputedStyle(document.querySelector('.stApp')).backgroundColor]"
    )
    text, ground = (sum(map(int, colour[colour.index("(") + 1 : -1].split(",")[:3])) for colour in colours)
    assert abs(text - ground) > 450
    quiet(page)


@pytest.mark.sweep
def test_a_model_of_a_library_is_typed_agreed_to_and_shown(page):
    page.goto("/")
    page.get_by_text("The run in numbers").wait_for()
    box = page.get_by_test_id("stSidebar").get_by_role("combobox")
    box.fill("torchvision:resnet81")
    box.press("Enter")
    page.get_by_role("alert").filter(has_text="torchvision:resnet81").wait_for()
    assert page.get_by_text("The run in numbers").is_visible()
    box.fill("torchvision:resnet18")
    box.press("Enter")
    page.get_by_text("11.7 million parameters").wait_for()
    assert page.get_by_role("heading", name="The answer:").is_visible()
    page.get_by_role("button", name="Load it").click()
    page.get_by_text("Weights: seeded random weights").wait_for()
    quiet(page)
