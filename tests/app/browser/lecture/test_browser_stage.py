"""Stage of the film in a real browser: few Tab stops before it, swipes, and cuts where less motion is requested."""

import pytest

from tests.app.browser.test_browser import FILM, SLOW, quiet, until, wait_until_settled

pytestmark = pytest.mark.browser
STOPS = 8
"""Tab stops before the stage, at most."""
FOCUS = f"""() => {{
  let at = document.activeElement;
  while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement;
  const name = at?.getAttribute("aria-label") || at?.textContent.trim().slice(0, 40) || at?.tagName;
  return {{ film: {FILM}.contains(at), name }};
}}"""
SWIPE = f"""([dx, dy, pointerType]) => {{
  const canvas = {FILM}.querySelector("canvas"), box = canvas.getBoundingClientRect();
  const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
  const send = (name, clientX, clientY) =>
    canvas.dispatchEvent(new PointerEvent(name, {{ clientX, clientY, pointerType, bubbles: true }}));
  send("pointerdown", x, y);
  send("pointerup", x + dx, y + dy);
  const {{ at, part }} = {FILM}.film.state;
  return {{ at, part }};
}}"""
"""A swipe, and where the film stands right after it."""
STATE = f"(({{ at, part }}) => ({{ at, part }}))({FILM}.film.state)"


def test_the_stage_is_near_swipes_turn_it_and_less_motion_cuts(page):
    page.set_default_timeout(SLOW)
    page.set_viewport_size({"width": 1024, "height": 768})
    page.goto("/?beat=block2")
    wait_until_settled(page)
    until(page, f"{FILM}?.film?.state.part === 1")
    start = page.evaluate(STATE)["at"]
    bar, own = page.get_by_test_id("stHeader").bounding_box(), page.locator(".give").first.bounding_box()
    assert own["y"] > bar["y"] + bar["height"]  # nothing of the page lies under the bar at its top

    page.keyboard.press("Tab")
    stops = [page.evaluate(FOCUS)["name"]]
    assert stops == ["Skip to main content"]
    page.keyboard.press("Enter")
    while len(stops) <= STOPS:
        page.keyboard.press("Tab")
        seen = page.evaluate(FOCUS)
        if seen["film"]:
            break
        stops.append(seen["name"])
    assert len(stops) <= STOPS and page.evaluate(FOCUS)["film"], stops

    for move, pointer, by in (
        ((-120, 10), "touch", 1),
        ((120, -10), "touch", 0),
        ((-60, 80), "touch", 0),  # a scroll
        ((-120, 0), "mouse", 0),
    ):
        page.evaluate(SWIPE, [*move, pointer])
        assert page.evaluate(STATE)["at"] == start + by, (move, pointer)
    until(page, f"{FILM}.film.state.part === 1")

    assert page.evaluate(SWIPE, [-120, 0, "touch"]) == {"at": start + 1, "part": 0}  # it moves
    until(page, f"{FILM}.film.state.part === 1")
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(SWIPE, [-120, 0, "touch"]) == {"at": start + 2, "part": 1}  # it is there at once
    page.wait_for_url("**beat=block4*")
    page.emulate_media(reduced_motion="no-preference")

    title = page.locator(".film .title").inner_text()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")  # the beat on screen is printed, in its proportion and without controls
    assert page.locator(".film .sheet .title").inner_text() == title
    assert page.locator(".film :is(button, select)").filter(visible=True).count() == 0
    drawn = page.locator(".film .sheet .stage canvas").evaluate(
        "one => (one.width / one.height) * (one.clientHeight / one.clientWidth)"
    )
    assert abs(drawn - 1) < 0.02
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert page.locator(".film .sheet").count() == 0 and page.locator(".film .title").inner_text() == title
    quiet(page)


@pytest.mark.parametrize(("wide", "high"), [(1366, 640), (1280, 720)])
def test_the_buttons_of_the_photo_end_above_the_line_below_the_stage(page, wide, high):
    page.set_default_timeout(SLOW)
    page.set_viewport_size({"width": wide, "height": high})
    page.goto("/")
    wait_until_settled(page)
    until(page, f"{FILM}?.film?.state.part === 1")
    buttons, line = page.locator(".film .looks").bounding_box(), page.locator(".film .under").bounding_box()
    assert buttons["y"] + buttons["height"] <= line["y"]
    quiet(page)


def test_the_thread_to_the_answer_of_a_phone_lies_beside_its_numbers(page):
    page.set_default_timeout(SLOW)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/?model=nanogpt")
    wait_until_settled(page)
    until(page, f"{FILM}?.film?.state.part === 1")
    ends = page.locator(".film .bar").evaluate_all("all => all.map((one) => one.getBoundingClientRect().right)")
    stage = page.locator(".film .stage").bounding_box()
    assert max(ends) <= stage["x"] + stage["width"] - 20  # as much as the thread and the edge take
    quiet(page)
