"""A block of the film, opened in a real browser: its steps, its pictures, the address, and the way back."""

import random
import re

import pytest
from playwright.sync_api import expect

from tests.app.browser.test_browser import FILM, FIT, SLOW, quiet, until, wait_until_settled
from tracer.figures.drawing import DIVERGING_SCALE, table
from tracer.utils.text import numeral

pytestmark = pytest.mark.browser
SCORES = "block3.attention.scores"
STILL = f"{FILM}?.film?.film.pictures && {FILM}.film.state.part === 1"
BAR = f"{FILM}.querySelector('.scrubber')"
PIXELS = f"""cells => {{
  const film = {FILM}.film, canvas = {FILM}.querySelector("canvas");
  const {{ box, index }} = film.place().boxes.at(-1), [, rows, columns] = film.film.pictures[index].cells.shape;
  const ratio = canvas.width / canvas.clientWidth, context = canvas.getContext("2d");
  const at = (start, length, cell, count) => Math.round((start + ((cell + 0.5) * length) / count) * ratio);
  return cells.map(([row, column]) => {{
    const [x, y] = [at(box.x, box.w, column, columns), at(box.y, box.h, row, rows)];
    return [...context.getImageData(x, y, 1, 1).data].slice(0, 3);
  }});
}}"""
"""The colours of cells of the result on the stage."""


@pytest.fixture(autouse=True)
def patience(page) -> None:
    page.set_default_timeout(SLOW)


def test_a_block_opens_into_its_steps_and_its_pictures_are_those_of_the_run(page, plain):
    page.goto("/?beat=block3")
    wait_until_settled(page)
    page.get_by_role("button", name="Open block").or_(page.get_by_role("button", name="Open this block")).click()
    until(page, STILL)
    beats = page.locator(".film .scrubber button")
    inside = [step.id for step in plain.steps if step.layer == 2]
    expect(beats).to_have_count(len(inside))
    accents = beats.filter(has_text=re.compile("\u0302|\u0303")).locator("span")
    assert min(accents.evaluate_all("all => all.map((one) => parseFloat(getComputedStyle(one).fontSize))")) >= 16
    page.wait_for_url(f"**inside={inside[0]}*")
    for _ in range(inside.index(SCORES)):
        page.keyboard.press("ArrowRight")
    page.wait_for_url(f"**inside={SCORES}*")
    until(page, STILL)
    expect(page.locator(".film .title")).to_have_text("Scores")
    scores, draw = plain.value(SCORES)[0, 0], random.Random(0)
    edge = scores.abs().max().item()
    cells = [(draw.randrange(2, 65), draw.randrange(65)) for _ in range(20)]  # below the row that is lit
    colours = table(DIVERGING_SCALE, 255)
    for (row, column), seen in zip(cells, page.evaluate(PIXELS, cells), strict=True):
        share = round((scores[row, column].item() + edge) / (2 * edge) * 254)
        assert max(abs(a - b) for a, b in zip(seen, colours[3 * share : 3 * share + 3], strict=True)) <= 6, (
            row,
            column,
        )
    page.locator(".film .token").select_option("19")
    expect(page.locator(".film .point .text")).to_have_text(
        "Inside block 3. Outlined: the row of the patch in row 3, column 3."
    )
    page.keyboard.press("Escape")
    until(page, f"!{FILM}.film.film.pictures")
    page.wait_for_url(lambda address: "inside=" not in address and "beat=block3" in address)
    assert page.evaluate(f"{FILM}.film.state.head") == -1  # all heads, as before
    page.go_back()
    until(page, STILL)
    expect(page.locator(".film .title")).to_have_text("Scores")
    quiet(page)


def test_the_scale_says_which_head_and_how_many_numbers_a_cell_stands_for(page, plain):
    page.goto("/?beat=block5&inside=block5.attention.weights")
    wait_until_settled(page)
    until(page, STILL)
    weights = plain.value("block5.attention.weights")[0]
    low, high = numeral(weights.min().item()), numeral(weights.max().item())
    expect(page.locator(".film .sentence")).to_have_text(
        f"16,900 numbers in 4 heads, from {low} to {high}. Each row adds up to 1."
    )
    legend = page.locator(".film .legend")
    for head in (0, 2):
        page.locator(".film .head").select_option(str(head))
        expect(legend.locator(".what")).to_have_text(f"A, head {head + 1}:")
        expect(legend.locator(".most")).to_have_text(numeral(weights[head].max().item()))
    page.locator(".film .scrubber button").first.click()
    expect(page.locator(".film .title")).to_have_text(plain.step("block5.norm1").title)
    high, wide = page.evaluate(f"{FILM}.film.film.pictures[{FILM}.film.film.beats[0].drawn.at(-1)].box")
    assert high * wide > 1
    expect(legend.locator(".what")).to_have_text(f"X\u0303, means of {high * wide} numbers:")
    means = plain.value("block5.norm1")[0].reshape(65 // high, high, 128 // wide, wide).mean((1, 3))
    expect(legend.locator(".most")).to_have_text(numeral(means.abs().max().item()))
    quiet(page)


def test_an_address_names_a_step_inside_a_block_and_the_way_to_trace_leads_to_it(page):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/?model=nanogpt&inside=block2.mlp.hidden")
    wait_until_settled(page)
    until(page, STILL)
    expect(page.locator(".film .title")).to_have_text("Expand")
    assert page.evaluate(FIT)
    page.set_viewport_size({"width": 360, "height": 740})
    for end in ("0", "one.scrollWidth"):  # steps that are out of view fade at that side
        page.locator(".film .scrubber").evaluate(f"one => one.scrollTo({end}, 0)")
        sides = ("after", "before") if end == "0" else ("before", "after")
        until(page, f"{BAR}.hasAttribute('data-{sides[0]}') && !{BAR}.hasAttribute('data-{sides[1]}')")
    page.locator(".film .open").click()
    page.wait_for_url("**/trace?**step=block2.mlp.hidden*")
    quiet(page)
