"""The app in a real browser: what a class sees, does and must not notice."""

import json
import re
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from tracer.inputs.images import centre_crop
from tracer.record import AttentionRecord, Op, Picture, Segment, Symbol, Trace

pytestmark = pytest.mark.browser
SLOW = 120_000  # milliseconds: for a machine under load, nothing else waits that long
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

FIT = "document.querySelector('[data-testid=stMain]').scrollWidth <= window.innerWidth"
HEAT = """canvas => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]"""


@pytest.fixture(autouse=True)
def patience(page) -> None:
    page.set_default_timeout(SLOW)


def jpeg(size: tuple[int, int] = (90, 60)) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def go(page, name: str = "Overview") -> None:
    """Opens the app and goes to a page by its link, as a visitor does."""
    page.goto("/")
    page.get_by_text("What this run proves").wait_for()
    if name != "Overview":
        page.get_by_role("link", name=name).click()
        page.get_by_role("heading", name=re.compile("Step by step|attend to|Who may look")).wait_for()


def give(page, data: bytes, name: str) -> None:
    page.set_input_files("input[type=file]", {"name": name, "mimeType": "application/octet-stream", "buffer": data})


def settled(page) -> None:
    page.wait_for_function("document.querySelector('.stApp').dataset.testScriptState === 'notRunning'")


def quiet(page) -> None:
    """No error in the console and no other host asked, so far."""
    assert page.seen.errors == []
    assert page.seen.foreign == []


def test_a_photo_goes_in_and_a_class_comes_out(page):
    go(page)
    answer = page.get_by_role("heading", name=re.compile("^The answer: "))
    first = answer.inner_text()
    assert first.removeprefix("The answer: ") in CLASSES
    page.locator("svg.patches").wait_for()
    assert page.locator(".photo-grid").count() == 1
    assert page.locator("svg.patches text").count() == 64
    give(page, jpeg(), "noise.jpg")
    page.get_by_text("Your photo: noise.jpg").wait_for()
    settled(page)
    assert page.locator(".photo-grid").get_attribute("viewBox") == "0 0 90 60"
    assert answer.inner_text().removeprefix("The answer: ") in CLASSES

    give(page, jpeg()[:400], "broken.jpg")
    refusal = page.get_by_role("alert").filter(has_text="broken.jpg")
    refusal.wait_for()
    assert "cut off or damaged" in refusal.inner_text()
    assert page.get_by_text("Your photo: noise.jpg").is_visible()
    assert page.locator(".photo-grid").get_attribute("viewBox") == "0 0 90 60"

    page.get_by_role("button", name="Back to the sample").click()
    refusal.wait_for(state="detached")
    settled(page)
    assert answer.inner_text() == first
    quiet(page)


def test_a_patch_is_marked_in_photo_and_input(page):
    go(page)
    page.locator(".photo-grid [data-patch='19']").hover()
    marked = page.locator("[data-patch].on")
    assert [cell.get_attribute("data-patch") for cell in marked.all()] == ["19", "19"]
    quiet(page)


def test_a_step_of_the_pipeline_opens(page):
    go(page)
    page.get_by_role("button", name=re.compile("Scores")).click()
    page.get_by_role("heading", name="Scores").wait_for()
    assert "step=block1.attention.scores" in page.url
    quiet(page)


def test_every_equation_is_rendered(page):
    """All steps before the blocks, in the first block and after the blocks; the other blocks repeat it."""
    for start, steps in (("patches", 18), ("norm", 3)):
        page.goto(f"/trace?step={start}")
        for number in range(steps):
            page.locator(".st-key-equation .katex").first.wait_for()
            settled(page)
            assert page.locator("[data-testid=stMain] .katex-error").count() == 0, page.url
            if number < steps - 1:
                before = page.url
                page.get_by_role("button", name="Next").click()
                page.wait_for_function("url => location.href !== url", arg=before)
    assert "step=logits" in page.url
    assert page.get_by_role("button", name="Next").is_disabled()
    assert page.seen.foreign == []


def test_latex_is_copied(page):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    go(page, "Trace")
    page.get_by_role("button", name="Copy LaTeX").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").startswith(r"\mathbf{X}_p = ")


def test_the_tensor_and_its_product_are_drawn(page):
    go(page)
    page.get_by_role("button", name=re.compile("Scores")).click()
    page.locator(".js-plotly-plot .heatmaplayer image").wait_for()
    page.locator("svg.product").wait_for()
    assert page.locator("svg.product rect").count() == 6
    titles = page.locator(".js-plotly-plot .infolayer .xtitle, .js-plotly-plot .infolayer .ytitle").all_text_contents()
    assert [re.sub(r"\s", "", title) for title in titles] == ["key,N+1=65", "query,N+1=65"]
    quiet(page)


def test_pointing_at_a_patch_redraws_without_the_server(page):
    sent = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(frame)))
    go(page, "Attention")
    heat = page.locator("canvas.heat")
    heat.wait_for()
    settled(page)
    page.wait_for_timeout(500)
    box = heat.bounding_box()
    sent.clear()
    seen = []
    for share in (0.1, 0.5, 0.9):
        page.mouse.move(box["x"] + share * box["width"], box["y"] + 0.3 * box["height"])
        seen.append(heat.evaluate(HEAT))
        # row 2 of 8; columns 0, 4, 7
        assert f"row 2, column {int(share * 8)}" in page.locator(".lead").inner_text()
    assert seen[0] != seen[1] != seen[2]
    assert sent == []
    quiet(page)


def test_one_redraw_fits_in_a_frame(page):
    go(page, "Attention")
    page.locator("canvas.heat").wait_for()
    spent = page.locator(".photo").evaluate(
        """photo => {
            const box = photo.querySelector('canvas').getBoundingClientRect();
            const start = performance.now();
            for (let i = 0; i < 64; i++) {
                const clientX = box.left + (i % 8 + 0.5) / 8 * box.width;
                const clientY = box.top + ((i >> 3) + 0.5) / 8 * box.height;
                photo.dispatchEvent(new PointerEvent('pointermove', {clientX, clientY}));
            }
            return (performance.now() - start) / 64;
        }"""
    )
    assert spent < 16


def test_keyboard_and_numbers_move_the_patch(page):
    go(page, "Attention")
    photo, lead = page.locator(".photo"), page.locator(".lead")
    photo.wait_for()
    page.get_by_role("radio", name="log").focus()
    page.keyboard.press("Tab")
    assert (
        photo.evaluate("photo => getComputedStyle(photo).outlineStyle + photo.matches(':focus-visible')") == "solidtrue"
    )
    assert "row 4, column 4" in lead.inner_text()
    before = page.locator("canvas.heat").evaluate(HEAT)
    photo.press("ArrowUp")
    photo.press("ArrowLeft")
    assert "row 3, column 3" in lead.inner_text()
    assert page.locator("canvas.heat").evaluate(HEAT) != before
    assert "row 3, column 3" in page.locator(".live").inner_text()
    assert "row 3, column 3" in photo.get_attribute("aria-label")
    column = page.get_by_role("spinbutton", name="Column")
    column.fill("6")
    column.press("Enter")
    assert "row 3, column 6" in lead.inner_text()
    for wrong in ("999", "-1", "abc"):
        column.fill(wrong)
        column.press("Enter")
        assert (
            page.locator(".said").inner_text()
            == f"“{wrong}” is no column: expected a whole number from 0 to 7. Kept 6."
        )
        assert column.input_value() == "6" and "row 3, column 6" in lead.inner_text()
    column.press("ArrowDown")
    assert "row 3, column 5" in lead.inner_text() and not page.locator(".said").inner_text()
    page.get_by_role("button", name="Use CLS as the query").click()
    assert "CLS attends most to" in lead.inner_text()
    page.get_by_role("radio", name="rollout").check()
    assert lead.inner_text().startswith("By rollout")
    page.get_by_text("The same as a table").click()
    assert page.locator(".numbers tbody tr").count() == 12
    quiet(page)


def looking_elsewhere(rows: int = 2, columns: int = 3, layers: int = 1) -> Trace:
    """A run on a photo that is not square, in a grid of patches: every token looks at the one before it only."""
    torch = pytest.importorskip("torch")
    photo = Image.new("RGB", (200, 80), "grey")
    _, crop = centre_crop(photo, 8, 12)
    tokens = 1 + rows * columns
    q = 200 * torch.eye(tokens)[None, None]
    k = torch.roll(torch.eye(tokens), 1, 0)[None, None]
    return Trace(
        "hand",
        (Op(0, "block1", 0, "softmax", "softmax", None, (), ()),),
        symbols=(Symbol("H", "height", 8), Symbol("W", "width", 12)),
        attentions=tuple(
            AttentionRecord(layer, "", "block1", 0, 1, tokens, tokens, "q", "k", ()) for layer in range(layers)
        ),
        values={"q": q, "k": k.transpose(-2, -1).contiguous(), "photo": torch.from_numpy(np.array(photo))},
        picture=Picture("photo", crop.box, rows, columns, 1),
        segments=(Segment("CLS", 0, 1), Segment("image", 1, tokens)),
    )


def test_the_overlay_lies_on_its_pixels(page, tmp_path):
    """One-hot attention on a 200 × 80 photo with a 2 × 3 grid lights exactly one patch, where it is on the photo."""
    trace = looking_elsewhere()
    trace.save(path := tmp_path / "hand.safetensors")
    go(page, "Attention")
    give(page, path.read_bytes(), "hand.safetensors")
    page.get_by_text("Saved run: hand.safetensors").wait_for()
    settled(page)
    photo, heat = page.locator(".photo").bounding_box(), page.locator("canvas.heat").bounding_box()
    scale = photo["width"] / 200
    assert photo["height"] == pytest.approx(80 * scale, abs=1)
    # the crop is 120 × 80, from x = 40
    assert heat["x"] - photo["x"] == pytest.approx(40 * scale, abs=0.5)
    assert heat["width"] == pytest.approx(120 * scale, abs=0.5)
    assert heat["height"] == pytest.approx(80 * scale, abs=1)
    # point at the middle of row 0, column 1: the photo's pixel (100, 20), token 2
    page.mouse.move(photo["x"] + 100 * scale, photo["y"] + 20 * scale)
    target = int(np.argmax(trace.attention(0, 0, 2)[0]))
    pixels = np.array(page.locator("canvas.heat").evaluate(HEAT)).reshape(2, 3, 4)
    lit = np.argwhere(pixels[..., :3].sum(-1) > 300)
    assert [tuple(cell) for cell in lit] == [divmod(target - 1, 3)]
    frame = page.locator(".query").bounding_box()
    assert frame["x"] - photo["x"] == pytest.approx(80 * scale, abs=1)
    assert frame["width"] == pytest.approx(40 * scale, abs=1)
    quiet(page)


def test_a_block_that_did_not_fit_is_fetched(page, tmp_path):
    """Of 901 tokens one map has 3 MB, and no two go in one message."""
    looking_elsewhere(30, 30, layers=2).save(path := tmp_path / "long.safetensors")
    go(page, "Attention")
    give(page, path.read_bytes(), "long.safetensors")
    page.get_by_text("Saved run: long.safetensors").wait_for()
    lead = page.locator(".lead")
    page.locator(".lead", has_text="Block 2: image 465 (row 15, column 15) attends most to").wait_for()
    page.get_by_role("group", name="Block").get_by_role("radio", name="1").check()
    page.locator(".lead", has_text="Block 1: image 465").wait_for()
    assert page.locator(".waiting").is_hidden()
    assert page.locator(".top li").first.inner_text().startswith("image 464 (row 15, column 14)")
    page.locator(".photo").press("ArrowRight")
    assert "image 466" in lead.inner_text()
    quiet(page)


def test_a_saved_run_comes_back(page, tmp_path):
    go(page)
    answer = page.get_by_role("heading", name=re.compile("^The answer: ")).inner_text()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save this run").click()
    assert download.value.suggested_filename == "vit-cat.safetensors"
    download.value.save_as(path := tmp_path / "cat.safetensors")
    give(page, path.read_bytes(), "cat.safetensors")
    page.get_by_text("Saved run: cat.safetensors").wait_for()
    settled(page)
    assert page.get_by_role("heading", name=answer).is_visible()
    quiet(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_dark_and_light_follow_the_visitor(page, scheme):
    page.emulate_media(color_scheme=scheme)
    go(page)
    colour = page.evaluate("getComputedStyle(document.querySelector('.stApp')).backgroundColor")
    brightness = sum(json.loads("[" + re.search(r"\((.*)\)", colour)[1] + "]")[:3]) / 3
    assert (brightness > 128) == (scheme == "light")


@pytest.mark.parametrize("name", ["Overview", "Trace", "Attention", "Mask"])
def test_nothing_sticks_out_of_a_phone(page, name):
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto("/" if name == "Overview" else f"/{name.lower()}")
    page.get_by_role("heading", level=1).wait_for()
    settled(page)
    page.wait_for_timeout(500)
    assert page.evaluate(FIT)
    assert page.seen.foreign == []
