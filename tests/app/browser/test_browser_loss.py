"""Pages of the loss and of writing in a real browser: a text in colours, and a text that grows token by token."""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

import tracer
from tests.app.browser.test_browser import FIT, SLOW, quiet, wait_until_settled
from tests.support import sampling

pytestmark = pytest.mark.browser
SET = "(input, value) => { input.value = value; input.dispatchEvent(new Event('input')); }"
STRIP = """strip => {
  const [all, cell] = [strip, strip.querySelector("[data-drawn]")].map((part) => part.getBoundingClientRect());
  const needle = strip.querySelector("i").getBoundingClientRect();
  const place = needle.left + needle.width / 2;
  return [all.width, place, (place - all.left) / all.width, strip.ariaLabel, { left: cell.left, right: cell.right }];
}"""
"""The width of the tokens side by side, where the random number points, also as a share, what is said, and the token
that is drawn."""


@pytest.mark.sweep
def test_the_text_is_coloured_and_the_gradient_drawn(page):
    page.set_default_timeout(SLOW)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/loss?model=nanogpt&text=To be")
    letters = page.locator(".loss-text span")
    letters.first.wait_for()
    wait_until_settled(page)
    assert letters.all_inner_texts() == ["T", "o", " ", "b", "e"] and letters.first.get_attribute("class") == "unasked"
    assert "−log p = " in letters.nth(1).get_attribute("title")
    expect(letters.nth(1)).to_have_css("background-color", re.compile(r"rgba\(201, 116, 29, "))
    page.get_by_text("through attention and MLPs only").wait_for()
    assert page.evaluate(FIT)
    quiet(page)


def percent(share: float) -> str:
    if share < 0.0001:
        return "0.0 %" if share == 0 else "< 0.01 %"
    return f"{100 * share:.{2 if share < 0.01 else 1}f} %"


def test_settings_reshape_the_bars_as_python_does_and_a_token_drops_into_the_text(page):
    page.set_default_timeout(SLOW)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/writing?model=nanogpt&text=To be")
    shares = page.locator(".next-token .share")
    expect(shares).to_have_count(12)
    wait_until_settled(page)
    logits = tracer.load("nanogpt").trace(text="To be", prove=False).output[0, -1].numpy()
    order = np.argsort(-logits, kind="stable")[:12]
    for temperature, k, p in ((1, 65, 1), (0.5, 65, 1), (1.5, 7, 1), (0.8, 40, 0.6), (0, 65, 1)):
        for name, value in (("temperature", temperature), ("k", k), ("p", p)):
            page.locator(f".next-token input[name={name}]").evaluate(SET, str(value))
        expected = sampling.probabilities(logits, temperature, k, p)[order]
        assert [text.replace("\xa0", " ") for text in shares.all_inner_texts()] == list(map(percent, expected))
        named = page.locator(".next-token .bars button").evaluate_all("all => all.map((one) => one.ariaLabel)")
        plain = list(map(percent, sampling.probabilities(logits, 1, 65, 1)[order]))
        assert [name.replace("\xa0", " ").partition(": ")[2] for name in named] == [
            f"{percent(share)}, without settings {bare}" for share, bare in zip(expected, plain, strict=True)
        ]
        if temperature:
            width, needle, share, said, cell = page.locator(".next-token .strip").evaluate(STRIP)
            assert cell["left"] - 1 <= needle <= cell["right"] + 1, (temperature, k, p)
            assert share == pytest.approx(float(re.search(r"u = (0\.\d+)", said)[1]), abs=0.01)
            first = page.locator(".next-token .strip span").first.bounding_box()
            assert first["width"] == pytest.approx(width * expected[0], abs=1)
    likeliest = page.locator(".next-token .token").first.inner_text()
    assert page.locator(".next-token .write").inner_text() == f"Write “{likeliest}”"  # at temperature 0
    page.locator(".next-token .write").click()
    mark = page.locator(".text-so-far mark")
    expect(mark).to_have_text(likeliest)
    page.get_by_text("6 tokens. The next one").wait_for()
    wait_until_settled(page)
    page.get_by_role("button", name="Take the last token back").click()
    page.get_by_text("5 tokens. The next one").wait_for()
    assert page.evaluate(FIT)
    quiet(page)
