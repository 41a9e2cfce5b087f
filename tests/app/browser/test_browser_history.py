"""Back and forward in a real browser: each move is one entry, and the former screen comes back."""

import pytest
from playwright.sync_api import expect

from tests.app.browser.test_browser import SLOW, give, go, jpeg, quiet, wait_until_settled

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def patience(page) -> None:
    page.set_default_timeout(SLOW)


@pytest.mark.sweep
@pytest.mark.parametrize("given", ["", "model=nanogpt&text=To+be"])
def test_a_move_makes_one_entry_in_the_history_and_back_undoes_it(page, given):
    place = f"?{given}" if given else ""
    page.goto(f"/{place}")
    page.get_by_text("The run in numbers").wait_for()
    wait_until_settled(page)
    moves = {
        ("link", "Trace"): f"/trace{place}",
        ("button", "Next"): f"/trace{place}{'&' if given else '?'}step=embedding",
        ("link", "Attention"): f"/attention{place}",
    }
    seen, before = [page.url], page.evaluate("history.length")
    for (role, name), address in moves.items():
        page.get_by_role(role, name=name, exact=role == "link").click()
        page.wait_for_url(f"**{address}")
        wait_until_settled(page)
        seen.append(page.url)
    assert page.evaluate("history.length") == before + len(moves)
    for address in reversed(seen[:-1]):
        page.evaluate("history.back()")
        page.wait_for_url(address)
        wait_until_settled(page)
    page.get_by_text("The run in numbers").wait_for()
    quiet(page)


@pytest.mark.sweep
def test_whoever_walks_fast_through_the_history_meets_no_message_that_the_browser_has_dropped(page):
    page.goto("/")
    page.get_by_text("The run in numbers").wait_for()
    for name in ("Trace", "Attention", "Mask", "Operations", "Compare", "Tokens"):
        page.get_by_role("link", name=name, exact=True).first.click()
        page.wait_for_timeout(350)
    for move in range(12):  # on a busy machine two clicks are one entry, and the way back is shorter
        forward = move % 5 == 4 or move == 11 or page.url == "about:blank"
        (page.go_forward if forward else page.go_back)(wait_until="commit")
        page.wait_for_timeout(150)
    wait_until_settled(page)
    page.wait_for_timeout(1000)
    expect(page.get_by_text("Connection error")).to_have_count(0)
    quiet(page)


def test_back_and_forward_bring_model_text_and_photo_back(page):
    go(page, "Attention")
    wait_until_settled(page)
    model, text = page.get_by_role("combobox", name="Model"), page.get_by_role("textbox", name="Your text")
    give(page, jpeg(), "mine.jpg")
    page.wait_for_url("**/attention?file=mine.jpg")
    wait_until_settled(page)
    model.fill("nanogpt")
    page.keyboard.press("Enter")
    page.wait_for_url("**/attention?model=nanogpt")
    wait_until_settled(page)
    text.fill("To be")
    page.keyboard.press("Control+Enter")
    page.wait_for_url("**text=To+be")
    wait_until_settled(page)

    def went(direction: str, address: str) -> None:
        page.evaluate(f"history.{direction}()")
        page.wait_for_url(f"**/attention{address}")
        wait_until_settled(page)

    went("back", "?model=nanogpt")
    expect(text).to_have_value("")
    went("back", "?file=mine.jpg")
    expect(model).to_have_value("vit")
    page.get_by_text("Your photo: mine.jpg").wait_for()
    went("back", "")
    expect(page.get_by_text("Your photo: mine.jpg")).to_have_count(0)
    went("forward", "?file=mine.jpg")
    page.get_by_text("Your photo: mine.jpg").wait_for()
    went("forward", "?model=nanogpt")
    went("forward", "?model=nanogpt&text=To+be")
    expect(text).to_have_value("To be")
    model.fill("torchvision:vit_b_16")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Load it").wait_for()
    wait_until_settled(page)
    went("back", "?model=nanogpt&text=To+be")
    expect(page.get_by_role("button", name="Load it")).to_have_count(0)
    expect(text).to_have_value("To be")
    quiet(page)


@pytest.mark.sweep
def test_another_model_on_the_page_of_steps_makes_one_entry(page):
    page.goto("/trace?step=position")
    page.get_by_role("heading", name="Add positions").wait_for()
    wait_until_settled(page)
    before = page.evaluate("history.length")
    page.get_by_role("combobox", name="Model", exact=True).fill("segmenter")
    page.keyboard.press("Enter")
    page.wait_for_url("**/trace?model=segmenter")
    page.get_by_role("link", name="Mask").click()
    page.wait_for_url("**/mask?model=segmenter")
    wait_until_settled(page)
    assert page.evaluate("history.length") == before + 2
    for address in ("**/trace?model=segmenter", "**/trace?step=position"):
        page.evaluate("history.back()")
        page.wait_for_url(address)
        wait_until_settled(page)
    page.get_by_role("heading", name="Add positions").wait_for()
