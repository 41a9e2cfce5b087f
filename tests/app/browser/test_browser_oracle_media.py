"""Sound, video and the photo in patches, read back in a real browser and compared with recomputed values."""

import re
import wave
from base64 import b64decode
from io import BytesIO
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from tests.app.browser.test_browser import SLOW, quiet, wait_until_settled
from tests.support.oracle import CELLS, draw, number, open_address, plots, run, value
from tracer.lessons.tokenization import video

pytestmark = pytest.mark.browser

DRAWING = """(svg) => ({
  label: svg.getAttribute("aria-label"),
  images: [...svg.querySelectorAll("image")].map((one) => one.getAttribute("href")),
  at: [...svg.querySelectorAll("image")].map((one) =>
    ["x", "y", "width", "height"].map((side) => +one.getAttribute(side))),
  cells: [...svg.querySelectorAll("[data-patch]")].map((one) =>
    [one.dataset.patch, one.textContent, one.getAttribute("fill-opacity"),
     ...["x", "y", "width", "height"].map((side) => +one.getAttribute(side))]),
  framed: [...svg.querySelectorAll("rect[stroke]")].map((one) =>
    ["x", "y", "width", "height"].map((side) => +one.getAttribute(side))),
  texts: [...svg.querySelectorAll("text")].map((one) => one.textContent),
})"""


@pytest.fixture(autouse=True)
def patience(page) -> None:
    page.set_default_timeout(SLOW)
    page.set_viewport_size({"width": 1400, "height": 1000})


def picture(address: str) -> np.ndarray:
    """Return the pixels of the picture in a `data:` address."""
    return np.asarray(Image.open(BytesIO(b64decode(address.partition(",")[2]))).convert("RGB")).astype(float)


def drawing(page, selector: str) -> dict:
    """Return the content of an SVG: its label, pictures, positions of patches, frames and texts."""
    return page.locator(selector).evaluate(DRAWING)


@pytest.mark.sweep
def test_the_spectrogram_and_the_codes_are_those_of_the_sound_that_is_heard(page):
    open_address(page, "tokens?kind=sound&token=21", "audio")
    page.locator(".js-plotly-plot .hm").nth(2).wait_for(state="attached")
    with wave.open(BytesIO(page.request.get(page.locator("audio").get_attribute("src")).body())) as file:
        rate, samples = file.getframerate(), np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
    places = np.arange(0, len(samples) - 255, 128)[:, None] + np.arange(256)
    faded = samples[places] * (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(256) / 256))
    power = np.log(np.abs(np.fft.rfft(faded)) ** 2 + 1e-4)
    (line, grid), (strip, kept) = plots(page)
    assert np.shape(grid["z"]) == np.shape(kept["z"]) == power.T.shape
    for frame, row in draw(CELLS, power.shape, 1):
        assert abs(grid["z"][row][frame] - power[frame, row]) < 0.06, (frame, row)
        assert abs(grid["x"][frame] - (128 * frame + 128) / rate) < 1e-4
        assert abs(1000 * grid["y"][row] - row * rate / 256) < 0.1
    step = round(line["x"][2] * rate)  # of so many samples the lowest and the highest are drawn
    for (stretch,) in draw(CELLS, (len(samples) // step,), 3):
        heard = samples[stretch * step :][:step]
        assert np.allclose(line["y"][2 * stretch :][:2], (heard.min(), heard.max()), atol=1e-3), stretch
    ids = [int(one) for one in strip["z"][0]]
    listed = page.get_by_test_id("stCode").first.inner_text()
    assert [int(one) for one in listed.split()] == ids and len(ids) == len(power)
    rows = {id: np.array(kept["z"])[:, frame] for frame, id in enumerate(ids)}  # the rows of the codebook that are used
    for frame in {frame for frame, _ in draw(CELLS, power.shape, 2)}:
        assert np.array_equal(np.array(kept["z"])[:, frame], rows[ids[frame]])
        apart = {id: ((row - power[frame]) ** 2).sum() for id, row in rows.items()}
        assert apart[ids[frame]] <= 1.01 * min(apart.values()), frame
    said = page.get_by_text("Codes: token 22").inner_text()
    assert f"is the id {ids[21]} of V = 32" in said
    lost = sum(((power[frame] - rows[id]) ** 2).sum() for frame, id in enumerate(ids))
    shares = page.get_by_text("of the variance of the spectrogram").inner_text()
    assert abs(number(shares.partition("keep ")[2]) / 100 - (1 - lost / ((power - power.mean()) ** 2).sum())) < 0.006
    assert f"in {len(ids)} numbers instead of {power.size:,}; {len(rows)} of the 32 rows are used" in shares
    quiet(page)


@pytest.mark.sweep
def test_the_video_is_cut_to_the_tokens_that_ran(page):
    open_address(page, "tokens?kind=video&token=41&tau=2", "svg[aria-label*='patch 42 is framed']")
    wait_until_settled(page)
    sheets = {"patch": (1, video.frames()), "tubelet": (2, video.tubelets(2))}
    for what, (depth, trace) in sheets.items():
        tokens = value(trace, "tokens.layout")[0].numpy().reshape(-1, depth, 16, 16, 3)
        chosen = 41 if what == "patch" else 41 // 12 // depth * 12 + 41 % 12
        shown = drawing(page, f"svg[aria-label*='{what} {chosen + 1} is framed']")
        assert shown["label"] == f"8 frames cut to {len(tokens)} tokens; {what} {chosen + 1} is framed"
        assert shown["texts"] == [f"frame {frame}" for frame in range(1, 9)]
        assert len(shown["cells"]) == 8 * 12 and len(shown["framed"]) == depth
        frames = [picture(address) for address in shown["images"]]
        for frame, place in draw(CELLS, (8, 12), depth):
            name, title, dim, left, top, width, height = shown["cells"][12 * frame + place]
            x, y = int(left - shown["at"][frame][0]), int(top - shown["at"][frame][1])
            token = frame // depth * 12 + place
            assert name == title == f"{what} {token + 1}" and (width, height) == (16, 16)
            assert dim == ("0" if token == chosen else "0.45")
            pixels = frames[frame][y : y + 16, x : x + 16] / 127.5 - 1
            assert np.abs(pixels - tokens[token, frame % depth]).max() < 1e-3, (what, frame, place)
        boxes = [cell[3:] for cell in shown["cells"] if cell[0] == f"{what} {chosen + 1}"]
        assert boxes == shown["framed"]
    player = drawing(page, "svg[aria-label^='The video']")
    strip = picture(player["images"][0])
    assert np.array_equal(strip, np.concatenate(frames, axis=1))
    assert player["label"] == "The video, a red circle that goes past a blue square"
    red, blue = ([middle(frame, channel) for frame in frames] for channel in (0, 2))
    assert all(later > before + 2 for before, later in pairwise(red)) and np.ptp(blue) < 1
    assert red[0] < blue[0] < red[-1]
    quiet(page)


def middle(frame: np.ndarray, channel: int) -> float:
    """Return the mean column of the pixels of one colour."""
    others = [one for one in range(3) if one != channel]
    return float(np.nonzero(frame[..., channel] > 60 + frame[..., others].max(-1))[1].mean())


def test_what_the_model_sees_is_what_entered_it(page):
    open_address(page, "?tab=What+the+model+sees", "svg.patches text >> nth=63")
    patches = value(run("vit"), "patches")[0].numpy().reshape(64, 4, 4, 3)
    shown, over = drawing(page, "svg.patches"), drawing(page, "svg.photo-grid")
    sheet, photo = picture(shown["images"][0]), picture(over["images"][0])
    assert shown["texts"] == [str(patch) for patch in range(1, 65)]
    cells = draw(CELLS, (64,), 3)
    drawn, ran, means = [], [], []
    for (patch,) in cells:
        name, title, _, left, top, width, height = shown["cells"][patch]
        assert (name, title) == (str(patch), f"patch {patch + 1}")
        step = int(width) // 4
        pixels = sheet[int(top) : int(top + height), int(left) : int(left + width)]
        drawn.append(pixels[step // 2 :: step, step // 2 :: step])
        ran.append(patches[patch])
        name, title, _, left, top, width, height = over["cells"][patch]
        assert (name, title) == (str(patch), f"patch {patch + 1}")
        scale = photo.shape[1] / over["at"][0][2]
        first, last, begin, end = (round(scale * side) for side in (top, top + height, left, left + width))
        means.append(photo[first:last, begin:end].mean((0, 1)))
    drawn, ran = np.array(drawn), np.array(ran)
    for channel in range(3):  # the model's input is the picture but for a mean and a spread of each channel
        slope, start = np.polyfit(ran[..., channel].ravel(), drawn[..., channel].ravel(), 1)
        assert slope > 0 and np.abs(slope * ran[..., channel] + start - drawn[..., channel]).max() < 1
        assert np.corrcoef(np.array(means)[:, channel], drawn[..., channel].mean((1, 2)))[0, 1] > 0.98
    said = page.get_by_text("They are counted in reading order.").inner_text()
    assert said.startswith("32 × 32 pixels, that is 8 × 8 patches of 4 × 4.")
    width, height = (int(one) for one in re.findall(r"\d+", over["label"])[:2])
    assert f"The photo has {width} × {height} pixels." in page.get_by_text("The photo has").inner_text()
    quiet(page)
