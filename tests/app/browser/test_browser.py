"""App in a real browser: what a class sees, does and must not notice."""

import json
import re
import time
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.support.sweeping import cases

pytestmark = pytest.mark.browser
SLOW = 120_000  # milliseconds: for a machine under load, nothing else waits that long
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

FILM = """[...document.querySelectorAll('*')].map((node) => node.shadowRoot?.querySelector('.film')).find(Boolean)"""
"""The film of the page, as JavaScript; its `film` has what tests ask for."""
FIT = "document.querySelector('[data-testid=stMain]').scrollWidth <= window.innerWidth"


@pytest.fixture(autouse=True)
def patience(page) -> None:
    page.set_default_timeout(SLOW)


def jpeg(size: tuple[int, int] = (90, 60)) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def go(page, name: str = "Overview") -> None:
    """Open the app on a page."""
    if name == "Overview":
        page.goto("/")
        page.get_by_text("The run in numbers").wait_for()
        page.locator("#first").wait_for(state="detached")
    else:
        page.goto(f"/{name.lower()}")
        page.get_by_role("heading", name=re.compile("Step by step|attend to|Who may look")).wait_for()


def give(page, data: bytes, name: str) -> None:
    page.set_input_files("input[type=file]", {"name": name, "mimeType": "application/octet-stream", "buffer": data})


def wait_until_settled(page) -> None:
    page.locator(".stApp[data-test-script-state=notRunning]").wait_for()


def until(page, expression: str, seconds: float = SLOW / 1000) -> None:
    """Wait until an expression is true in the page; Playwright's `wait_for_function` is blocked by the app's own
    policy."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(50)


def quiet(page) -> None:
    """Assert that the console has no error and no other host was contacted so far."""
    assert page.seen.errors == []
    assert page.seen.foreign == []


def class_of(title: str) -> str:
    """Return the class in a title such as `The answer: horse, 91.0 %`."""
    return title.removeprefix("The answer: ").partition(",")[0]


def test_a_photo_goes_in_and_a_class_comes_out(page):
    go(page)
    answer = page.get_by_role("heading", name=re.compile("^The answer: "))
    first = answer.inner_text()
    assert class_of(first) in CLASSES
    page.get_by_role("tab", name="What the model sees").click()
    page.locator("svg.patches text").nth(63).wait_for()
    wait_until_settled(page)
    page.locator(".photo-grid").wait_for()
    expect(page.locator(".photo-grid")).to_have_count(1)
    expect(page.locator("svg.patches text")).to_have_count(64)
    give(page, jpeg(), "noise.jpg")
    page.get_by_text("Your photo: noise.jpg").wait_for()
    wait_until_settled(page)
    assert page.locator(".photo-grid").get_attribute("viewBox") == "0 0 90 60"
    assert class_of(answer.inner_text()) in CLASSES

    give(page, jpeg()[:400], "broken.jpg")
    refusal = page.get_by_role("alert").filter(has_text="broken.jpg")
    refusal.wait_for()
    assert "cut off or damaged" in refusal.inner_text()
    assert page.get_by_text("Your photo: noise.jpg").is_visible()
    assert page.locator(".photo-grid").get_attribute("viewBox") == "0 0 90 60"

    page.get_by_role("button", name="Back to the sample").click()
    refusal.wait_for(state="detached")
    wait_until_settled(page)
    assert answer.inner_text() == first
    quiet(page)


@pytest.mark.sweep
def test_a_patch_is_marked_in_photo_and_input(page):
    go(page)
    page.get_by_role("tab", name="What the model sees").click()
    page.locator(".photo-grid [data-patch='19']").hover()
    marked = page.locator("[data-patch].on:visible")
    assert [cell.get_attribute("data-patch") for cell in marked.all()] == ["19", "19"]
    quiet(page)


def to_scores(page) -> None:
    """Go to the step of the scores by the pipeline, whose blocks are folded."""
    page.get_by_text("One block, run").click()
    page.get_by_role("button", name=re.compile("Scores")).click()


def test_a_text_that_is_being_typed_is_taken_and_the_link_that_is_clicked_is_followed(page):
    page.goto("/?model=nanogpt")
    page.get_by_text("The run in numbers").wait_for()
    wait_until_settled(page)
    page.get_by_role("textbox", name="Your text").fill("To be")
    page.get_by_role("link", name="Mask").click()  # at once, as a tap does
    page.wait_for_url("**/mask?model=nanogpt&text=To+be")


BY_ADDRESS = ("trace", "mask?model=nanogpt", "attention", "operations")


@pytest.mark.parametrize("address", cases(BY_ADDRESS, ("mask?model=nanogpt",)))
def test_a_page_opens_by_its_address_without_a_request_that_fails(page, address):
    page.goto(f"/{address}")
    page.get_by_role("button", name="Save this run").wait_for()
    wait_until_settled(page)
    quiet(page)


@pytest.mark.sweep
def test_a_step_that_is_opened_from_the_overview_is_not_in_its_address(page):
    go(page)
    to_scores(page)
    page.wait_for_url("**/trace?step=block1.attention.scores")
    wait_until_settled(page)
    page.evaluate("history.back()")
    page.get_by_text("The run in numbers").wait_for()
    assert "step" not in page.url


@pytest.mark.sweep
def test_next_leads_from_step_to_step_and_stops_at_the_last(page):
    """At the first steps and at the last; that each equation of each model can be drawn is tested by itself."""
    for start, steps in (("patches", 4), ("norm", 3)):
        page.goto(f"/trace?step={start}")
        for number in range(steps):
            page.locator(".stepper .equation .katex").first.wait_for()
            wait_until_settled(page)
            expect(page.locator("[data-testid=stMain] .katex-error")).to_have_count(0)
            if number < steps - 1:
                before = page.url
                page.get_by_role("button", name="Next").click()
                until(page, f"location.href !== {json.dumps(before)}")
    assert "step=logits" in page.url
    assert page.get_by_role("button", name="Next").is_disabled()
    quiet(page)


def test_latex_is_copied(page):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    go(page, "Trace")
    page.get_by_role("button", name="Copy LaTeX").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").startswith(r"\mathbf{X}_p = ")


def test_a_step_of_the_pipeline_opens_and_its_tensor_and_product_are_drawn(page):
    go(page)
    to_scores(page)
    page.get_by_role("heading", name="Scores").wait_for()
    assert "step=block1.attention.scores" in page.url
    page.locator("svg.product").wait_for()
    expect(page.locator("svg.product rect")).to_have_count(6)
    cells = page.get_by_role("application", name=re.compile("Heatmap of S.*65 rows × 65 columns"))
    coloured = "c => new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, 65, 65).data.buffer)).size"
    assert cells.evaluate(coloured) > 50
    names = [page.locator(f".stepper .axis.{way} annotation").text_content() for way in ("down", "across")]
    assert names == ["N + 1 = 65"] * 2
    assert page.locator(".stepper .axis.down").inner_text().startswith("query")
    cells.hover(position={"x": 1, "y": 1})
    assert re.match(r"query 1, key 1: (about )?−?\d", page.locator(".stepper .read").inner_text())
    quiet(page)


def test_a_saved_run_comes_back(page, tmp_path):
    go(page)
    answer = page.get_by_role("heading", name=re.compile("^The answer: ")).inner_text()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save this run").click()
    assert download.value.suggested_filename == "vit-horse.safetensors"
    download.value.save_as(path := tmp_path / "cat.safetensors")
    give(page, path.read_bytes(), "cat.safetensors")
    page.get_by_text("Saved run: cat.safetensors").wait_for()
    wait_until_settled(page)
    assert page.get_by_role("heading", name=answer).is_visible()
    quiet(page)


def test_dark_and_light_follow_the_visitor(page):
    go(page)
    ground = "getComputedStyle(document.querySelector('.stApp')).backgroundColor.match(/[\\d.]+/g).slice(0, 3)"
    for scheme, sign in (("dark", "<"), ("light", ">")):
        page.emulate_media(color_scheme=scheme)
        until(page, f"{ground}.every((part) => Number(part) {sign} 128)", 10)


@pytest.mark.parametrize("name", cases(("Overview", "Trace", "Attention", "Mask"), ("Overview", "Mask")))
def test_nothing_sticks_out_of_a_phone(page, name):
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto("/" if name == "Overview" else f"/{name.lower()}")
    page.get_by_role("heading", level=1).wait_for()
    wait_until_settled(page)
    until(page, FIT, 8)
    quiet(page)
