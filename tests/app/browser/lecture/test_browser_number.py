"""Following one number in a real browser: on Trace and on Attention, by pointer and by keyboard, back and forward."""

import re

import pytest
from playwright.sync_api import expect

import tracer
from tests.app.browser.test_browser import SLOW, quiet, until, wait_until_settled
from tests.support.sweeping import cases

pytestmark = pytest.mark.browser
SCORES = "block1.attention.scores"


@pytest.fixture(autouse=True)
def patience(page) -> None:
    page.set_default_timeout(SLOW)


def open_address(page, address: str) -> None:
    page.goto(address)
    page.locator(".stepper .equation .katex").first.wait_for()
    wait_until_settled(page)


def wait_for_cell(page, place: str) -> None:
    """Wait until the panel shows this cell."""
    id, _, index = place.partition(":")
    code = f"trace.cell('{id}', ({', '.join(index.split('.'))}{',' if '.' not in index else ''}))"
    expect(page.locator(".follow .code code")).to_have_text(code)


def value(page) -> float:
    return float(page.locator(".follow .value").inner_text().replace("−", "-"))


def test_a_click_on_a_cell_leads_back_to_a_pixel_and_the_trail_returns(page, plain):
    open_address(page, f"/trace?step={SCORES}")
    cells = page.locator(".stepper .cells")
    box = cells.bounding_box()
    cells.click(position={"x": box["width"] * 2.5 / 65, "y": box["height"] * 5.5 / 65})
    wait_for_cell(page, f"{SCORES}:0.0.5.2")
    assert value(page) == pytest.approx(plain.value(SCORES)[0, 0, 5, 2].item(), rel=1e-6)
    page.wait_for_url(f"**cell={SCORES}%3A0.0.5.2*")
    way, cell = [], plain.cell(SCORES, (0, 0, 5, 2))
    while cell.terms:  # a number of the run, and no weight, with the largest contribution
        key = next(key for key in cell.terms if not key.startswith("parameter"))
        cell = cell.back(key)
        place = f"{cell.id}:{'.'.join(map(str, cell.index))}"
        page.locator(".follow .back button.term").filter(has_text=_printed_index(cell.index)).first.click()
        wait_for_cell(page, place)
        assert value(page) == pytest.approx(cell.value, rel=1e-6)
        way.append(place)
    assert way[-1].startswith("input image") and "a number of the photo" in page.locator(".follow .ends").inner_text()
    expect(page.locator(".follow .trail li")).to_have_count(len(way) + 1)
    page.go_back()
    wait_for_cell(page, way[-2])
    expect(page.locator(".follow .trail li")).to_have_count(len(way))
    page.locator(".follow .trail button").first.click()
    wait_for_cell(page, f"{SCORES}:0.0.5.2")
    expect(page.locator(".follow .trail li")).to_have_count(1)
    expect(page.locator(".stepper .title")).to_have_text("Scores")
    page.get_by_role("button", name="Close").click()
    expect(page.locator(".follow")).not_to_be_visible()
    until(page, "!location.search.includes('cell=')")
    quiet(page)


def _printed_index(index: tuple[int, ...]) -> str:
    """Return an index as displayed, counted from 1."""
    return f"[{', '.join(str(at + 1) for at in index)}]"


@pytest.mark.sweep
def test_a_click_on_a_term_goes_on_and_the_step_follows(page, plain):
    open_address(page, f"/trace?step={SCORES}&cell={SCORES}:0.1.5.2")
    wait_for_cell(page, f"{SCORES}:0.1.5.2")
    numbers = plain.cell(SCORES, (0, 1, 5, 2)).terms["block1.attention.query"]
    largest = max(numbers, key=lambda number: abs(number.share))
    page.locator(".follow .back button.term").first.click()
    wait_for_cell(page, "block1.attention.query:" + ".".join(map(str, largest.index)))
    expect(page.locator(".stepper .title")).to_have_text("Queries")
    expect(page.locator(".stepper .lead output")).to_have_text("2")
    expect(page.locator(".stepper .cell-mark")).to_be_visible()
    page.wait_for_url("**step=block1.attention.query*")
    page.go_back()
    wait_for_cell(page, f"{SCORES}:0.1.5.2")
    expect(page.locator(".stepper .title")).to_have_text("Scores")
    page.locator(".follow .users button").first.click()  # forward: the weights of its row
    wait_for_cell(page, "block1.attention.weights:0.1.5.0")
    page.reload()
    wait_for_cell(page, "block1.attention.weights:0.1.5.0")
    quiet(page)


def test_the_keyboard_alone_points_follows_and_returns(page, plain):
    open_address(page, "/trace?step=block1.mlp.hidden")
    cells = page.locator(".stepper .cells")
    cells.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    wait_for_cell(page, "block1.mlp.hidden:0.2.1")
    expect(page.locator(".follow h2")).to_be_focused()
    page.locator(".follow .back button.term").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator(".follow .trail li")).to_have_count(2)
    page.keyboard.press("Backspace")
    wait_for_cell(page, "block1.mlp.hidden:0.2.1")
    expect(page.locator(".stepper .title")).to_have_text("Expand")
    page.keyboard.press("Escape")
    expect(page.locator(".follow")).not_to_be_visible()
    page.keyboard.press("ArrowRight")  # the canvas has the focus again: its arrows stay its own
    assert "step=block1.mlp.hidden" in page.url
    quiet(page)


def test_the_cell_that_is_pointed_at_has_its_exact_value(page, plain):
    open_address(page, f"/trace?step={SCORES}")
    cells = page.locator(".stepper .cells")
    box = cells.bounding_box()
    cells.hover(position={"x": box["width"] * 20.5 / 65, "y": box["height"] * 26.5 / 65})
    number = plain.value(SCORES)[0, 0, 26, 20].item()
    expect(page.locator(".stepper .read")).to_have_text(re.compile(r"^query 27, key 21: −?[\d.]+$"))
    shown = page.locator(".stepper .read").inner_text().partition(": ")[2].replace("−", "-")
    assert float(shown) == pytest.approx(number, rel=1e-7)


@pytest.mark.sweep
def test_the_matrix_on_attention_leads_to_the_weights_and_a_mean_says_so(page):
    trace = tracer.load("nanogpt").trace()
    page.goto("/attention?model=nanogpt&block=2&head=1&scale=log")
    wait_until_settled(page)
    grid = page.locator(".grid")
    box, size = grid.bounding_box(), trace.attentions[0].keys
    grid.click(position={"x": box["width"] * 3.5 / size, "y": box["height"] * 9.5 / size})
    wait_for_cell(page, "block2.attention.weights:0.1.9.3")
    weight = trace.attention(layer=1, head=1)[0, 9, 3].item()
    assert value(page) == pytest.approx(weight, rel=1e-5)
    page.get_by_role("button", name="Close").click()
    page.goto("/attention?model=nanogpt&block=2&head=mean&query=9&cell=block2.attention.weights:0.0-3.9.3")
    expect(page.locator(".follow .mean")).to_have_text(re.compile("^This is a mean of 4 cells"))
    mean = trace.attention(layer=1)[0, :, 9, 3].double().mean().item()
    assert value(page) == pytest.approx(mean, rel=1e-6)
    quiet(page)


@pytest.mark.sweep
@pytest.mark.parametrize("width", cases((1400, 1024, 390), (390,)))
def test_the_panel_fits_and_leaves_the_framed_cell_in_view(page, width):
    page.set_viewport_size({"width": width, "height": 768})
    open_address(page, f"/trace?step={SCORES}&cell={SCORES}:0.1.5.2")
    wait_for_cell(page, f"{SCORES}:0.1.5.2")
    panel, mark = page.locator(".follow").bounding_box(), page.locator(".stepper .cell-mark").bounding_box()
    assert panel["x"] >= 0 and panel["x"] + panel["width"] <= width and panel["y"] + panel["height"] <= 768.5
    covers = mark["x"] + mark["width"] > panel["x"] and mark["y"] + mark["height"] > panel["y"]
    assert not covers and mark["y"] >= 0
    assert page.evaluate(
        "[...document.querySelectorAll('.follow button')].every((b) => b.offsetHeight >= 24 && b.offsetWidth >= 24)"
    )


@pytest.mark.sweep
def test_an_address_that_names_no_cell_is_answered_in_a_sentence(page):
    open_address(page, f"/trace?step={SCORES}&cell=block9.nothing:0.1")
    expect(page.locator(".follow .problem")).to_contain_text("No step 'block9.nothing' in this trace")
