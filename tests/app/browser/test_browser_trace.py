"""Trace page in a real browser: it steps by itself, shows the record, and keeps its position."""

import json
import re
import time
from dataclasses import replace

import pytest
import torch
from playwright.sync_api import expect

import tracer
from tests.app.browser.test_browser import FIT, SLOW, give, jpeg, quiet, until, wait_until_settled
from tests.security.test_bounded_files import encode_trace
from tests.support.handmade import sample
from tests.support.sweeping import cases

pytestmark = pytest.mark.browser
READ_STEPPER = """() => {
  const find = (selector) => document.querySelector(`.stepper ${selector}`);
  const latex = (selector) => find(`${selector} annotation`)?.textContent;
  const seen = (selector) => find(selector).checkVisibility() ? find(selector).textContent : null;
  return {
    step: new URLSearchParams(location.search).get("step"), title: seen(".title"), count: seen(".count"),
    latex: latex(".equation"), sizes: latex(".sizes"), verdict: find(".verdict").dataset.verdict,
    code: seen(".code"), picture: find(".cells").ariaLabel, product: Boolean(find("svg.product")?.checkVisibility()),
    ops: [...document.querySelectorAll(".stepper .covered tbody tr")].map((row) => Number(row.cells[0].textContent)),
    listed: find(".list [aria-current=step]").textContent,
  };
}"""
PROOF_DONE = "document.querySelector('.stepper .verdict').textContent.includes('on this run and 3 others')"


@pytest.fixture(autouse=True)
def patience(page) -> None:
    page.set_default_timeout(SLOW)


def open_trace(page, address: str = "/trace") -> None:
    page.goto(address)
    page.locator(".stepper .equation .katex").first.wait_for()
    wait_until_settled(page)


def test_stepping_shows_the_record_and_sends_no_message(page, plain):
    """Every step of a block by the keyboard, the others by the list's search."""
    frames = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda _: frames.append("sent")))
    page.on("websocket", lambda socket: socket.on("framereceived", lambda _: frames.append("received")))
    open_trace(page, "/trace?step=patches")
    until(page, PROOF_DONE)  # nothing else comes by itself
    trace = plain
    buttons = [page.get_by_role("button", name=name).bounding_box() for name in ("Previous", "Next")]
    frames.clear()
    for number, step in enumerate(trace.steps[:19]):
        if number:
            page.keyboard.press("ArrowRight" if number % 2 else "PageDown")
            until(page, f"location.search.endsWith({json.dumps(step.id)})")
        shown = page.evaluate(READ_STEPPER)
        assert (shown["step"], shown["title"]) == (step.id, step.title)
        assert shown["count"] == f"{number + 1} of {len(trace.steps)}"
        assert shown["latex"] == step.latex and shown["sizes"].startswith(step.symbol)
        assert shown["verdict"] == step.verdict and step.source.text.strip() in shown["code"]
        rows, columns = (1, 1, *trace.value(step).shape)[-2:]
        assert f"{rows} rows × {columns} columns" in shown["picture"]
        assert shown["product"] == bool(step.product) and shown["ops"] == list(step.ops)
        assert step.title in shown["listed"] and str(list(step.shape)) in shown["listed"]
    assert [page.get_by_role("button", name=name).bounding_box() for name in ("Previous", "Next")] == buttons
    search = page.get_by_role("searchbox", name="Find a step")
    search.fill("block6.attention.weights")
    search.press("ArrowLeft")  # a key in a box is the box's
    page.locator(".stepper .list button").click()
    until(page, "location.search.endsWith('block6.attention.weights')")
    search.fill("")
    assert page.get_by_role("combobox", name="Part of the model").last.input_value() == "6"
    page.get_by_role("heading", name="Step by step").click()
    page.keyboard.press("ArrowLeft")
    until(page, "location.search.endsWith('block6.attention.scores')")
    page.get_by_role("slider", name="Head").fill("3")
    assert page.locator(".stepper .lead output").inner_text() == "4"  # counted from 1, the slider from 0
    page.wait_for_timeout(500)
    assert frames == []
    page.evaluate("history.back()")
    page.get_by_role("heading", name="Attention weights").wait_for()
    quiet(page)


@pytest.mark.sweep
def test_the_place_is_kept_on_the_way_to_other_pages_photos_and_models(page):
    open_trace(page)
    for name in ("Embed", "CLS in front", "Add positions"):
        page.keyboard.press("ArrowRight")
        page.get_by_role("heading", name=name).wait_for()
    page.get_by_role("link", name="Mask").click()  # at once
    page.get_by_role("heading", name="Which token may attend").wait_for()
    page.get_by_role("link", name="Trace").click()
    page.wait_for_url("**/trace?step=position")
    title = page.get_by_role("heading", name="Add positions")
    title.wait_for()
    wait_until_settled(page)
    before = page.evaluate("history.length")
    give(page, jpeg(), "mine.jpg")
    page.wait_for_url("**/trace?file=mine.jpg&step=position")
    wait_until_settled(page)
    assert title.is_visible() and page.evaluate("history.length") == before + 1
    page.keyboard.press("ArrowLeft")
    page.wait_for_url("**/trace?file=mine.jpg&step=*sequence*")
    page.get_by_role("combobox", name="Model", exact=True).fill("segmenter")
    page.keyboard.press("Enter")
    page.wait_for_url("**/trace?model=segmenter*")
    wait_until_settled(page)
    expect(page.locator(".stepper .count")).not_to_have_text(re.compile(f"of {len(tracer.load('vit').trace().steps)}$"))
    expect(page.locator("[data-stale=true]")).to_have_count(0)
    quiet(page)


@pytest.mark.parametrize(("width", "height"), cases(((1024, 768), (390, 844)), ((390, 844),)))
def test_equation_shape_and_picture_fit_without_scrolling(page, width, height):
    page.set_viewport_size({"width": width, "height": height})
    open_trace(page, "/trace?step=block1.attention.scores")
    for part in (".equation", ".sizes", ".cells", ".ticks.columns"):
        box = page.locator(f".stepper {part}").bounding_box()
        assert box["y"] >= 60 and box["y"] + box["height"] <= height, part
    assert page.locator(".stepper .cells").bounding_box()["height"] > 150
    assert page.evaluate(FIT)
    expect(page.locator(".modebar-btn")).to_have_count(0)


@pytest.mark.parametrize("width", cases((1400, 1024, 390), (1024,)))
def test_a_long_equation_fits_its_line_or_shows_that_it_goes_on(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    open_trace(page, "/trace?model=llama")
    line = page.locator(".stepper .equation > div")
    until(page, "document.fonts.status === 'loaded'")
    page.wait_for_timeout(200)
    assert line.evaluate("line => line.scrollWidth <= line.clientWidth && !line.matches('.cut')")
    box, inside = line.bounding_box(), line.locator(".katex-html").bounding_box()
    assert inside["x"] + inside["width"] <= box["x"] + box["width"] + 1 and inside["width"] > 0.6 * box["width"]
    line.evaluate("line => line.querySelector('.katex-html').append('and so on '.repeat(40))")
    page.set_viewport_size({"width": width - 20, "height": 800})
    page.locator(".stepper .equation .cut").wait_for()
    assert line.get_attribute("tabindex") == "0"
    line.evaluate("line => (line.scrollLeft = line.scrollWidth)")
    page.locator(".stepper .equation .cut").wait_for(state="detached")


@pytest.mark.sweep
def test_the_list_of_steps_ends_above_the_operations(page):
    page.set_viewport_size({"width": 1280, "height": 800})
    open_trace(page, "/trace?step=block1.attention.weights")
    page.get_by_test_id("stMain").evaluate("main => main.scrollTo(0, main.scrollHeight)")
    page.wait_for_timeout(100)
    heading, side = page.locator(".stepper .covered").bounding_box(), page.locator(".stepper .listing").bounding_box()
    assert side["y"] + side["height"] <= heading["y"] and heading["y"] < 800


@pytest.mark.sweep
def test_what_does_not_fit_is_fetched_when_it_is_looked_at(page):
    """A saved run of more than a message takes: steps that did not come are asked for, and heads one by one."""
    big = torch.randn(1, 4, 256, 512)
    step = replace(sample().steps[0], value="big", shape=tuple(big.shape), symbolic=("B", "?", "?", "?"), product=None)
    steps = tuple(
        replace(step, id=f"s{i}", title=f"Number {i}", symbol=f"b_{{{i}}}", layer=i // 8, ops=()) for i in range(24)
    )
    ops = tuple(replace(op, step=None) for op in sample().ops)
    open_trace(page)
    give(page, encode_trace(sample(steps=steps, ops=ops, values={**sample().values, "big": big})), "large.safetensors")
    page.get_by_text("Saved run: large.safetensors").wait_for()
    wait_until_settled(page)
    search = page.get_by_role("searchbox", name="Find a step")
    search.fill("Number 22")
    page.locator(".stepper .list button").click()
    page.get_by_role("heading", name="Number 22").wait_for()
    cells = page.get_by_role("application", name=re.compile("Heatmap of b_22"))
    cells.wait_for()
    first = cells.get_attribute("aria-label")
    page.get_by_role("slider", name="Index").fill("2")
    expect(cells).not_to_have_attribute("aria-label", first)
    assert f"largest {big[0, 2].max():.3g}" in cells.get_attribute("aria-label")
    quiet(page)


def test_formulas_and_drawings_of_a_strangers_run_are_no_markup(page):
    bad = r"\mathbf{S} = <img src=x onerror=x> \mathrm{<b>}"
    step = sample().steps[0]
    operands = tuple(replace(one, symbol="<script>x</script><image href='/none.png'/>") for one in step.product)
    step = replace(
        step, latex=bad, symbol=r"\mathrm{<i>}", title="<b>no</b>", why="![x](/none.png) <u>x</u>", product=operands
    )
    open_trace(page)
    give(page, encode_trace(sample(steps=(step, sample().steps[1]))), "bad.safetensors")
    page.get_by_role("heading", name="<b>no</b>").wait_for()
    wait_until_settled(page)
    expect(page.locator(":is(.stepper, svg.product) :is(a, b, u, img, image, script, foreignObject)")).to_have_count(0)
    assert "<u>x</u>" in page.locator(".stepper .why").inner_text()
    quiet(page)


def point_at_cell(page, down: float, across: float) -> str:
    """Point at these shares of the heatmap, which is redrawn once its line was checked, and return the text on the
    cell."""
    cells, read = page.locator("canvas.cells").first, page.locator(".stepper .read")
    deadline = time.monotonic() + SLOW / 1000
    said = ""
    while not re.match("patch|mean", said) and time.monotonic() < deadline:
        page.mouse.move(0, 0)
        box = cells.bounding_box()
        page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
        page.wait_for_timeout(50)
        said = read.inner_text()
    return said


def test_a_cell_that_is_the_mean_of_a_box_says_so(page):
    open_trace(page, "/trace?model=vit-note&step=embedding")
    trace = tracer.load("vit-note").trace()
    patches = trace.value(trace.step("embedding"))[0].double()  # 196 × 768, of which 2 features are a cell
    for down, across in ((0.3, 0.4), (0.61, 0.2), (0.75, 0.77), (0.1, 0.95)):
        said = point_at_cell(page, down, across)
        found = re.fullmatch(r"mean of patch (\d+), feature (\d+) to (\d+): about (−?[\d.]+)", said)
        assert found, said
        row, first, last = (int(found[group]) - 1 for group in (1, 2, 3))  # on screen they count from 1
        assert (row, first // 2, last) == (int(down * 196), int(across * 384), first + 1)
        mean = patches[row, first : last + 1].mean().item()
        assert float(found[4].replace("−", "-")) == pytest.approx(mean, rel=0.006, abs=1e-4)
    quiet(page)


@pytest.mark.sweep
def test_an_open_page_shows_on_how_many_other_runs_a_line_holds(page):
    """The check goes on in the background: it comes to the page by itself, without a message of the visitor's."""
    open_trace(page, "/trace?step=block1.attention.scores")
    verdict = page.locator(".stepper .verdict")
    until(page, PROOF_DONE)
    assert verdict.get_attribute("data-verdict") == "verified"
    page.keyboard.press("ArrowRight")
    until(page, "location.search.endsWith('block1.attention.weights')")
    assert "on this run and 3 others" in verdict.inner_text()
