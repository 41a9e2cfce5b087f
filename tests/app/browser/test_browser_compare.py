"""Compare page in a real browser: it opens at the first difference, and moves between steps by itself."""

import pytest

import tracer
from tests.app.browser.test_browser import SLOW, quiet, until, wait_until_settled

pytestmark = pytest.mark.browser
LINE = "block3.attention.weights"
READ_COMPARISON = """() => {
  const find = (selector) => document.querySelector(`.comparison ${selector}`);
  const latex = (side) => find(`${side} .equation annotation`)?.textContent ?? null;
  return {
    title: find(".title").textContent, verdict: find(".verdict").textContent, state: find(".verdict").dataset.state,
    left: latex(".left"), right: latex(".right"), count: find(".count").textContent,
    marked: [...document.querySelectorAll(".comparison .marked")].length,
    chosen: [...find(".columns").children].indexOf(find(".chosen")),
    maps: document.querySelectorAll(".comparison canvas").length,
    heads: ["left", "right"].map((side) => find(`.${side} h3`).textContent.split(":")[0]),
    labels: [...document.querySelectorAll(".comparison .maps canvas")].map((one) => one.ariaLabel.split(":")[0]),
    ids: [".left .id", ".right .id"].map((part) => find(part).textContent),
  };
}"""


def test_the_first_difference_is_open_and_the_steps_follow_the_keys(page, vit):
    page.set_default_timeout(SLOW)
    page.goto(f"/compare?beside=change&line={LINE}&other=drop_heads(1)")
    page.locator(".comparison .equation .katex").first.wait_for()
    wait_until_settled(page)
    model = vit
    comparison = tracer.compare(model.trace(), model.trace(change={LINE: "drop_heads(1)"}))
    rows = list(comparison.rows)
    first = rows.index(comparison.first)
    shown = page.evaluate(READ_COMPARISON)
    assert shown["title"].endswith("the first difference") and shown["state"] == "differs" and shown["maps"] == 3
    assert shown["labels"] == ["Left", "Right", "Right − left"] and shown["heads"] == ["Left", "Right"]
    assert shown["chosen"] == first and shown["count"] == f"{first + 1} of {len(rows)}"
    page.get_by_role("button", name="Next step").click()
    shown = page.evaluate(READ_COMPARISON)
    row = rows[first + 1]
    assert shown["heads"] == ["Left", "Right"] and shown["ids"] == [row.a.id, row.b.id]
    assert shown["title"] == row.b.title and shown["marked"] and r"\check" in shown["right"]
    until(page, f"location.search.includes('step={row.id}')")
    page.get_by_role("slider", name="Step").focus()
    page.keyboard.press("Home")
    shown = page.evaluate(READ_COMPARISON)
    assert shown["chosen"] == 0 and shown["state"] == "equal" and shown["left"] == shown["right"] == rows[0].a.latex
    until(page, f"location.search.includes('step={rows[0].id}')")
    page.reload()
    page.locator(".comparison .equation .katex").first.wait_for()
    assert page.evaluate(READ_COMPARISON)["chosen"] == 0
    quiet(page)
